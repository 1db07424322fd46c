"""The command line as a whole: wrong arguments, help pages, --quiet and --debug, and how it ends."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NoReturn, get_args, get_origin

import pytest
import typer.main

from nmt_cli.artifacts import info
from nmt_cli.cli.app import commands
from nmt_cli.errors import ModelError, UsageError
from nmt_cli.recipe.schema import DecodingConfig
from tests.artifacts.builders import tiny_recipe, write_run
from tests.cli.conftest import Shell
from tests.forks import WITHOUT_RIGHTS, run_forked

ALL = commands()
COMMANDS = ("prepare", "train", "average", "decode", "score", "info", "recipes", "doctor")
# How typer spells a type.
TYPE = re.compile(r"<\w[^>]*>|\b(?:TEXT|PATH|INTEGER|FLOAT|BOOLEAN)\b")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that can be averaged."""
    write_run(tmp_path / "run", recipe=tiny_recipe(averaging={"last": 1}), updates=1)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("arguments", "error", "where", "fix"),
    [
        ("train", "RECIPE is missing", "nmt train", "nmt train RECIPE; see nmt train --help"),
        ("export runs/x", "--to is missing", "nmt export", "nmt export --to ctranslate2|huggingface; see"),
        ("decode --beam four", "--beam is 'four', but should be a whole number", "--beam", "nmt decode --beam N; see"),
        ("average x --last 0", "--last is '0', but should be greater than or equal to 1", "--last", "nmt average"),
        ("decode --format xml", "--format: 'xml' is not one of 'text', 'tsv', 'jsonl'", "--format", "nmt decode"),
        ("decode --bem 4", "nmt decode has no option --bem", "--bem", "did you mean --beam? nmt decode --help lists"),
        (
            "decode --lenpen 0.6",
            "nmt decode has no option --lenpen",
            "--lenpen",
            "here it is --length-penalty-form length --length-penalty",
        ),
        (
            "train demo --vocab-size 8000",
            "nmt train has no option --vocab-size",
            "--vocab-size",
            "here it is nmt prepare CORPUS --set tokenizer.vocab_size=N; docs/",
        ),
        ("info --lenpen 0.6", "nmt info has no option --lenpen", "--lenpen", "nmt info --help lists them all"),
        ("trian base", "there is no command 'trian'", "nmt trian", "did you mean nmt train?"),
        ("translate", "there is no command 'translate'", "nmt translate", "here it is nmt decode; docs/"),
        ("--quiet", "missing command", "nmt", "see nmt --help"),
        ("decode --beam", "option '--beam' requires an argument", "--beam", "see the command's --help"),
        (
            "decode a.txt b.txt",
            "got unexpected extra arguments (b.txt)",
            "nmt decode",
            "for a file, nmt decode -i FILE",
        ),
    ],
)
def test_a_wrong_argument_is_told_in_three_lines(nmt: Shell, arguments: str, error: str, where: str, fix: str) -> None:
    outcome = nmt(*arguments.split())
    assert outcome.stderr[:2] == [f"error: {error}", f"at:    {where}"]
    assert outcome.stderr[2].startswith(f"fix:   {fix}")
    assert (outcome.code, outcome.stdout) == (2, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_help_page_has_one_line_one_example_and_readable_values(
    nmt: Shell, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    outcome = nmt(command, "--help")
    assert (outcome.code, outcome.stderr) == (0, [])
    paragraphs = [part.split("\n") for part in re.sub(" +\n", "\n", outcome.stdout).strip("\n").split("\n\n")]
    usage, about, example = (" ".join(line.strip() for line in lines) for lines in paragraphs[:3])
    assert re.fullmatch(rf"Usage: nmt {command} \[OPTIONS\]( [\[{{][A-Z|]+[\]}}](\.\.\.)?)?", usage)
    assert [len(lines) for lines in paragraphs[1:3]] == [1, 1], "what the command does, and an example, fit a line each"
    assert about.endswith(".")
    assert example.startswith(f"Example: nmt {command} ")
    assert not TYPE.search(outcome.stdout)
    assert "--quiet" in outcome.stdout
    assert "--debug" in outcome.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_of_a_help_page_has_options_that_exist(command: str) -> None:
    (example,) = re.findall(r"^Example: nmt \w+ (.*)", ALL[command].help or "", flags=re.MULTILINE)
    assert {word for word in shlex.split(example) if word.startswith("-")} <= options_of(command)


def test_every_value_has_a_name_of_its_own() -> None:
    for command in ALL.values():
        for parameter in command.params:
            is_flag = isinstance(parameter, typer.core.TyperOption) and parameter.is_flag
            assert is_flag or parameter.metavar, f"nmt {command.name}: {parameter.name}"


def test_decode_has_an_option_for_each_decoding_setting_with_its_values() -> None:
    options = {parameter.name: parameter for parameter in ALL["decode"].params}
    for name, field in DecodingConfig.model_fields.items():
        option = options[name]
        assert option.opts[0] == f"--{name.replace('_', '-')}"
        assert option.default is None, "the recipe is the home of defaults"
        if get_origin(field.annotation) is Literal:
            assert (option.metavar or "").split("|") == list(get_args(field.annotation))


def test_nmt_alone_shows_the_commands(nmt: Shell) -> None:
    outcome = nmt()
    assert (outcome.code, outcome.stderr) == (0, [])
    assert all(command in outcome.stdout for command in COMMANDS)


@pytest.mark.parametrize("arguments", ["--quiet average {}", "average -q {}", "average {} --quiet"])
def test_quiet_stands_before_or_after_the_command(nmt: Shell, run: Path, arguments: str) -> None:
    outcome = nmt(*arguments.format(run).split())
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "", [])
    assert (run / "averaged").is_dir()


def test_without_quiet_it_talks(nmt: Shell, run: Path) -> None:
    assert nmt("average", str(run)).stderr[-1].startswith("next: nmt decode ")


@pytest.mark.parametrize("arguments", ["--debug info nothing", "info nothing --debug", "info --debug nothing"])
def test_debug_stands_before_or_after_the_command(monkeypatch: pytest.MonkeyPatch, arguments: str) -> None:
    from nmt_cli.cli.app import main

    monkeypatch.setattr(sys, "argv", ["nmt", *arguments.split()])
    with pytest.raises(ModelError, match="there is no nothing"):
        main()


@pytest.mark.parametrize(("ending", "code"), [(KeyboardInterrupt(), 130), (typer.Exit(75), 75), (typer.Exit(), 0)])
def test_endings_that_are_no_errors(
    nmt: Shell, monkeypatch: pytest.MonkeyPatch, run: Path, ending: BaseException, code: int
) -> None:
    def end(run: object, *, history: object) -> NoReturn:
        raise ending

    monkeypatch.setattr(info, "describe_run", end)
    outcome = nmt("info", str(run))
    assert (outcome.code, outcome.stdout, outcome.stderr) == (code, "", [])


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    from nmt_cli.cli.app import main

    def fail(run: object, *, history: object) -> NoReturn:
        raise ZeroDivisionError

    monkeypatch.setattr(info, "describe_run", fail)
    monkeypatch.setattr(sys, "argv", ["nmt", "info", str(run)])
    with pytest.raises(ZeroDivisionError):
        main()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["train", "demo", "--dry-run"]])
