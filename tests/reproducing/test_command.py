"""The process `nmt reproduce`: a rehearsal of the chain on a hub of this machine, stopped, killed, and finished."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest
import typer

from nmt_cli.cli.reproduce import reproduce
from nmt_cli.errors import RecipeError, ScoreError, UsageError
from nmt_cli.reproducing import chain, needs
from nmt_cli.reproducing.chain import Outcome, StageEnd, Stop
from nmt_cli.reproducing.experiments import EXPERIMENTS
from nmt_cli.reproducing.plan import plan_reproduction
from nmt_cli.reproducing.stages import Stage, plan_stages
from tests.hub import Hub, WithDatasets, serve_wmt14
from tests.preparing.corpus_files import invented_pairs
from tests.reproducing.test_needs import GPUS
from tests.waiting import wait_until

SECONDS = 300
LIMIT = 1200
UPDATES = 120
# A model of which an update takes some milliseconds.
SETTINGS = {
    "model": "{encoder_layers: 1, decoder_layers: 1, d_model: 16, d_ff: 32, heads: 2, d_k: 8, d_v: 8}",
    "model.embedding_multiple": 8,
    "training.updates": UPDATES,
    "training.batch_tokens": 300,
    "training.max_tokens_per_device": 512,
    "training.precision": "fp32",
    "decoding": "{beam: 2, max_extra_tokens: 3}",
}
ARGUMENTS = ["reproduce", "base-en-de", "--limit", str(LIMIT)]
ARGUMENTS += [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
RUN = Path("runs") / f"base-limit-{LIMIT}"

JUDGED = {
    "pairs read": f"{LIMIT:,}",
    "newstest2013 pairs": "3,000",
    "newstest2014 pairs": "3,003",
    "vocabulary": f"{LIMIT:,}",
    "updates": str(UPDATES),
    "checkpoints": "5",
    "lines": "100",
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with wmt/wmt14 in its real schema, and as many held-out pairs as the real one."""
    pairs = invented_pairs(LIMIT + 300 + 6_003, seed=14)
    valid, test, train = pairs[:3_000], pairs[3_000:6_003], pairs[6_003:]
    folder = tmp_path_factory.mktemp("hub")
    with serve_wmt14(folder, train_pairs=train, valid_pairs=valid, test_pairs=test) as running:
        yield running


# A training that takes update 40 when it has been told to stop.
UNTIL_STOPPED = """
import time
from nmt_cli.cli.app import main
from nmt_cli.training.loop import StopSignal
from nmt_cli.training.update import Updater

launch, receive, signals = Updater.launch, StopSignal._receive, []

def launch_when_stopped(self, *arguments, number, **options):
    while number == 40 and not signals:
        time.sleep(0.01)
    return launch(self, *arguments, number=number, **options)

def noted(self, number):
    signals.append(number)
    receive(self, number)

Updater.launch, StopSignal._receive = launch_when_stopped, noted
main()
"""


