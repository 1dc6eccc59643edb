"""The page in a real browser: headless Chromium, driven over its pipe, does what a reader does."""

import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time

import pytest

from analysis.predictions import verdicts
from analysis.report import write

pytestmark = pytest.mark.slow

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --remote-debugging-pipe about:blank"
)
DRAWN = """
[...document.querySelectorAll(".panel")]
  .filter(p => !p.querySelector("svg [aria-roledescription$='mark container'] *")).map(p => p.id)
"""
CUT = """
[...document.querySelectorAll(".panel")].flatMap(p => { const frame = p.getBoundingClientRect();
  return [...p.querySelectorAll("svg text")].filter(text => { const box = text.getBoundingClientRect();
    return text.textContent && box.width && (box.right > frame.right + 1 || box.left < frame.left - 1); })
  .map(text => p.id + ": " + text.textContent); })
"""
POINT = """
(() => { const point = document.querySelector("#loss-0 .mark-symbol path[aria-label]");
  point.scrollIntoView({ block: "center" });
  const box = point.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2]; })()
"""
TOOLTIP = """
(() => { const tip = document.querySelector("#vg-tooltip-element.visible"); return tip && tip.innerText; })()
"""
HEAD = """
(() => { const head = [...document.querySelectorAll("TABLE th")].find(h => h.textContent.startsWith("NAME"));
  head.scrollIntoView({ block: "center", inline: "center" });
  const box = head.querySelector("button").getBoundingClientRect();
  return [box.x + 5, box.y + 5, head.cellIndex]; })()
"""


class Browser:
    """One tab of Chromium. `faults` and `requests` are what the page complained of and asked for."""

    def __init__(self, folder):
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        assert chromium, "this test needs Chromium: apt-get install chromium"
        (read, self.write), (self.read, write) = os.pipe(), os.pipe()
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, write)]
        line = f'exec "$0" --user-data-dir="$1" {FLAGS} 3<&{theirs[0]} 4>&{theirs[1]}'
        self.process = subprocess.Popen(
            ["bash", "-c", line, chromium, str(folder)], pass_fds=theirs, stderr=subprocess.DEVNULL
        )
        for end in (read, write, *theirs):
            os.close(end)
        self.numbers, self.unread, self.session = itertools.count(1), b"", None
        self.faults, self.requests = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer}"
        return answer["result"]

    def _next(self):
        while b"\0" not in self.unread:
            assert select.select([self.read], [], [], 60)[0], "Chromium has said nothing for a minute"
            said = os.read(self.read, 1 << 20)
            assert said, "Chromium has ended"
            self.unread += said
        message, self.unread = self.unread.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event):
        method, said = event.get("method"), event.get("params")
        if method == "Runtime.exceptionThrown":
            self.faults.append(said["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning"):
            self.faults.append(said["args"])
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.faults.append(said["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def eval(self, script):
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script, wanted=bool):
        """The value of the script, as soon as it is what is wanted."""
        end = time.monotonic() + 30
        while not wanted(value := self.eval(script)):
            assert time.monotonic() < end, f"still {value!r}: {script}"
            time.sleep(0.1)
        return value

    def show(self, page, width, dark, phone):
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.scheme(dark)
        self.faults.clear()
        self.requests.clear()
        self.call("Page.navigate", url=page.as_uri())
        self.until("document.readyState === 'complete' && document.querySelectorAll('.panel').length > 0")
        self.until(DRAWN, lambda empty: empty == [])

    def scheme(self, dark):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def tap(self, x, y):
        self.call("Input.synthesizeTapGesture", x=round(x), y=round(y))

    def hover(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def close(self):
        os.close(self.write)
        self.process.terminate()
        self.process.wait(30)
        os.close(self.read)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(models, tmp_path_factory):
    return write(tmp_path_factory.mktemp("page"), "planted", models, verdicts(models))


@pytest.mark.parametrize(("width", "dark", "phone"), [(1280, False, False), (390, True, True)])
def test_a_reader_sees_everything_and_nothing_is_fetched(browser, page, width, dark, phone):
    browser.show(page, width, dark, phone)
    assert browser.eval("document.querySelectorAll('.panel').length") >= 18
    assert browser.eval("innerWidth") == width  # a page that is too wide is zoomed out of
    assert browser.eval("document.documentElement.scrollWidth") <= width
    assert browser.eval(CUT) == []
    assert ("230" in browser.eval("getComputedStyle(document.body).color")) == dark  # light ink on dark paper
    act = browser.tap if phone else browser.hover
    act(*browser.eval(POINT))
    told = browser.until(TOOLTIP)
    assert all(word in told for word in ("loss", "low", "high"))
    assert browser.faults == []
    assert set(browser.requests) == {page.as_uri()}


def test_the_charts_follow_the_reader_into_the_dark(browser, page):
    ink = "getComputedStyle(document.querySelector('#loss-0 .role-axis-label text')).fill"
    browser.show(page, 1280, dark=False, phone=False)
    light = browser.eval(ink)
    browser.scheme(dark=True)
    assert browser.until(ink, lambda fill: fill != light) == browser.eval(
        "getComputedStyle(document.body).color"
    )


@pytest.mark.parametrize("head", ["estimate", "p (Holm)"])
def test_a_click_sorts_by_numbers_and_what_has_none_stays_last(browser, page, models, head):
    decided = verdicts(models)
    of = {v.id: v.estimate if head == "estimate" else v.p_holm for v in decided}
    known = sorted((id for id in of if of[id] is not None), key=of.__getitem__)
    browser.show(page, 1280, dark=False, phone=False)
    column = "[...document.querySelectorAll('#verdict-table tbody tr')].map(row => row.cells[0].innerText)"
    for order in (known, known[::-1]):
        x, y, _ = browser.eval(HEAD.replace("TABLE", "#verdict-table").replace("NAME", head))
        browser.click(x, y)
        found = browser.eval(column)
        assert [of[id] for id in found[: len(order)]] == [of[id] for id in order]
        assert {of[id] for id in found[len(order) :]} <= {None}
