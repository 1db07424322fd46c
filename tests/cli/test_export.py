"""`nmt export` and `nmt import`: what they say, where they write, and what they refuse."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nmt_cli.api import Translator
from tests.artifacts.builders import save_tiny, tiny_recipe, write_run
from tests.forks import run_forked
from tests.interchange.builders import write_marian

if TYPE_CHECKING:
    from tests.cli.conftest import Shell

FIGURE = r"log-probabilities per piece differ by at most \d\.\de-0\d"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nmt_cli", *arguments]
    environment = {**os.environ, "NO_COLOR": "1"}
    return run_forked(command, cwd=folder, env=environment)


def test_a_model_goes_out_comes_in_and_translates(tmp_path: Path, nmt: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    recipe = tiny_recipe(decoding={"beam": 1, "max_extra_tokens": 3}, model={"norm_epsilon": 1e-5})
    save_tiny(tmp_path / "m", spm_folder=tmp_path, recipe=recipe)
    out = run(tmp_path, "export", "m", "--to", "huggingface")
    assert (out.returncode, out.stdout) == (0, ""), out.stderr
    begun, first, last = out.stderr.splitlines()
    assert begun == "comparing with transformers on 100 lines"
    assert re.fullmatch(f"compared on 100 lines: {FIGURE}", first)
    assert last == "m-huggingface: written; how to use it is in its README.md"
    monkeypatch.chdir(tmp_path)
    back = nmt("import", "m-huggingface", "-o", "back", "--languages", "en-nl")
    assert (back.code, back.stdout) == (0, "")
    assert back.stderr[1] == "back: en-nl, 0.0 million parameters"
    assert re.fullmatch(
        r"compared with transformers on \d+ lines: log-probabilities per piece differ by .*", back.stderr[2]
    )
    assert back.stderr[3] == "next: nmt decode -m back < input.txt > output.txt"
    lines = ["a small house", "by the old sea"]
    models = [Translator.from_pretrained(tmp_path / name, device="cpu") for name in ("m", "back")]
    before, after = (model.translate(lines, beam=1, max_extra_tokens=3) for model in models)
    assert [found.text for found in before] == [found.text for found in after] != ["", ""]


def test_the_export_lies_beside_the_model_and_is_named_after_it(tmp_path: Path, nmt: Shell) -> None:
    pytest.importorskip("ctranslate2")
    write_run(tmp_path / "runs" / "x", updates=1)
    assert nmt("average", str(tmp_path / "runs" / "x"), "--last", "1").code == 0
    done = nmt("export", str(tmp_path / "runs" / "x"), "--to", "ctranslate2", "--precision", "float16")
    assert (done.code, done.stdout) == (0, "")
    assert done.stderr[0] == f"model: {tmp_path}/runs/x/averaged"
    folder = tmp_path / "runs" / "x" / "averaged-ctranslate2-float16"
    names = ["README.md", "config.json", "model.bin", "shared_vocabulary.json", "source.spm", "target.spm"]
    assert sorted(path.name for path in folder.iterdir()) == names
    again = nmt("export", str(tmp_path / "runs" / "x"), "--to", "ctranslate2", "--precision", "float16")
    assert again.code == 5
    assert again.stderr[-3:] == [
        f"error: {folder} exists already: a CTranslate2 model of nmt export",
        f"at:    {folder}",
        "fix:   add --overwrite to replace it, or choose another folder with -o",
    ]


def test_the_current_folder_may_be_the_model_but_not_the_output(
    tmp_path: Path, nmt: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ctranslate2")
    save_tiny(tmp_path / "m", spm_folder=tmp_path)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for command in (["export", "../m", "--to", "ctranslate2"], ["import", "../m"], ["average", "../m", "../m"]):
        done = nmt(*command, "-o", ".")
        assert (done.code, done.stderr[0]) == (2, "error: -o . names no folder")
    monkeypatch.chdir(tmp_path / "m")
    assert nmt("export", ".", "--to", "ctranslate2").code == 0
    assert (tmp_path / "m-ctranslate2" / "model.bin").is_file()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--to", "onnx"], ["'onnx' is not one of 'ctranslate2', 'huggingface'", "at:    --to", "nmt export --help"]),
        (["--to", "ctranslate2", "--precision", "int4"], ["'int8_float32'", "--precision", "nmt export --help"]),
        (["--to", "huggingface", "--precision", "int8"], ["is in float32", "--precision", "leave --precision out"]),
    ],
)
def test_wrong_arguments_are_answered(arguments: list[str], expected: list[str], nmt: Shell) -> None:
    done = nmt("export", "model", *arguments)
    assert done.code == 2
    for line, part in zip(done.stderr, expected, strict=True):
        assert part in line


def test_text_for_the_comparison_is_read_from_a_file_or_stdin(
    tmp_path: Path, nmt: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ctranslate2")
    save_tiny(tmp_path / "m", spm_folder=tmp_path)
    (tmp_path / "text").write_text("".join(f"a house {number}\n" for number in range(30)), encoding="utf-8")
    export = ["export", str(tmp_path / "m"), "--to", "ctranslate2"]
    done = nmt(*export, "-i", str(tmp_path / "text"))
    assert done.code == 0
    assert done.stderr[0] == "comparing with CTranslate2 (float32) on 30 lines"
    assert done.stderr[1].startswith("compared on 30 lines: ")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a house\n\n")))
    done = nmt(*export, "-i", "-", "--overwrite")
    assert (done.code, done.stderr[1]) == (4, "at:    --input")
    assert "1 of its 2 lines can be compared" in done.stderr[0]
    assert nmt(*export, "-i", str(tmp_path / "none"), "--overwrite").code == 4


def test_what_is_no_model_is_named(tmp_path: Path, nmt: Shell) -> None:
    (tmp_path / "folder").mkdir()
    write_marian(tmp_path / "opus")
    done = nmt("export", str(tmp_path / "folder"), "--to", "ctranslate2")
    assert (done.code, "is not a model directory" in done.stderr[0]) == (5, True)
    done = nmt("export", str(tmp_path / "opus"), "--to", "ctranslate2")
    assert (done.code, done.stderr[-1]) == (5, f"fix:   nmt import {tmp_path}/opus -o models/opus")
    done = nmt("import", str(tmp_path / "folder"), "-o", str(tmp_path / "m"))
    assert done.code == 5
    assert (
        done.stderr[0] == f"error: {tmp_path}/folder is no model to import: it has neither config.json nor a .npz file"
    )


def test_info_says_that_a_model_was_imported(tmp_path: Path, nmt: Shell) -> None:
    write_marian(tmp_path / "opus")
    assert nmt("import", str(tmp_path / "opus"), "-o", str(tmp_path / "m")).code == 0
    done = nmt("info", str(tmp_path / "m"))
    assert done.code == 0
    assert re.search(r"weights +imported from another program", done.stdout)
