"""`nmt info`: the facts of each kind of directory, on one screen and as JSON, without importing torch."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.cli.info import info
from nmt_cli.dataset.data_manifest import InputRecord, Manifest, SplitCounts, TokenizerRecord, Tokenizers
from nmt_cli.errors import ModelError
from nmt_cli.training.runs import locked_run
from tests.artifacts.builders import SIGNATURE, save_tiny, single, spm_bytes, tiny_recipe, write_run
from tests.cli.conftest import Shell
from tests.cli.terminals import seen_in_terminal

Screen = Callable[[Path], dict[str, str]]


@pytest.fixture
def screen(nmt: Shell) -> Screen:
    """The lines that are shown of a path, by label; those of one label joined."""

    def shown(path: Path) -> dict[str, str]:
        lines: dict[str, str] = {}
        for line in nmt("info", str(path)).stdout.splitlines():
            label, text = line[:13].strip(), line[13:]
            lines[label] = f"{lines[label]}; {text}" if label in lines else text
        return lines

    return shown


def as_json(nmt: Shell, path: Path) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(nmt("info", str(path), "--json").stdout)
    return described


def write_data(directory: Path) -> Path:
    """Prepared data as its manifest tells it, with one file in place of all."""
    directory.mkdir(parents=True)
    (directory / "train.source.ids").write_bytes(bytes(10))
    (directory / "source.spm").write_bytes(b"spm")
    tokenizer = TokenizerRecord(vocab_size=8000, fingerprint="ab")
    manifest = Manifest(
        nmt_version="0.1.0",
        name="mini",
        languages=single("en", "de"),
        shared_vocabulary=True,
        tokenizers=Tokenizers(source=tokenizer, target=tokenizer),
        dtype="uint16",
        splits={"train": SplitCounts(pairs=2000, source_tokens=32000, target_tokens=31000)},
        inputs=[InputRecord(split="train", name="mini.en", bytes=10, sha256="cd")],
        fingerprint="ef",
        corpus={"name": "mini"},
        files={"train.source.ids": 10, "source.spm": 3},
    )
    (directory / "manifest.json").write_text(manifest.model_dump_json())
    words = {"total": 24080, "mean": 12.04, "p50": 11, "p90": 20, "p99": 30, "max": 41, "histogram": []}
    pieces = {"mean": 14.0, "p50": 13, "p90": 25, "p99": 36, "max": 50, "histogram": []}
    totals = {"source": 28000, "target": 29000}  # without ends, and without symbols before the sources
    sides = {side: {"words": words, "pieces": {"total": total, **pieces}} for side, total in totals.items()}
    (directory / "report.json").write_text(json.dumps({"splits": {"train": sides}}))
    return directory


def test_a_model_on_one_screen(tmp_path: Path, screen: Screen, nmt: Shell) -> None:
    model = save_tiny(tmp_path / "m", spm_folder=tmp_path)
    shown = screen(tmp_path / "m")
    assert shown["model"] == "tiny, en to de"
    assert shown["parameters"] == f"{model.num_parameters():,}"
    assert shown["vocabulary"] == "300 pieces, shared"
    assert shown["weights"] == "update 7"
    assert "trained on" not in shown
    assert shown["architecture"].startswith("2 + 1 layers, d_model 16, d_ff 24, 2 heads, post-norm")
    assert shown["use"] == f"nmt decode -m {tmp_path / 'm'} < input.txt > output.txt"
    described = as_json(nmt, tmp_path / "m")
    assert described["kind"] == "model"
    assert described["parameters"] == model.num_parameters()
    assert described["updates"] == [7]
    assert described["damage"] is None
    assert described["bytes"] == sum(file.stat().st_size for file in (tmp_path / "m").iterdir())


def test_a_model_shows_its_tags_as_decode_takes_them(tmp_path: Path, screen: Screen) -> None:
    spm = spm_bytes(symbols=("<2de>", "<domain:news>", "<domain:talk>"))
    save_tiny(tmp_path / "m", spm_folder=tmp_path, spm=spm, recipe=tiny_recipe())
    assert screen(tmp_path / "m")["tags"] == "domain=news, domain=talk"


def test_the_scores_of_a_model_are_those_of_its_updates(tmp_path: Path, screen: Screen) -> None:
    from nmt_cli.cli.average import average

    write_run(tmp_path / "x", updates=3)
    average([tmp_path / "x"], output=None, last=2, best=None, overwrite=False)
    shown = screen(tmp_path / "x" / "averaged")
    assert shown["weights"] == "average of 2 checkpoints: updates 200, 300"
    assert (
        shown["trained on"]
        == "source lines of up to 1,030 pieces (99 %), 1.2% of several sentences, 0.0% in capitals, 0.0% in title case"
    )
    assert shown["validation"] == "update 200: loss 4.5000, BLEU 40.00; update 300: loss 4.2500, BLEU 13.00"
    assert shown["signature"] == SIGNATURE


def test_a_run_on_one_screen(tmp_path: Path, screen: Screen, nmt: Shell) -> None:
    run = tmp_path / "x"
    write_run(run, updates=4, recipe=tiny_recipe(training={"updates": 1000}))
    shown = screen(run)
    assert shown["progress"] == "update 400 of 1,000 (40 %), not finished"
    assert shown["validation"] == "last: update 400: loss 4.0000, BLEU 14.00"
    assert shown[""] == "best by bleu: update 300: loss 4.2500, BLEU 40.00"
    assert shown["time"] == "4 s of training and validations"
    assert shown["checkpoints"] == "4, the newest at update 400"
    assert shown["started"] == "2026-01-02 03:04 UTC"
    assert shown["command"] == "nmt train tiny.yaml --data data/mini"
    assert shown["speed"].startswith("4,321 target tokens/s")
    assert shown["next"] == "nmt train tiny.yaml --data data/mini"
    described = as_json(nmt, run)
    assert (described["update"], described["updates"], described["finished"]) == (400, 1000, None)
    assert [found["update"] for found in described["checkpoints"]] == [100, 200, 300, 400]
    assert described["best_validation"]["update"] == 300


def test_a_run_says_what_to_do_next(tmp_path: Path, screen: Screen) -> None:
    run = tmp_path / "x"
    write_run(run, finished="2026-01-02T05:00:00+00:00")
    shown = screen(run)
    assert shown["progress"] == "update 0 of 100,000 (0 %), finished 2026-01-02 05:00 UTC"
    assert shown["checkpoints"] == "0"
    assert shown["next"] == f"nmt average {run}"
    save_tiny(run / "averaged", spm_folder=tmp_path)
    shown = screen(run)
    assert shown["model"] == str(run / "averaged")
    assert shown["next"] == f"nmt decode -m {run / 'averaged'} < input.txt > output.txt"
    # Trained on after its average: the newer model counts.
    save_tiny(run / "averaged", spm_folder=tmp_path, update=200, overwrite=True)
    save_tiny(run / "model", spm_folder=tmp_path, update=300)
    assert screen(run)["next"] == f"nmt decode -m {run / 'model'} < input.txt > output.txt"
    # It was stopped after its average.
    record = run / "run.json"
    record.write_text(record.read_text().replace('"2026-01-02T05:00:00+00:00"', "null"), encoding="utf-8")
    assert screen(run)["next"] == "nmt train tiny.yaml --data data/mini"


def test_the_command_that_continues_a_run_does_not_remove_it(tmp_path: Path, screen: Screen) -> None:
    run = tmp_path / "x"
    write_run(run)
    record = json.loads((run / "run.json").read_text())
    record["command"] = ["nmt", "train", "base", "--restart", "-o", "a b"]
    (run / "run.json").write_text(json.dumps(record))
    assert screen(run)["command"] == "nmt train base --restart -o 'a b'"
    assert screen(run)["next"] == "nmt train base -o 'a b'"


def test_a_run_before_its_first_validation_has_the_curve_of_its_training_loss(tmp_path: Path, nmt: Shell) -> None:
    write_run(tmp_path / "x")
    events = [{"event": "train", "update": 10 * number, "loss": 9.0 - number} for number in range(1, 9)]
    (tmp_path / "x" / "metrics.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    assert as_json(nmt, tmp_path / "x")["training_curve"] == [[10 * number, 9.0 - number] for number in range(1, 9)]


def test_a_folder_of_runs_is_a_table_with_their_best_figures(tmp_path: Path, nmt: Shell) -> None:
    runs = tmp_path / "runs"
    write_run(runs / "begun")
    write_run(runs / "done", updates=4, finished="2026-01-02T05:00:00+00:00")
    write_run(runs / "now", updates=2)
    write_run(runs / "worn", updates=1)
    (runs / "worn" / "recipe.yaml").unlink()
    (runs / "notes").mkdir()
    write_run(runs / ".next.partial")
    with locked_run(runs / "now"):
        outcome, described = nmt("info", str(runs)), as_json(nmt, runs)
    header, *rows = [line.split("\t") for line in outcome.stdout.splitlines()]
    assert header == ["run", "corpus", "state", "updates", "BLEU", "loss", "time", "size"]
    assert [row[:7] for row in rows[:3]] == [
        ["begun", "mini", "not begun", "0 of 100,000", "-", "-", "0 s"],
        ["done", "mini", "finished", "400 of 100,000", "40.00", "4.0000", "4 s"],
        ["now", "mini", "training", "200 of 100,000", "40.00", "4.5000", "2 s"],
    ]
    assert rows[3][:3] == ["worn", "", "recipe.yaml is missing"]
    assert described["kind"] == "runs"
    assert [run["state"] for run in described["runs"]] == ["not begun", "finished", "training", "damaged"]
    assert described["runs"][1]["best_bleu"] == 40.0
    assert described["runs"][1]["bytes"] == sum(path.stat().st_size for path in (runs / "done").rglob("*.*"))


def test_on_a_terminal_words_and_commands_stay_whole(tmp_path: Path) -> None:
    run = tmp_path / "x"
    write_run(run, updates=2)
    record = json.loads((run / "run.json").read_text())
    record["command"] = ["nmt", "train", "tiny.yaml", "--set", "description=two  words", *["--set", "a=b"] * 9]
    (run / "run.json").write_text(json.dumps(record))
    lines = seen_in_terminal(["info", "x"], columns=60, folder=tmp_path, code=0)
    for label in ("command", "next"):
        assert f"{label:<13}{shlex.join(record['command'])}" in lines


def test_a_damaged_checkpoint_of_a_run_is_shown(tmp_path: Path, screen: Screen) -> None:
    write_run(tmp_path / "x", updates=2)
    path = tmp_path / "x" / "checkpoints" / "update-00000200"
    (path / "optimizer.safetensors").write_bytes(b"")
    damage = screen(tmp_path / "x")["damage"]
    assert damage.startswith("checkpoint at update 200: optimizer.safetensors is cut short")
    assert damage.endswith(f"rm -r {path}")


def test_the_best_by_loss_is_the_lowest(tmp_path: Path, nmt: Shell) -> None:
    write_run(tmp_path / "x", updates=4, recipe=tiny_recipe(validation={"metric": "loss"}))
    assert as_json(nmt, tmp_path / "x")["best_validation"]["update"] == 400


def test_a_checkpoint_on_one_screen(tmp_path: Path, screen: Screen) -> None:
    write_run(tmp_path / "x", updates=1)
    path = tmp_path / "x" / "checkpoints" / "update-00000100"
    shown = screen(path)
    assert shown["checkpoint"] == "update 100"
    assert shown["validation"] == "update 100: loss 4.7500, BLEU 11.00"
    assert shown["use"] == f"nmt average {path} -o MODEL"
    (path / "optimizer.safetensors").write_bytes(b"")
    shown = screen(path)
    assert shown["damage"].startswith("optimizer.safetensors is cut short: 0 of ")
    assert "use" not in shown


def test_prepared_data_on_one_screen(tmp_path: Path, screen: Screen, nmt: Shell) -> None:
    data = write_data(tmp_path / "data")
    shown = screen(data)
    assert shown["data"] == "mini, en to de"
    assert shown["train"] == "2,000 pairs, 28,000 and 29,000 pieces"
    assert shown[""] == (
        "words a sentence: mean 12.0 and 12.0, 99 % up to 30 and 30, longest 41 and 41; "
        "pieces a sentence: mean 14.0 and 14.0, 99 % up to 36 and 36, longest 50 and 50"
    )
    assert shown["vocabulary"] == "8,000 pieces, shared"
    assert shown["input"] == "mini.en (train)"
    described = as_json(nmt, data)
    assert described["kind"] == "data"
    assert described["splits"]["train"]["pairs"] == 2000
    assert described["lengths"]["train"]["source"]["words"]["p90"] == 20
    (data / "train.source.ids").write_bytes(b"")
    assert screen(data)["damage"] == "missing, cut short or changed: train.source.ids"


def test_a_damaged_model_is_shown_with_its_damage(tmp_path: Path, screen: Screen) -> None:
    save_tiny(tmp_path / "m", spm_folder=tmp_path)
    tokenizer = tmp_path / "m" / "source.spm"
    tokenizer.write_bytes(bytes(tokenizer.stat().st_size))
    assert screen(tmp_path / "m")["damage"] == "source.spm is not a SentencePiece model"
    file = tmp_path / "m" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:20])
    shown = screen(tmp_path / "m")
    assert shown["damage"].startswith("model.safetensors is cut short: 20 of ")
    assert shown["parameters"] == "unknown: model.safetensors cannot be read"
    assert "use" not in shown


def test_a_run_whose_name_has_a_space_can_be_pasted_and_is_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nmt: Shell, screen: Screen
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = Path("runs/my tiny/checkpoints/update-00000100")
    write_run(Path("runs/my tiny"), updates=1)
    assert screen(checkpoint)["use"] == f"nmt average '{checkpoint}' -o MODEL"
    for command in ("info", "report", "average"):
        assert nmt(command, "runs/my-tinyy").stderr[-1].startswith("fix:   did you mean 'runs/my tiny'? n")
    assert "did you mean" not in nmt("info", "runs/another").stderr[-1]


def test_what_is_nothing_of_ours_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "y.txt").write_text("text")
    cases = {
        "y.txt": ("is a file", "name what nmt train, nmt average or nmt prepare wrote"),
        "nowhere": ("there is no", "name a model, a run, a checkpoint or prepared data; a model on the hub is"),
        "empty": ("it has no config.yaml (a model), run.json (a run) or manifest.json", "name what nmt train"),
    }
    for name, (message, hint) in cases.items():
        with pytest.raises(ModelError) as caught:
            info(tmp_path / name, as_json=False)
        assert message in caught.value.message, name
        assert hint in caught.value.hint, name
        assert caught.value.where == str(tmp_path / name)


NO_HEAVY_IMPORTS = """
import sys
from nmt_cli.cli.app import main
sys.argv = ["nmt", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
heavy = {"torch", "numpy", "sentencepiece", "safetensors", "datasets", "sacrebleu", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""


def test_nothing_heavy_is_imported_and_stdout_is_one_object(tmp_path: Path) -> None:
    write_run(tmp_path / "x", updates=1)
    save_tiny(tmp_path / "m", spm_folder=tmp_path)
    data, for_model = write_data(tmp_path / "data"), NO_HEAVY_IMPORTS.replace('"sentencepiece", ', "")
    for path, script in ((tmp_path / "x", NO_HEAVY_IMPORTS), (tmp_path / "m", for_model), (data, NO_HEAVY_IMPORTS)):
        command = [sys.executable, "-c", script, "info", "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["path"] == str(path)


def test_in_a_pipe_the_screen_is_plain_and_unbroken(
    tmp_path: Path, nmt: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    folder = tmp_path / ("long-" * 30)
    save_tiny(folder, spm_folder=tmp_path)
    outcome = nmt("info", str(folder))
    assert "\x1b" not in outcome.stdout
    assert f"nmt decode -m {folder} < input.txt > output.txt\n" in outcome.stdout
    assert outcome.stderr == []
