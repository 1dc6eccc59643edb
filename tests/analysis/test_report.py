"""What is written: every number in its table, every figure as a file, the page escaped and self-contained."""

import csv
import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.predictions import verdicts
from analysis.report import write
from analysis.report.charts import PALETTES, curve
from analysis.report.tables import number


@pytest.fixture(scope="module")
def folder(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write(folder, "A <title>", models, verdicts(models))
    return folder


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_tables_hold_the_numbers(folder, models):
    found = rows(folder / "tables" / "models.csv")
    assert len(found) == len(models)
    for row, model in zip(found, models, strict=True):
        assert float(row["loss"]) == pytest.approx(model.loss.mean())
        assert float(row["ρ"]) == pytest.approx(model.diversity.mean() / model.bias.mean())
    by_depth = rows(folder / "tables" / "loss.csv")
    losses = [m.loss.mean() for m in models if m.depth == 3]
    (row,) = (r for r in by_depth if r["depth"] == "3")
    assert float(row["loss"]) == pytest.approx(np.mean(losses))
    half = (max(losses) - min(losses)) / 2 * 12.706204736  # Student's t with one degree of freedom
    assert float(row["high"]) - float(row["loss"]) == pytest.approx(half, rel=1e-6)


def test_verdicts_are_strict_json_and_agree_with_the_page(folder):
    def no(constant):
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads((folder / "verdicts.json").read_text(), parse_constant=no)
    page = (folder / "index.html").read_text()
    assert [v["id"] for v in found] == [f"P{i}" for i in range(1, 9)]
    for verdict in found:
        pattern = rf"<td>{verdict['id']}</td><td>[^<]*</td><td class=\"state [a-z]+\">{verdict['state']}</td>"
        assert re.search(pattern, page)


def test_architectures_lie_over_each_other_only_where_there_are_several(folder, models, tmp_path):
    assert not (folder / "tables" / "architectures.csv").exists()
    looped = [
        replace(m, architecture="looped", parameters=7, training_flops=1e12 * m.depth, bias=m.bias + 1)
        for m in models
    ]
    plain = [replace(m, parameters=1000 * m.depth, training_flops=1e12 * m.depth) for m in models]
    write(tmp_path, "both", plain + looped, [])
    found = rows(tmp_path / "tables" / "architectures.csv")
    bias = {r["architecture"]: float(r["bias"]) for r in found if r["depth"] == "3" and r["bias"]}
    assert bias["looped"] - bias["<b>&"] == pytest.approx(1)
    sizes = rows(tmp_path / "tables" / "sizes.csv")
    held = [r for r in sizes if r["architecture"] == "looped" and r["parameters"]]
    assert [float(r["parameters"]) for r in held] == [7, 7, 7, 7]
    names = {"architectures", "architecture-gains", "sizes"}
    assert names <= {path.stem for path in (tmp_path / "figures").glob("*.svg")}


def test_every_figure_is_drawn_twice_more(folder):
    svgs = {path.stem for path in (folder / "figures").glob("*.svg")}
    pdfs = {path.stem for path in (folder / "figures").glob("*.pdf")}
    assert svgs == pdfs
    assert {"loss", "gains", "ratio", "split", "lens", "members", "member-ratio", "shapley"} <= svgs
    assert {"orders", "member-gains", "redundancy", "violations", "P1", "P5", "P6"} <= svgs
    for path in (folder / "figures").iterdir():
        start = path.read_bytes()[:5]
        assert start == (b"%PDF-" if path.suffix == ".pdf" else b"<svg ")


def test_the_page_is_one_file_with_nothing_of_the_data_as_markup(folder):
    page = (folder / "index.html").read_text()
    assert "<title>A &lt;title&gt;</title>" in page
    assert "<b>&" not in page.split("<script>")[0]
    assert "&lt;b&gt;&amp;" in page
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#)", page.split("<script>")[0])
    assert len(page) < 3_000_000


def test_a_chart_has_its_interval_and_tells_all_of_a_record():
    record = {"depth": 2, "loss": 1.5, "low": 1.0, "high": 2.0, "seeds": 3}
    chart = curve([record], "depth", "loss", ("blocks", "nats"), log=True).to_dict()
    interval = chart["layer"][1]["encoding"]
    assert (interval["y"]["field"], interval["y2"]["field"]) == ("low", "high")
    told = {t["field"]: t.get("format") for t in chart["layer"][2]["encoding"]["tooltip"]}
    assert told == {"depth": None, "loss": ".4~g", "low": ".4~g", "high": ".4~g", "seeds": None}


def test_numbers_as_they_are_told():
    assert [number(x) for x in (0.123456, 12, None, "a")] == ["0.123", "12", "–", "a"]


@pytest.fixture
def file(planted, tmp_path):
    path = tmp_path / "mine.safetensors"
    planted(2, 0).save(path)
    return path


def test_the_command_takes_anybodys_evidence(file, capfd):
    assert main([str(file)]) == 0
    said = capfd.readouterr().out
    assert "P1" in said
    found = {v["id"]: v for v in json.loads((file.parent / "report" / "verdicts.json").read_text())}
    assert found["P1"]["state"] == "holds"
    assert found["P6"]["state"] == "not measured"
    assert "4 depths" in found["P6"]["why"]


@pytest.mark.parametrize("few", [{"examples": 1}, {"classes": 1}])
def test_the_command_refuses_a_model_of_one_example_or_class(planted, tmp_path, capfd, few):
    path = tmp_path / "few.safetensors"
    planted(2, 0, **few).save(path)
    assert main([str(path)]) == 2
    assert capfd.readouterr().err == (
        f"error: {path}: the evidence has 1 of {next(iter(few))}: 2 are the fewest that tell of diversity\n"
    )


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "not a whole safetensors file"),
        (lambda path: path.unlink(), "holds no sweep.json"),
    ],
)
def test_the_command_refuses_in_one_sentence(file, capfd, damage, sentence):
    damage(file)
    assert main([str(file)]) == 2
    said = capfd.readouterr().err
    assert said.startswith(f"error: {file}")
    assert sentence in said
    assert said.count("\n") == 1
    assert not (file.parent / "report").exists()


def test_of_more_names_than_hues_no_two_look_alike():
    names = [f"{i} blocks" for i in range(20)]
    records = [{"name": name, "x": x, "y": 0.0} for name in names for x in (1, 2)]
    line, points = curve(records, "x", "y", ("x", "y"), colour="name").to_dict()["layer"]
    hues = itertools.cycle(PALETTES["light"])
    for channel, layer in (("shape", points), ("strokeDash", line)):
        scale = layer["encoding"][channel]["scale"]
        assert scale["domain"] == layer["encoding"]["color"]["scale"]["domain"] == names  # one legend ...
        assert "legend" not in layer["encoding"][channel]  # ... which one without would take away
        assert len({(hue, str(way)) for hue, way in zip(hues, scale["range"], strict=False)}) == 20