class Stages:
    """Runs each stage's command in a fork, in place of a process that begins anew, and stops the first training."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self._folder, self._environment = folder, {**os.environ, **hub.environment(folder / "home"), "NO_COLOR": "1"}
        self.started: list[str] = []
        self.told = ""

    def __call__(self, arguments: Sequence[str], *, stdout: Path | None) -> StageEnd:
        self.started.append(arguments[0])
        is_first_training, sent = self.started == ["prepare", "train"], None
        program = ["-c", UNTIL_STOPPED] if is_first_training else ["-m", "nmt_cli"]
        command = [sys.executable, *program, *arguments]
        with WithDatasets(command, env=self._environment, stdout=PIPE, stderr=PIPE, text=True) as process:
            try:
                if is_first_training:
                    wait_for_updates(self._folder, 20, process)
                    sent = signal.SIGTERM
                    process.send_signal(sent)
                written, self.told = process.communicate(timeout=SECONDS)
            finally:
                process.kill()
        if stdout is not None:
            stdout.write_text(written)
        return StageEnd(process.returncode, sent)


def test_a_rehearsal_is_stopped_and_goes_on_to_its_end(
    hub: Hub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    stages = Stages(hub, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(chain, "_run_nmt", stages)
    monkeypatch.setattr(sys, "argv", ["nmt", *ARGUMENTS])
    caplog.set_level("INFO", logger="nmt_cli")

    def again() -> str:
        stages.started.clear()
        caplog.clear()
        reproduce("base-en-de", limit=LIMIT, settings=[f"{key}={value}" for key, value in SETTINGS.items()])
        return capsys.readouterr().out

    with pytest.raises(typer.Exit) as ending:
        again()
    assert ending.value.exit_code == 75
    assert capsys.readouterr().out.splitlines()[1].startswith("prepare\t")
    assert "saved: the same command continues" in stages.told
    assert "stopped in train; to go on: nmt reproduce base-en-de --limit 1200 --set" in caplog.text

    table = again()
    assert stages.started == ["train", "decode", "score", "average", "decode", "score"]
    assert "[1/7] prepare: finished before" in caplog.text
    assert "A rehearsal on 1,200 pairs: every stage has run, and its scores mean nothing." in caplog.text
    resumed = [json.loads(line) for line in (tmp_path / RUN / "metrics.jsonl").read_text().splitlines()]
    assert any(event["event"] == "resume" and event["update"] >= 20 for event in resumed)
    check_table(table)
    check_report(tmp_path)

    before = len(hub.requests)
    (tmp_path / RUN / "reproduction" / "newstest2014.de").write_text("something else\n")
    assert again() == table
    assert stages.started == ["decode"]
    assert len(hub.requests) == before


@pytest.mark.slow
def test_a_rehearsal_is_stopped_and_killed_and_goes_on_to_its_end(hub: Hub, tmp_path: Path) -> None:
    with started(hub, tmp_path) as process:
        wait_for_updates(tmp_path, 20, process)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=SECONDS)
    assert process.returncode == 75
    assert "saved: the same command continues" in told
    assert "stopped in train; to go on: nmt reproduce base-en-de --limit 1200 --set" in told

    with started(hub, tmp_path) as process:
        wait_for_updates(tmp_path, 40, process)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    wait_until_free(tmp_path)

    with started(hub, tmp_path) as process:
        table, told = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, told
    assert "[1/7] prepare: finished before" in told
    assert re.search(rf"resuming {RUN} after update [1-9]", told)
    assert "A rehearsal on 1,200 pairs: every stage has run, and its scores mean nothing.\n" in told
    check_table(table)
    check_report(tmp_path)


def check_table(table: str) -> None:
    header, *rows = (line.split("\t") for line in table.splitlines())
    assert header == ["stage", "figure", "expected", "measured", "verdict"]
    named = [row[0] for row in rows if row[0]]
    texts = ("newstest2013", "newstest2014")
    translated = [[f"{what} {text}" for what in ("decode", "score")] for text in texts]
    assert named == ["prepare", "train", *translated[0], "average", *translated[1]]
    for _, name, expected, measured, verdict in rows:
        if name in JUDGED:
            assert (expected, measured, verdict) == (JUDGED[name], JUDGED[name], "as expected"), name
        else:
            assert verdict == "not comparable: rehearsal", name
    bleu = [(row[2], float(row[3])) for row in rows if row[1] == "paper BLEU"]
    assert [expected for expected, _ in bleu] == ["25.8 ± 0.5", "27.3 ± 0.5"]
    assert all(0 <= measured < 30 for _, measured in bleu)


def check_report(folder: Path) -> None:
    report = json.loads((folder / RUN / "reproduction.json").read_text())
    assert (report["experiment"], report["limit"]) == ("base-en-de", LIMIT)
    assert (report["is_complete"], report["is_reproduced"]) == (True, None)
    figures = {one["figure"]: one for stage in report["stages"] for one in stage["figures"]}
    assert figures["paper BLEU"]["expected"]["source"] == "Table 2"
    scores = json.loads((folder / RUN / "reproduction" / "newstest2014.scores.json").read_text())["scores"]
    assert figures["paper BLEU"]["measured"] == scores["paper-BLEU"]["score"]
    assert figures["sacreBLEU"]["measured"] == scores["BLEU"]["score"]
    commands = [stage["command"] for stage in report["stages"]]
    page = (folder / RUN / "reproduction.md").read_text()
    assert all(one in page for one in commands)
    assert commands[0].startswith("nmt prepare wmt14-en-de --limit 1200 --set tokenizer.vocab_size=1200")


@contextmanager
def started(hub: Hub, folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "nmt_cli", *ARGUMENTS]
    environment = {**os.environ, **hub.environment(folder / "home"), "NO_COLOR": "1"}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_updates(folder: Path, update: int, process: subprocess.Popen[str]) -> None:
    """Until the training's log has come so far; the pipes hold what is said until then."""
    file = folder / RUN / "metrics.jsonl"
    wait_until(
        lambda: file.is_file() and any(event["update"] >= update for event in logged(file)),
        process=process,
        seconds=SECONDS,
    )


def logged(file: Path) -> list[dict[str, int]]:
    whole, _, _ = file.read_text().rpartition("\n")
    return [event for event in map(json.loads, whole.splitlines()) if event["event"] == "train"]


def wait_until_free(folder: Path) -> None:
    """Until the training, which the kernel has sent SIGTERM when its parent died, has saved and ended."""
    lock = folder / "runs" / f".{RUN.name}.lock"
    wait_until(lambda: not lock.exists(), seconds=SECONDS)


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(needs, "measure_machine", lambda recipe: GPUS)


