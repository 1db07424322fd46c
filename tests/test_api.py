"""The Python API: what a program or a notebook sees."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu

from nmt_cli import NmtError, ScoreReport, Translator, score
from nmt_cli.errors import DataError, UsageError
from tests.artifacts.builders import save_tiny, write_run
from tests.forks import run_forked


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    folder = tmp_path_factory.mktemp("model")
    save_tiny(folder / "model", spm_folder=folder)
    return Translator.from_pretrained(folder / "model", device="cpu")


def test_from_pretrained_takes_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "run", updates=1)
    with pytest.raises(NmtError, match=r"(?m)^the run .* has no finished model\n.*\nfix: let it finish") as caught:
        Translator.from_pretrained(tmp_path / "run", device="cpu")
    assert caught.value.hint.endswith(f"nmt average {tmp_path / 'run'}")
    save_tiny(tmp_path / "run" / "model", spm_folder=tmp_path)
    assert Translator.from_pretrained(str(tmp_path / "run"), device="cpu").directions.targets == ["de"]


def test_a_translator_says_what_it_is(translator: Translator) -> None:
    assert repr(translator) == "<Translator en-de: torch, fp32, cpu>"
    assert list(map(str, translator.directions.pairs)) == ["en-de"]


def test_any_iterable_of_lines_is_translated(translator: Translator) -> None:
    lines = ["a small house", "", "by the old sea"]
    expected = translator.translate(lines)
    assert translator.translate(line for line in lines) == expected
    assert translator.translate(dict.fromkeys(lines)) == expected
    forced = translator.translate(iter(lines[:1]), prefixes=iter(["the"]))
    assert forced[0].text.startswith("the")


def test_numbers_of_numpy_are_numbers(translator: Translator) -> None:
    widths: Any = np.arange(1, 3)  # not an int to a type checker
    for beam in widths:
        found = translator.translate(["a small house"], beam=beam, length_penalty=np.float64(0.5))
        assert found == translator.translate(["a small house"], beam=int(beam), length_penalty=0.5)


def test_a_text_or_another_value_in_place_of_lines_is_refused(translator: Translator) -> None:
    unchecked: Any = translator.translate  # a type checker would refuse these
    for lines, prefixes in (("ab", None), ([b"a"], None), (["a", None], None), (["a", "b"], "De"), (["a"], [None])):
        with pytest.raises(TypeError, match="translate takes lines, each of them a string"):
            unchecked(lines, prefixes=prefixes)


def test_an_empty_list_of_models_is_refused() -> None:
    with pytest.raises(UsageError, match="the list of models is empty\nfix: give at least one; "):
        Translator.from_pretrained([])


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_a_forked_process_does_not_wait_for_threads_that_it_lacks(engine: str, tmp_path: Path) -> None:
    pytest.importorskip(engine)
    save_tiny(tmp_path / "model", spm_folder=tmp_path)
    program = """
import os, sys, torch
from nmt_cli import NmtError, Translator
translator = Translator.from_pretrained(sys.argv[1], device="cpu", engine=sys.argv[2])
torch.set_num_threads(2)
print(translator.translate(["a small house"])[0].text, flush=True)
if os.fork() == 0:
    for _ in range(2):
        try:
            print(translator.translate(["a small house"])[0].text, flush=True)
        except NmtError as error:
            print(error.message, error.hint, sep="; ", flush=True)
        torch.set_num_threads(1)
    os._exit(0)
