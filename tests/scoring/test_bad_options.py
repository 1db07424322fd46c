"""What `nmt score` refuses: texts that do not fit, and options that do not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt_cli.cli.score.options import check_bounds
from nmt_cli.errors import DataError, ScoreError, UsageError
from tests.scoring.shell import HYP, refuse, run

# The arguments, the option and the problem, and the hint. A wrong bound is refused before anything is read.
CONTRADICTIONS = """
-i hyp
nmt score: REF is missing
nmt score REF -i HYP, or nmt score -t wmt14/full -l en-de -i HYP; see nmt score --help

ref -t wmt14/full -l en-de -i hyp
-t: -t wmt14/full brings its own references, but ref is given as well
leave out one of them; the translation is -i HYP

ref -i hyp -m paper-bleu
-m paper-bleu: paper-bleu needs to know the target language
add the languages, source first: -l en-de

ref -i hyp -m comet
-m comet: comet needs the source text
add the source with -s SRC, or name a test set with -t

ref -i hyp --differences 3
--differences: --differences needs another system
add --baseline HYP

ref -i hyp --sentence -m paper-bleu -l en-de
-m: paper-bleu is a score of a whole test set, not for --sentence
leave paper-bleu out of -m; bleu, chrf, ter and comet have scores of sentences

ref -i hyp -m blue
-m: there is no metric 'blue'
did you mean bleu?

ref -i hyp -m rouge
-m: there is no metric 'rouge'
take one or more of bleu,paper-bleu,moses-bleu,chrf,chrf++,ter,comet

nowhere -i nowhere --fail-under BLEU=high
--fail-under BLEU=high: the bound 'high' is not a number
for example --fail-under BLEU=25

nowhere -i nowhere --fail-under TER=50
--fail-under TER=50: a lower TER is a better one, so --fail-under cannot bound it
bound BLEU or chrF2 instead, for example --fail-under BLEU=25

ref -i hyp -m chrf --fail-under BLEU=1
--fail-under BLEU=1: --fail-under bounds BLEU, but -m does not ask for it
write -m chrf,bleu