@pytest.mark.usefixtures("small_machine")
def test_a_dry_run_tells_commands_needs_and_expectations_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce("big-en-de", dry_run=True)
    told = capsys.readouterr().out
    assert told.startswith("Transformer big, WMT 2014 English to German\non 8 x GPU in bf16\n\n[1/7] prepare\n")
    commands = re.findall(r"^ +(nmt .*)$", told, flags=re.MULTILINE)
    scores = "-l en-de -m paper-bleu,bleu,chrf --json >"
    search = "--overwrite --beam 4 --length-penalty 0.6 --length-penalty-form gnmt --max-extra-tokens 50"
    folder = "runs/big/reproduction"
    assert commands == [
        "nmt prepare wmt14-en-de",
        "nmt train big",
        f"nmt decode -m runs/big/model -i data/wmt14-en-de/valid.en -o {folder}/newstest2013.de {search}",
        f"nmt score data/wmt14-en-de/valid.de -i {folder}/newstest2013.de {scores} {folder}/newstest2013.scores.json",
        "nmt average runs/big",
        f"nmt decode -m runs/big/averaged -i data/wmt14-en-de/test.en -o {folder}/newstest2014.de {search}",
        f"nmt score data/wmt14-en-de/test.de -i {folder}/newstest2014.de {scores} {folder}/newstest2014.scores.json",
    ]
    assert "expect: paper BLEU 28.4 ± 0.5 (Table 2)" in told
    assert "expect: perplexity 4.33 ± 0.40 (Table 3)" in told
    assert "expect: pairs read 4,508,785 ± 15,000 (wmt/wmt14 on the hub, de-en)" in told
    assert re.search(r"disk: +[\d.]+ GB in runs/big \(.* free\)", told)
    assert re.search(r"time: +[\d.]+ to [\d.]+ hours \(8 x GPU in bf16: 20 to 50 % of", told)
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "data").exists()


@pytest.mark.usefixtures("small_machine")
def test_without_figures_in_the_paper_newstest2013_is_not_translated(capsys: pytest.CaptureFixture[str]) -> None:
    reproduce("base-en-fr", dry_run=True)
    told = capsys.readouterr().out
    assert "[5/5] score newstest2014" in told
    assert "-l en-fr" in told
    assert "expect: paper BLEU 38.1 ± 0.5 (Table 2)" in told


def test_mistakes_in_the_arguments_are_answered() -> None:
    with pytest.raises(UsageError) as caught:
        reproduce("base-en-de", limit=10)
    assert caught.value.message == "--limit 10 is too little text for a vocabulary"
    assert caught.value.hint == "nmt reproduce base-en-de --limit 10000 takes minutes"
    with pytest.raises(RecipeError, match=r"unknown key .model\.dropuot."):
        reproduce("base-en-de", settings=["model.dropuot=0.2"])
    with pytest.raises(UsageError, match=r"^--data \. names no folder\n") as caught:
        reproduce("base-en-de", data=Path("."))
    assert caught.value.hint == "for example --data data/mine"
    with pytest.raises(UsageError, match=r"^-o \.\. names no folder\n") as caught:
        reproduce("base-en-de", output=Path(".."))
    assert (caught.value.where, caught.value.hint) == ("--output", "for example -o runs/mine")


def stages() -> list[Stage]:
    return plan_stages(plan_reproduction(EXPERIMENTS["base-en-de"], settings=(), limit=None, data=None, run=None))


def finish(outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the command as it ends after a chain with this outcome."""
    monkeypatch.setattr(chain, "run_chain", lambda *arguments: outcome)
    monkeypatch.setattr(sys, "argv", ["nmt", "reproduce", "base-en-de"])
    reproduce("base-en-de")


def scored(value: float) -> Outcome:
    stage = stages()[-1]
    return Outcome([(stage, [stage.figure("paper BLEU", value), stage.figure("sacreBLEU", value - 1.5)])])


@pytest.mark.usefixtures("small_machine")
def test_a_bleu_that_is_too_low_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ScoreError) as caught:
        finish(scored(25.1), monkeypatch)
    message = "score newstest2014: paper BLEU is 25.10, but 27.3 ± 0.5 was expected: below by 2.20"
    assert caught.value.message == message
    assert caught.value.hint.startswith("look in the table for the first figure that is not as expected")
    assert caught.value.exit_code == 8
    assert "score newstest2014\tpaper BLEU\t27.3 ± 0.5\t25.10\tbelow by 2.20\n" in capsys.readouterr().out
    finish(scored(27.0), monkeypatch)  # raises nothing


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize(
    ("ended", "code", "words"),
    [
        (StageEnd(6, None), 6, "average failed with exit code 6: its own message is above"),
        (StageEnd(-9, None), 137, "average was killed (SIGKILL), as the system does when memory runs out"),
        (StageEnd(-11, None), 139, "average was killed by signal 11 (SIGSEGV)"),
        (StageEnd(1, signal.SIGTERM), 75, "stopped in average; to go on: nmt reproduce base-en-de"),
        (StageEnd(-2, signal.SIGINT), 130, "stopped in average; to go on: nmt reproduce base-en-de"),
    ],
)
def test_a_stage_that_does_not_end_well_gives_its_code_and_how_to_go_on(
    ended: StageEnd, code: int, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="nmt_cli"), pytest.raises(typer.Exit) as ending:
        finish(Outcome([], Stop(stages()[4], ended)), monkeypatch)
    assert ending.value.exit_code == code
    assert words in caplog.messages
    assert caplog.messages[-1].endswith("nmt reproduce base-en-de")