os.wait()
"""
    told = run_forked([sys.executable, "-c", program, str(tmp_path / "model"), engine]).stdout.splitlines()
    refused = "this process was forked after the model was opened; start the process by spawn, and open the model there"
    if engine == "torch":
        assert told == [told[0], f"{refused}; or call torch.set_num_threads(1) in it first", told[0]]
    else:
        assert told == [told[0], refused, refused]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"beam": 0}, "beam is 0, but should be greater than 0\nfix: write a whole number greater than 0"),
        ({"nbest": 9}, "nbest=9 needs a beam of at least 9, but it is 4\nfix: add beam=9, or take nbest=4"),
        ({"mbr": "x"}, "there is no utility called 'x'\nfix: take chrf or bleu"),
        (
            {"beam": 1, "mbr": "chrf"},
            "mbr chooses among several translations of a line, and there is one\nfix: add beam=8, or samples=32",
        ),
    ],
)
def test_an_error_reads_as_python_and_includes_the_fix(
    translator: Translator, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(NmtError) as caught:
        translator.translate(["a"], **options)
    assert str(caught.value) == text


def test_words_in_an_error_are_quoted_and_a_place_is_told(tmp_path: Path) -> None:
    with pytest.raises(NmtError) as caught:
        Translator.from_pretrained(tmp_path, engine="ctranslate2", precision="bf16")
    assert str(caught.value).endswith('fix: take fp32 or int8, or engine="torch"')
    with pytest.raises(NmtError) as caught:
        Translator.from_pretrained(tmp_path / "none")
    assert f"\nat: {tmp_path / 'none'}\nfix: check the path; " in str(caught.value)


def test_a_score_is_sacrebleus() -> None:
    hypotheses = ["a small house by the sea", "the old man sees a book"]
    references = ["a small house at the sea", "the old man saw the book"]
    report = score(iter(hypotheses), iter(references))
    assert isinstance(report, ScoreReport)
    assert report.value == sacrebleu.corpus_bleu(hypotheses, [references]).score
    others = [["one small house by the sea", "an old man sees the book"], references]
    reports = score(hypotheses, others, metrics=["chrf", "ter"])
    assert [(one.name, one.metric) for one in reports] == [("chrf", "chrF2"), ("ter", "TER")]
    assert reports[0].value == pytest.approx(sacrebleu.corpus_chrf(hypotheses, others).score, abs=1e-9)
    assert reports[1].value == sacrebleu.corpus_ter(hypotheses, others).score
    assert score(hypotheses, references, metrics=report.metric) == report  # the title that a report shows
    paper = score(hypotheses, references, metrics="paper-bleu", language="de")
    assert paper.metric == "paper-BLEU"
    assert score(hypotheses, references, metrics="paper-bleu", language="deu") == paper
    for language in ("zh", "ZH", "zh-CN", "zho_Hans"):
        chinese = score(["我喜欢吃红苹果。"], ["我喜欢吃苹果。"], language=language)
        assert (
            chinese.value == sacrebleu.corpus_bleu(["我喜欢吃红苹果。"], [["我喜欢吃苹果。"]], tokenize="zh").score > 20
        )


def test_text_without_spaces_is_told_to_name_its_language(caplog: pytest.LogCaptureFixture) -> None:
    for language in (None, "Chinese"):
        score(["我喜欢吃红苹果。"], ["我喜欢吃苹果。"], language=language)
        assert "language='zh'" in caplog.text
        caplog.clear()
    score(["我喜欢吃红苹果。"], ["我喜欢吃苹果。"], language="zh")
    assert not caplog.text


def test_texts_and_metrics_that_cannot_be_scored_are_refused() -> None:
    for hypotheses, references in ((["a"], ["a", "b"]), ([], []), (["a"], [["a"], ["a", "b"]])):
        with pytest.raises(DataError, match=r"there are \d hypotheses and \d references\nfix: give one reference for"):
            score(hypotheses, references)
    for hypothesis, reference, side in (("a\ud800", "a", "hypotheses"), ("a", "a\ud800", "references")):
        with pytest.raises(DataError, match=rf"the text holds half a character, .*\nat: line 2 of the {side}\n"):
            score(["a", hypothesis], ["a", reference], metrics="paper-bleu", language="de")
    unchecked: Any = score  # a type checker would refuse these
    for no_lines in (("ab", "ab"), (["a"], "a"), (["a", "b"], ["a", ["a", "b"]]), ([1], ["a"])):
        with pytest.raises(TypeError, match="score takes lists of lines"):
            unchecked(*no_lines)
    with pytest.raises(UsageError, match="there is no metric 'meteor'\nfix: take one or more of bleu,paper-bleu,"):
        score(["a"], ["a"], metrics="meteor")
    for language in (None, ""):
        with pytest.raises(UsageError, match='the target language\nfix: add its code, such as language="de"'):
            score(["a"], ["a"], metrics="paper-bleu", language=language)
    with pytest.raises(UsageError, match="comet needs the source text, and a program of its own\nfix: nmt score REF"):
        score(["a"], ["a"], metrics="comet")
