"""The page in a real browser: headless Chromium runs it, with a probe that does what a reader does."""

import html
import json
import re
import shutil
import subprocess

import pytest

from analysis.predictions import verdicts
from analysis.report import write

pytestmark = pytest.mark.slow

PROBE = """
<script>
window.faults = [];
window.addEventListener("error", e => faults.push(e.message));
window.addEventListener("unhandledrejection", e => faults.push(String(e.reason)));
</script>
"""
READER = """
<script>
setTimeout(() => {
  const panels = [...document.querySelectorAll(".panel")];
  document.querySelector("#loss-0").scrollIntoView();
  const point = document.querySelector("#loss-0 .mark-symbol path[aria-label]");
  const box = point.getBoundingClientRect();
  const at = { bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 };
  for (const kind of ["pointerover", "pointermove"]) point.dispatchEvent(new PointerEvent(kind, at));
  for (const kind of ["mouseover", "mousemove"]) point.dispatchEvent(new MouseEvent(kind, at));
  const table = document.querySelector("#verdict-table table");
  const column = () => [...table.tBodies[0].rows].map(row => row.cells[2].textContent);
  table.querySelectorAll("th")[2].click();
  const up = column();
  table.querySelectorAll("th")[2].click();
  setTimeout(() => {
    const tooltip = document.querySelector("#vg-tooltip-element");
    parent.postMessage(JSON.stringify({
      faults,
      empty: panels.filter(p => !p.querySelector("svg [aria-roledescription$='mark container'] *"))
        .map(p => p.id),
      panels: panels.length,
      width: innerWidth,
      wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
      outside: panels.filter(p => p.scrollWidth > p.clientWidth + 1).map(p => p.id),
      requests: performance.getEntriesByType("resource").map(r => r.name),
      tooltip: tooltip && tooltip.classList.contains("visible") ? tooltip.innerText : null,
      ink: getComputedStyle(document.body).color,
      up, down: column(),
    }), "*");
  }, 500);
}, 4000);
</script>
"""
# A window of Chromium is never narrower than 500 pixels; a frame is as narrow as a phone.
FRAME = """
<body><iframe src="{page}" width="{width}" height="900" style="border: 0"></iframe>
<script>addEventListener("message", e => document.body.dataset.seen = e.data)</script></body>
"""


@pytest.fixture(scope="module")
def see(models, tmp_path_factory):
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    assert chromium, "this test needs Chromium: apt-get install chromium"
    folder = tmp_path_factory.mktemp("page")
    page = write(folder, "planted", models, verdicts(models))
    probed = page.with_name("probed.html")
    start, end = page.read_text().replace("<head>", "<head>" + PROBE, 1).rsplit("</body>", 1)
    probed.write_text(start + READER + "</body>" + end)

    def seen(width, dark):
        frame = page.with_name("frame.html")
        frame.write_text(FRAME.format(page=probed.name, width=width))
        done = subprocess.run(
            [
                chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                f"--user-data-dir={tmp_path_factory.mktemp('profile')}", "--virtual-time-budget=15000",
                f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                "--window-size=1400,1000", "--dump-dom", frame.as_uri(),
            ],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        found = re.search(r'data-seen="([^"]*)"', done.stdout)
        assert found, done.stderr[-2000:]
        return json.loads(html.unescape(found[1]))

    return seen


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_reader_sees_everything_and_nothing_is_fetched(see, width, dark):
    seen = see(width, dark)
    assert seen["faults"] == []
    assert seen["width"] == width
    assert seen["panels"] >= 18
    assert seen["empty"] == []
    assert seen["requests"] == []
    assert seen["wide"] <= 0
    assert seen["outside"] == []
    assert ("230" in seen["ink"]) == dark  # the light ink is on the dark page
    assert seen["tooltip"]
    assert all(word in seen["tooltip"] for word in ("loss", "low", "high"))
    assert seen["up"] == sorted(seen["up"])
    assert seen["down"] == sorted(seen["up"], reverse=True)