def test_a_closed_stdout_ends_it_quietly(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = run_forked([sys.executable, "-m", "nmt_cli", *arguments], stdout=writer)
    os.close(writer)
    assert (process.returncode, process.stderr) == (141, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["recipes"],
        ["score", "ref", "-i", "hyp", "--fail-under", "BLEU=99"],
    ],
    ids=" ".join,
)
def test_a_full_disk_behind_stdout_is_told_in_three_lines(run: Path, arguments: list[str]) -> None:
    (run.parent / "ref").write_text("a small house\n", encoding="utf-8")
    (run.parent / "hyp").write_text("the old sea\n", encoding="utf-8")
    with Path("/dev/full").open("wb") as full:
        process = run_forked([sys.executable, "-m", "nmt_cli", *arguments], stdout=full.fileno(), cwd=run.parent)
    assert process.returncode == 4
    assert process.stderr.splitlines()[-3:] == [
        "error: cannot write stdout: the disk is full",
        "at:    stdout",
        "fix:   free some space, then give the same command again, or write to another disk",
    ]
    assert "Traceback" not in process.stderr


def test_a_folder_that_this_user_may_not_enter_is_told(tmp_path: Path) -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0)
        command = [*WITHOUT_RIGHTS, sys.executable, "-m", "nmt_cli", "info", f"{folder}/mine"]
        process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (2, "")
    error, fix = process.stderr.splitlines()
    assert error.startswith(f"error: permission denied: {folder}")
    assert fix == "fix:   give another path, or ask its owner for access"


def test_a_run_that_this_user_may_not_enter_hides_no_others(tmp_path: Path, run: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    command = [*WITHOUT_RIGHTS, sys.executable, "-m", "nmt_cli", "info", str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert run.name in process.stdout


def test_a_path_that_this_user_may_not_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "text").touch(mode=0)
    command = [*WITHOUT_RIGHTS, sys.executable, "-m", "nmt_cli", "decode", "-i", "text"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == UsageError.exit_code
    assert process.stderr.splitlines()[:2] == ["error: --input: path 'text' is not readable", "at:    --input"]


def options_of(command: str) -> set[str]:
    return {option for parameter in ALL[command].params for option in parameter.opts}


@pytest.mark.parametrize(
    ("arguments", "code"), [("recipes", 0), ("recipes base", 0), ("score ref -i hyp --fail-under BLEU=99", 8)]
)
def test_a_closed_stdout_changes_no_exit_code(tmp_path: Path, arguments: str, code: int) -> None:
    (tmp_path / "ref").write_text("a small house\n", encoding="utf-8")
    (tmp_path / "hyp").write_text("the old sea\n", encoding="utf-8")
    command = f"{shlex.quote(sys.executable)} -m nmt_cli {arguments} >&-"
    assert subprocess.run(command, shell=True, cwd=tmp_path, check=False).returncode == code


def test_stdout_is_utf8_and_names_of_files_are_as_they_are(tmp_path: Path) -> None:
    text = "\u00e9\udce9"
    (tmp_path / text).write_text("a small house\n", encoding="utf-8")
    command = [sys.executable, "-m", "nmt_cli", "score", text, "-i", text, "--json"]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (process.returncode, process.stderr) == (0, b"")
    assert os.fsencode(text) in process.stdout
