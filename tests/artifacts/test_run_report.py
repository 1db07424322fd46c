"""The page about runs: what it says of real and of damaged runs, and that it loads, runs and lets in nothing."""

from __future__ import annotations

import csv
import json
import re
import shutil
import statistics
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from nmt_cli.artifacts.run import open_run
from nmt_cli.artifacts.run_report import render_report
from nmt_cli.training.runs import locked_run
from tests.artifacts.builders import SIGNATURE, TINY, tiny_recipe, write_run
from tests.preparing.test_report import HOSTILE, Page

START = {
    "hardware": {"device": "Ideal CPU", "devices": 2, "threads": 3, "precision": "bf16", "is_compiled": True},
    "versions": {"nmt": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
}


def page_of(*runs: Path) -> str:
    return render_report(
        [open_run(run) for run in runs], command="nmt report x", now=datetime(2026, 1, 3, tzinfo=UTC)
    ).page


def add_events(run: Path, *events: dict[str, Any]) -> Path:
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as stream:
        stream.write("".join(f"{json.dumps(event)}\n" for event in events))
    return run


def validated(update: int, *samples: tuple[str, str, str], bleu: float = 20.0) -> dict[str, Any]:
    keys = ("source", "reference", "translation")
    kept = [dict(zip(keys, sample, strict=True)) for sample in samples]
    figures = {"loss": 4.0, "perplexity": 9.5, "bleu": bleu, "signature": SIGNATURE, "seconds": 1.0}
    return {"event": "validation", "update": update, **figures, "samples": kept}


def section(page: str, title: str) -> str:
    return page.split(f"<h2>{title}</h2>")[1].split("<h2>")[0].split("</main>")[0]


def cells(part: str) -> list[list[str]]:
    """The rows of the tables in a part of a page, as text."""
    rows = re.findall(r"<tr>(.*?)</tr>", part, flags=re.DOTALL)
    return [[re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of which everything is known, stopped in the middle."""
    folder = tmp_path / "base"
    write_run(folder, updates=3, recipe=tiny_recipe(training={"updates": 1000}, description="About <boats>"))
    started = {"event": "start", "update": 0, "time": "2026-01-02T03:04:05+00:00", **START}
    metrics = folder / "metrics.jsonl"
    metrics.write_text(f"{json.dumps(started)}\n{metrics.read_text()}")
    trained = {"learning_rate": 1e-3, "target_tokens": 5000, "seconds": 90.0}
    return add_events(
        folder,
        {"event": "train", "update": 400, "loss": 4.2, **trained},
        {"event": "skipped", "update": 401, "reason": "gradients are not finite", "in_row": 1, "pairs": [1, 2]},
        {"event": "end", "reason": "interrupted", "update": 450},
    )


def test_the_page_of_a_run_has_its_figures_and_the_command_that_continues(run: Path) -> None:
    page = page_of(run)
    assert "<h1>base " in page
    assert "About &lt;boats&gt;" in page
    figures = dict(re.findall(r"<div><dt>(.*?)</dt><dd>(.*?)<small>", page))
    assert figures["updates"] == "450"
    assert (figures["best BLEU"], figures["lowest loss"]) == ("40.00", "4.2500")
    assert "<small>after update 200</small>" in page
    assert figures["time"] == "1 min 33 s"
    assert "<code>nmt train tiny.yaml --data data/mini</code>" in section(page, "To go on")
    assert cells(section(page, "Validations"))[1:] == [
        [str(update), f"{number + 1} s", f"{loss:.4f}", "7.40", f"{bleu:.2f}"]
        for number, (update, loss, bleu) in enumerate([(100, 4.75, 11), (200, 4.5, 40), (300, 4.25, 13)])
    ]
    assert cells(section(page, "Starts and hardware"))[1:] == [
        ["2026-01-02 03:04 UTC", "0", "2 x Ideal CPU, compiled", "3", "bf16", "nmt 0.1.0, torch 2.13.0, python 3.11.7"]
    ]
    assert cells(section(page, "Skipped updates"))[1:] == [["401", "gradients are not finite (2 suspect pairs)"]]
    settings = {row[0]: row[1:] for row in cells(section(page, "Settings"))[1:]}
    assert settings["training.updates"] == ["1000", "100000"]
    assert settings["model.d_model"] == ["16", "512"]
    assert "training.seed" not in settings
    assert not {"name", "description"} & settings.keys()


def test_samples_stand_with_the_updates_after_which_they_were_made(run: Path) -> None:
    words = ["", "a", "a", "b"]
    add_events(run, *(validated(500 + 100 * place, ("Haus", "house", word)) for place, word in enumerate(words)))
    rows = cells(section(page_of(run), "Samples"))[1:]
    assert rows == [["500", "(empty)"], ["600 to 700", "a"], ["800", "b"]]
    add_events(run, *(validated(900 + place, ("Haus", "house", str(place))) for place in range(50)))
    rows = cells(section(page_of(run), "Samples"))[1:]
    assert len(rows) == 8
    assert (rows[0], rows[-1]) == (["500", "(empty)"], ["949", "49"])


def test_validations_without_samples_after_the_last_with_samples_hide_none(run: Path) -> None:
    """As after validation.bleu: false for the rest of a run."""
    add_events(run, validated(500, ("Haus", "house", "a")), validated(600))
    assert cells(section(page_of(run), "Samples"))[1:] == [["500", "a"]]


def test_a_sample_has_the_languages_of_its_run(tmp_path: Path, run: Path) -> None:
    add_events(run, validated(500, ("A boat .", "Ein Boot .", "Boot .")))
    other = tmp_path / "back"
    write_run(other)
    record = json.loads((other / "run.json").read_text())
    record["languages"] = {"source": "de", "target": "en"}
    (other / "run.json").write_text(json.dumps(record))
    add_events(other, validated(500, ("Ein Haus .", "A house .", "House .")))
    there, back = section(page_of(run, other), "Samples").split('<div class="example">')[1:]
    assert '<span lang="en" dir="auto">A boat .</span>' in there
    assert '<span lang="de" dir="auto">Boot .</span>' in there
    assert '<span lang="de" dir="auto">Ein Haus .</span>' in back
    assert '<span lang="en" dir="auto">House .</span>' in back


def test_two_runs_are_compared_by_the_settings_that_differ(tmp_path: Path, run: Path) -> None:
    other = tmp_path / "wide"
    write_run(other, updates=2, recipe=tiny_recipe(model={"d_ff": 48}, training={"updates": 2000}), finished="x")
    page = page_of(run, other)
    settings = cells(section(page, "Settings"))
    assert settings[:4] == [
        ["key", "base", "wide"],
        ["model.d_ff", "24", "48"],
        ["training.updates", "1000", "2000"],
        ["key", "value", "default"],
    ]
    assert ["model.encoder_layers", str(TINY["encoder_layers"]), "6"] in settings[4:]
    assert not [row for row in settings[4:] if row[1] == row[2]]
    assert "These settings differ between the runs; all others are the same." in page
    assert "In all runs, these differ from the defaults." in page
    table = cells(page.split("<h2>To go on</h2>")[0])
    assert [row[0] for row in table[1:]] == ["base", "wide"]
    assert [row[2] for row in table[1:]] == ["stopped", "finished"]
    rows = cells(section(page, "Validations"))
    assert rows[2:] == [
        ["100", "4.7500", "11.00", "4.7500", "40.00"],
        ["200", "4.5000", "40.00", "4.5000", "12.00"],
        ["300", "4.2500", "13.00", "", ""],
    ]
    for drawing in re.findall(r"<svg viewBox=\"0 0 400.*?</svg>", page, flags=re.DOTALL):
        classes = [line.attrib["class"] for line in ElementTree.fromstring(drawing).iter("polyline")]
        assert classes == sorted(set(classes))
        assert set(classes) <= {"run0", "run1"}


def test_runs_that_differ_in_their_seed_alone_are_one_system_with_mean_and_band(tmp_path: Path) -> None:
    for seed, shift in ((1, 0.0), (2, 2.0), (7, 7.0)):
        write_run(tmp_path / f"base-{seed}", recipe=tiny_recipe(training={"seed": seed}))
        validations = [validated(100 * number, bleu=10.0 * number + shift) for number in (1, 2, 3)]
        add_events(tmp_path / f"base-{seed}", *validations[: 2 if seed == 7 else 3])
    write_run(tmp_path / "wide", updates=2, recipe=tiny_recipe(model={"d_ff": 48}, training={"seed": 3}))
    runs = [open_run(tmp_path / name) for name in ("base-1", "wide", "base-2", "base-7")]
    report = render_report(runs, command="nmt report x", now=datetime(2026, 1, 3, tzinfo=UTC))
    best = (30.0, 32.0, 27.0)
    mean_and_deviation = f"{statistics.fmean(best):.2f} ± {statistics.stdev(best):.2f}"
    assert [row[:2] for row in cells(section(report.page, "Seeds"))[1:]] == [
        ["base (3 runs)", mean_and_deviation],
        ["wide", "40.00"],
    ]
    assert cells(section(report.page, "Seeds"))[1][-1] == "1, 2, 7"
    assert cells(section(report.page, "Settings"))[:2] == [["key", "base (3 runs)", "wide"], ["model.d_ff", "24", "48"]]
    bleu = [row for row in csv.DictReader(report.files[".csv"].splitlines()) if row["chart"] == "bleu"]
    assert [(row["system"], row["update"], row["runs"]) for row in bleu] == [
        ("base (3 runs)", "100", "3"),
        ("base (3 runs)", "200", "3"),
        ("wide", "100", "1"),
        ("wide", "200", "1"),
    ]
    assert [float(bleu[1][key]) for key in ("mean", "lowest", "highest")] == [23.0, 20.0, 27.0]
    assert float(bleu[1]["deviation"]) == pytest.approx(statistics.stdev([20.0, 22.0, 27.0]))
    figure = ElementTree.fromstring(report.files["-bleu.svg"])
    (band,) = figure.iter("{http://www.w3.org/2000/svg}polygon")
    edges = [tuple(map(float, point.split(","))) for point in band.attrib["points"].split()]
    assert [x for x, _ in edges] == [edges[0][0], edges[1][0], edges[1][0], edges[0][0]]
    assert edges[0][1] - edges[3][1] == pytest.approx(edges[1][1] - edges[2][1], abs=0.11)  # 7 BLEU on both sides
    texts = [text.text for text in figure.iter("{http://www.w3.org/2000/svg}text")]
    assert {"BLEU on the validation set, sacreBLEU", "base (3 runs)", "wide"} <= {*texts}


def test_systems_whose_runs_share_a_name_have_names_of_their_own(tmp_path: Path) -> None:
    for number, (seed, width) in enumerate([(1, 24), (2, 24), (1, 48), (2, 48)], start=1):
        write_run(tmp_path / f"w-{number}", recipe=tiny_recipe(model={"d_ff": width}, training={"seed": seed}))
    runs = [open_run(tmp_path / f"w-{number}") for number in (1, 2, 3, 4)]
    report = render_report(runs, command="nmt report x", now=datetime(2026, 1, 3, tzinfo=UTC))
    assert cells(section(report.page, "Settings"))[0] == ["key", "w-1, w-2 (2 runs)", "w-3, w-4 (2 runs)"]


def findings(*runs: Path) -> list[str]:
    found = re.search(r'<section class="warnings">.*?</section>', page_of(*runs), flags=re.DOTALL)
    return re.findall(r"<li>(.*?)</li>", found[0]) if found else []


def test_what_a_reader_must_know_comes_first(tmp_path: Path, run: Path) -> None:
    assert findings(run) == ["One update was skipped, because gradients were not finite."]
    with locked_run(run):
        assert findings(run)[0] == "A process trains this run now. The page shows it up to update 450."
    add_events(run, {"event": "resume", "update": 450})
    assert findings(run)[0].startswith("The process ended after update 450 and did not say why")
    write_run(tmp_path / "new")
    assert findings(tmp_path / "new") == ["This run has not reported an update yet."]
    add_events(run, *(validated(500 + place, bleu=30.0) for place in range(4)), {"event": "end", "update": 504})
    assert findings(run)[-1] == "The best BLEU was after update 200; 5 later validations were no better."


@pytest.mark.parametrize(("bleu", "is_told"), [(9.99, True), (10.0, False)])
def test_a_bleu_that_is_of_no_use_is_told_of_with_what_to_do(tmp_path: Path, bleu: float, is_told: bool) -> None:
    write_run(tmp_path / "low")
    page = page_of(add_events(tmp_path / "low", validated(100, bleu=bleu), {"event": "end", "update": 100}))
    assert (f"The best BLEU is {bleu}, and below 10 translations are of no use." in page) == is_told
    assert "A rule of thumb for BLEU" in section(page, "Validations")


def test_runs_on_other_data_are_compared_with_a_warning(tmp_path: Path, run: Path) -> None:
    other = tmp_path / "other"
    write_run(other, updates=1, finished="x")
    record = json.loads((other / "run.json").read_text())
    record["data_summary"]["fingerprint"] = "another"
    (other / "run.json").write_text(json.dumps(record))
    assert findings(run, other)[-1].startswith("The runs have different prepared data.")
    part = tmp_path / "part"
    write_run(part, updates=1, finished="x", recipe=tiny_recipe(validation={"max_sentences": 9}))
    assert "validation.max_sentences differs" in findings(run, part)[-1]
    add_events(part, {**validated(200), "signature": "another"})
    assert findings(run, part)[-1] == "The signatures of BLEU differ, so its values are not comparable."


def test_a_run_that_has_only_begun_has_a_page_without_curves(tmp_path: Path) -> None:
    write_run(tmp_path / "new")
    page = page_of(tmp_path / "new")
    assert "No update was reported yet." in section(page, "Curves")
    assert "<svg" not in page
    assert "<h2>Validations</h2>" not in page
    add_events(tmp_path / "new", {"event": "train", "update": 1, "loss": 9.0, "seconds": 0.5})
    page = page_of(tmp_path / "new")
    assert page.count("<polyline") == 2  # the loss by updates and by time
    assert "Not measured so far: Validation loss, BLEU on the validation set, Learning rate." in page


def test_the_page_loads_and_runs_nothing_and_every_text_is_escaped(tmp_path: Path, run: Path) -> None:
    plain = page_of(run)
    hostile = tmp_path / "hostile"
    write_run(hostile, updates=1, recipe=tiny_recipe(description=HOSTILE))
    start = {"hardware": {"device": HOSTILE}, "versions": {HOSTILE: HOSTILE}, "time": HOSTILE}
    add_events(
        hostile,
        {"event": "start", "update": 100, **start},
        {**validated(200, (HOSTILE, HOSTILE, HOSTILE)), "signature": HOSTILE},
        {"event": "skipped", "update": 210, "reason": HOSTILE},
    )
    for rendered in (plain, page_of(hostile), page_of(run, hostile)):
        for tag, attributes in Page(rendered).elements:
            assert tag not in {"script", "link", "img", "iframe", "object"}
            assert not {"src", "href", "onclick", "onload"} & attributes.keys()
        assert "url(" not in rendered
        assert "@import" not in rendered
    assert "".join(Page(page_of(hostile)).text).count(HOSTILE) >= 8


def test_tables_figures_and_headings_can_be_found_without_seeing_them(tmp_path: Path, run: Path) -> None:
    shutil.copytree(run, tmp_path / "wide")
    for runs in ([run], [run, tmp_path / "wide"]):
        page = Page(page_of(*runs))
        headings = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
        assert headings[0] == 1
        assert headings.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(headings))
        assert all("scope" in attributes for tag, attributes in page.elements if tag == "th")
        tags = [tag for tag, _ in page.elements]
        assert tags.count("figure") == tags.count("figcaption") == 4
        assert tags.count("legend") == 1
        charts = [attributes for tag, attributes in page.elements if tag == "svg" and "aria-hidden" not in attributes]
        assert all(chart["role"] == "img" and chart["aria-label"] for chart in charts)
        ends = "; ".join(f"{folder.name} from 4.750 to 4.200" for folder in runs)
        assert charts[0]["aria-label"] == f"Training loss by updates: {ends}"
