"""`nmt report` as it is typed: the page of real trainings in a browser, where it is written, and its errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nmt_cli.cli.report import report
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.errors import ModelError, UsageError
from tests.artifacts.builders import write_run
from tests.browser import Browser
from tests.cli.conftest import Shell
from tests.cli.test_info import NO_HEAVY_IMPORTS
from tests.training.tiny import events, train

VISIBLE = "[...document.querySelectorAll('.charts svg')].filter(one => one.checkVisibility()).map(one => one.ariaLabel)"

EDGES = "one => ({right: one.getBoundingClientRect().right, bottom: one.getBoundingClientRect().bottom})"


@pytest.fixture(scope="module")
def runs(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two trainings with validations and samples."""
    folder = tmp_path_factory.mktemp("runs")
    for name, settings in (("base", ()), ("wide", ("model.d_ff=96",))):
        assert train(prepared, folder / name, "training.updates=16", *settings) == 0
    return [folder / "base", folder / "wide"]


def test_a_page_is_written_into_its_run_or_for_several_runs_where_one_is(
    runs: list[Path], nmt: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = nmt("report", str(runs[0]))
    assert (outcome.code, outcome.stdout) == (0, "")
    assert outcome.stderr == [f"report: {runs[0] / 'report.html'}"]
    assert nmt("report", *map(str, [*runs, runs[0]])).stderr == [
        "report: report.html",
        "figures: report.csv, report-*.svg",
    ]
    names = ("bleu", "learning-rate", "training-loss", "validation-loss")
    assert sorted(file.name for file in tmp_path.glob("report*")) == sorted(
        [*(f"report-{name}.svg" for name in names), "report.csv", "report.html"]
    )
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h1>2 runs</h1>" in page
    assert f"<code>nmt report {runs[0]} {runs[1]} {runs[0]}</code>" in page
    sample = events(runs[0], "validation")[-1]["samples"][0]
    assert sample["source"] in page
    assert sample["reference"] in page
    assert nmt("report", str(runs[1]), "-o", "pages/of/one.html").code == 0
    assert "<h1>wide " in (tmp_path / "pages/of/one.html").read_text(encoding="utf-8")
    # A page replaces a page.
    assert nmt("report", str(runs[0]), "-o", "pages/of/one.html").code == 0
    assert "<h1>base " in (tmp_path / "pages/of/one.html").read_text(encoding="utf-8")


def test_a_folder_of_runs_stands_for_its_runs(runs: list[Path], nmt: Shell, tmp_path: Path) -> None:
    folder = runs[0].parent
    assert nmt("report", str(folder)).code == 0
    assert "<h1>2 runs</h1>" in (folder / "report.html").read_text(encoding="utf-8")
    (folder / "report.csv").write_text("mine\n", encoding="utf-8")
    assert nmt("report", str(folder)).code == UsageError.exit_code
    assert (folder / "report.csv").read_text(encoding="utf-8") == "mine\n"
    (folder / "report.csv").unlink()
    assert nmt("report", str(folder)).code == 0


def test_a_training_goes_on_beside_the_page_in_its_run(prepared: PreparedData, tmp_path: Path, nmt: Shell) -> None:
    write_run(tmp_path / "begun")
    assert nmt("report", str(tmp_path / "begun")).code == 0
    assert train(prepared, tmp_path / "begun", "training.updates=2") == 0  # nothing was saved: it begins anew
    run = tmp_path / "run"
    assert train(prepared, run, "training.updates=8") == 0
    assert nmt("report", str(run)).code == 0
    assert train(prepared, run, "training.updates=12") == 0
    assert events(run)[-1]["update"] == 12


def test_what_is_no_run_is_an_error_with_the_nearest_one(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "wide")
    with pytest.raises(ModelError) as caught:
        report([tmp_path / "runs" / "wdie"], output=None)
    assert caught.value.message == f"{tmp_path / 'runs' / 'wdie'} is not a run"
    assert caught.value.hint.startswith(f"did you mean {tmp_path / 'runs' / 'wide'}? ")


def test_only_a_page_is_replaced(tmp_path: Path, runs: list[Path]) -> None:
    metrics = runs[0] / "metrics.jsonl"
    before = metrics.read_bytes()
    with pytest.raises(UsageError) as caught:
        report([runs[0]], output=metrics)
    assert caught.value.message == f"{metrics} exists and is not a report of runs, so it is not replaced"
    assert caught.value.hint == "give another file with -o"
    assert metrics.read_bytes() == before
    with pytest.raises(UsageError) as caught:
        report([runs[0]], output=runs[0] / "run.json" / "page.html")
    assert "a file stands where a folder must be" in caught.value.message


def test_a_report_and_a_table_of_runs_import_nothing_heavy(tmp_path: Path, runs: list[Path]) -> None:
    for arguments in (["report", *map(str, runs), "-o", str(tmp_path / "a.html")], ["info", str(runs[0].parent)]):
        command = [sys.executable, "-c", NO_HEAVY_IMPORTS, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 375])