- -i -
-: stdin can hold one text, but hypothesis and reference are to come from it
give the others as files; the hypothesis is -i HYP
"""

pytestmark = pytest.mark.usefixtures("folder")


def test_different_numbers_of_lines_are_refused_with_both_counts(folder: Path) -> None:
    (folder / "long").write_text("a\n" * 1200, encoding="utf-8")
    error = refuse(DataError, "ref", "long", "-i", "hyp")
    assert error.message == "hyp has 3 lines, long has 1,200"
    assert error.where == "hyp"
    assert error.hint == "give texts of the same test set, with one line for each line of the reference"
    assert error.exit_code == 4
    assert refuse(DataError, "ref", "-i", "hyp", "-s", "long").message == "long has 1,200 lines, ref has 3"
    assert refuse(DataError, "ref", "-i", "hyp", "--baseline", "long").message == "long has 1,200 lines, ref has 3"


@pytest.mark.parametrize("which", ["hyp", "ref"])
def test_an_empty_file_is_refused(folder: Path, which: str) -> None:
    (folder / which).write_bytes(b"")
    error = refuse(DataError, "ref", "-i", "hyp")
    assert error.message == f"{which} is empty: there is nothing to score"
    assert (error.where, error.hint) == (which, "check the path, or write the file again")


def test_an_empty_stdin_may_be_a_forgotten_option() -> None:
    assert "-i HYP" in refuse(DataError, "ref", "hyp", stdin=b"").hint


def test_what_is_no_number_reaches_no_bound() -> None:
    with pytest.raises(ScoreError) as caught:
        check_bounds({"hyp": {"comet": float("nan")}}, {"comet": 0.8})
    assert (caught.value.message, caught.value.exit_code) == ("COMET is nan, below the bound of 0.8", 8)


def test_text_that_is_not_utf8_is_refused_with_its_line(folder: Path) -> None:
    (folder / "hyp").write_bytes(HYP.encode().replace("schläft".encode(), "schläft".encode("latin-1")))
    error = refuse(DataError, "ref", "-i", "hyp")
    assert error.message == "line 1 is not UTF-8: it has the byte 0xe4"
    assert (error.where, error.hint) == (
        "hyp:1",
        "if the text is Latin-1 or Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 < hyp > utf8-hyp",
    )
    error = refuse(DataError, "ref", stdin=b"a\nb\n\xff\n")
    assert (error.where, error.hint) == (
        "stdin:3",
        "if the text is Latin-1 or Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 < FILE > NEW",
    )


@pytest.mark.parametrize(
    ("line", "mark", "command"),
    [
        ("▁Der ▁Hund ▁schl ä ft .", "▁", "sed 's/ //g"),
        ("Der Hund schl@@ äft.", "@@ ", "sed -r"),
    ],
)
def test_pieces_instead_of_words_are_refused(folder: Path, line: str, mark: str, command: str) -> None:
    (folder / "four").write_text("Gut.\n" * 4, encoding="utf-8")
    error = refuse(DataError, "four", stdin=b"Gut.\n" + f"{line}\n".encode() * 3)
    assert error.message.startswith(f"the hypothesis holds pieces instead of words: {mark!r} in ")
    assert error.where == "stdin:2"
    assert error.hint.startswith(f"join the pieces: {command}")


@pytest.mark.parametrize("line", ["Press the ▁ key", "a@@ b"])
def test_a_mark_in_a_short_text_is_scored_with_a_warning(line: str, caplog: pytest.LogCaptureFixture) -> None:
    assert run("ref", stdin=f"Gut.\n{line}\nGut.\n".encode())
    (message,) = caplog.messages
    assert message.startswith("stdin looks tokenised: 1 of its 3 lines hold marks such as ")


def test_tokenised_text_is_scored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    for line_end in (b"\n", b"\r\n"):
        assert run("ref", stdin=b"Der Hund .\nDie Katze .\nEin Mann .\n".replace(b"\n", line_end))
        counts = "3 of its 3 final full stops stand apart"
        assert caplog.messages == [f"stdin looks tokenised: {counts}; score detokenised text"]
        caplog.clear()
    assert run("ref", stdin=b"Der Hund.\nDie Katze .\nEin Mann.\n")
    assert caplog.messages == []


def test_empty_translations_are_scored_with_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert run("ref", stdin=b"Gut.\n\n \n")
    assert caplog.messages == ["stdin has 2 empty lines out of 3; they count as empty translations"]


def test_a_tokenised_reference_is_named_in_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "tokenised").write_text("Der Hund .\nDie Katze .\nEin Mann .\n", encoding="utf-8")
    assert run("tokenised", "-i", "hyp")
    assert caplog.messages == [
        "tokenised looks tokenised: 3 of its 3 final full stops stand apart; score against the untouched reference"
    ]
    caplog.clear()
    (folder / "tokenised").write_text("L &apos; été\nun grand @-@ père\nDer Hu@@ nd\n", encoding="utf-8")
    assert run("tokenised", "-i", "hyp", "-m", "paper-bleu", "-l", "en-de")
    assert caplog.messages[0] == (
        "tokenised looks tokenised: 3 of its 3 lines hold marks such as '&apos;'; score against the untouched reference"
    )


@pytest.mark.parametrize("case", CONTRADICTIONS.strip().split("\n\n"))
def test_options_that_are_wrong_or_do_not_go_together_are_refused(case: str) -> None:
    arguments, problem, hint = case.splitlines()
    error = refuse(UsageError, *arguments.split())
    assert (f"{error.where}: {error.message}", error.hint) == (problem, hint)


def test_only_sacrebleu_s_randomisation_has_a_limit_of_lines(folder: Path) -> None:
    (folder / "many").write_text("a\n" * 50_001, encoding="utf-8")
    error = refuse(UsageError, "many", "-i", "many", "--baseline", "many", "--paired", "ar")
    assert error.message == "--paired ar takes at most 50,000 lines, not 50,001"
    assert run("many", "-i", "many", "-m", "bleu", "--confidence").endswith("±0.00\n")


@pytest.mark.parametrize("metric", ["paper-bleu", "moses-bleu"])
def test_the_name_of_a_language_in_place_of_its_code_is_refused(metric: str) -> None:
    error = refuse(UsageError, "ref", "-i", "hyp", "-m", metric, "-l", "english-german")
    assert error.hint.endswith("de")


@pytest.mark.parametrize("options", [["--confidence"], ["--baseline", "base", "--paired", "ar"]])
def test_an_empty_seed_is_none_and_a_word_is_refused(monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    arguments = ["ref", "-i", "hyp", "-m", "bleu", *options]
    monkeypatch.setenv("SACREBLEU_SEED", "abc")
    assert refuse(UsageError, *arguments).where == "$SACREBLEU_SEED"
    outputs = []
    for seed in ("12345", ""):
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        outputs.append(run(*arguments))
    assert outputs[0] == outputs[1]