def test_the_page_fits_desktop_and_phone_and_logs_nothing(
    browser: Browser, runs: list[Path], tmp_path: Path, width: int, scheme: str
) -> None:
    report(runs, output=tmp_path / "a.html")
    browser.size(width, 900, is_phone=width < 500)
    browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.console.clear()
    browser.requests.clear()
    url = (tmp_path / "a.html").as_uri()
    browser.open(url)
    assert browser.run("document.documentElement.scrollWidth") <= width
    cells = browser.run(f"[...document.querySelectorAll('.facts td')].map(one => ({EDGES})(one))")
    assert len(cells) == 2 * (8 + 6)
    assert max(cell["right"] for cell in cells) <= width
    best = browser.run(f"[...document.querySelectorAll('.best')].map(one => ({EDGES})(one))")
    assert max(cell["bottom"] for cell in best) <= 600
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(17, 21, 26)"}[scheme]
    colours = browser.run("[...document.querySelectorAll('polyline')].map(one => getComputedStyle(one).stroke)")
    assert len(set(colours)) == 2
    assert ground not in colours
    assert browser.console == []
    assert browser.requests == [url]


def test_the_axis_is_changed_with_the_keyboard_and_without_a_script(
    browser: Browser, runs: list[Path], tmp_path: Path
) -> None:
    report(runs, output=tmp_path / "a.html")
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    browser.open((tmp_path / "a.html").as_uri())
    browser.send("Emulation.setScriptExecutionDisabled", value=False)
    seen = []
    browser.run("document.querySelector('#by-updates').focus()")
    for axis in ("updates", "time"):
        assert browser.run("document.querySelector('input:checked').id") == f"by-{axis}"
        seen.append(browser.run(VISIBLE))
        browser.press("ArrowRight")
    assert [[label.split(" by ")[0] for label in labels] for labels in seen] == [
        ["Training loss", "Validation loss", "BLEU on the validation set", "Learning rate"]
    ] * 2
    for labels, unit in zip(seen, ("updates", "seconds"), strict=True):
        assert all(f" by {unit}: base from " in label for label in labels)
    losses = [event["loss"] for event in events(runs[0], "train")]
    assert f"base from {losses[0]:.3f} to {losses[-1]:.3f}" in seen[0][0]


def test_the_page_of_a_long_training_is_small(tmp_path: Path) -> None:
    write_run(tmp_path / "x")
    rows = [
        {"event": "train", "update": update, "loss": 9 - update / 2e4, "learning_rate": update**-0.5}
        | {"target_tokens": 2_500_000, "seconds": update / 10, "gradient_norm": 1.0}
        for update in range(100, 100_001, 100)
    ]
    (tmp_path / "x" / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    report([tmp_path / "x"])
    assert (tmp_path / "x" / "report.html").stat().st_size < 200_000
