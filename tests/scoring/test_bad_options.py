"""What `nmt score` says of options that mean nothing together."""

from __future__ import annotations

import pytest

from nmt_cli.errors import UsageError
from tests.scoring.shell import refuse

pytestmark = pytest.mark.usefixtures("folder")


@pytest.mark.parametrize(
    ("arguments", "message", "where", "hint"),
    [
        (
            "-i hyp",
            "REF is missing",
            "nmt score",
            "nmt score REF -i HYP, or nmt score -t wmt14/full -l en-de -i HYP; see nmt score --help",
        ),
        (
            "ref -t wmt14/full -l en-de -i hyp",
            "-t wmt14/full brings its own references, but ref is given as well",
            "-t",
            "leave out one of them; the translation is -i HYP",
        ),
        (
            "ref -i hyp -m paper-bleu",
            "paper-bleu needs to know the target language",
            "-m paper-bleu",
            "add the languages, source first: -l en-de",
        ),
        (
            "ref -i hyp -m paper-bleu -l de",
            "-l takes two languages, not 'de'",
            "-l",
            "for example -l en-de",
        ),
        (
            "ref -i hyp -l en-de -m chrf",
            "-l means nothing without -t, -m bleu or -m paper-bleu",
            "-l",
            "add -t, -m bleu or -m paper-bleu, or leave -l out",
        ),
        (
            "ref -i hyp -m comet",
            "comet needs the source text",
            "-m comet",
            "add the source with -s SRC, or name a test set with -t",
        ),
        (
            "ref base -i hyp -s src -m comet",
            "comet takes one reference, not 2",
            "-m comet",
            "give one of them, or leave comet out of -m",
        ),
        (
            "ref -i hyp --comet-model x",
            "--comet-model means nothing without -m comet",
            "--comet-model",
            "add -m comet, or leave --comet-model out",
        ),
        (
            "ref -i hyp --device cpu",
            "--device means nothing without -m comet or --model",
            "--device",
            "add -m comet or --model, or leave --device out",
        ),
        (
            "ref -i hyp --paired ar",
            "--paired means nothing without --baseline",
            "--paired",
            "add --baseline, or leave --paired out",
        ),
        (
            "ref -i hyp --baseline base --paired t-test",
            "--paired is 't-test', but should be bs or ar",
            "--paired",
            "--paired bs",
        ),
        (
            "ref -i hyp --baseline hyp",
            "hyp is the hypothesis and a baseline",
            "--baseline",
            "give the output of two different systems or runs",
        ),
        ("ref -i hyp -i hyp", "hyp is given twice", "-i", "give the output of two different systems or runs"),
        (
            "ref -i hyp --tokens",
            "--tokens means nothing without --model",
            "--tokens",
            "add --model, or leave --tokens out",
        ),
        (
            "ref -s src --model nowhere -l en-de",
            "-l means nothing without -t",
            "-l",
            "add -t, or leave -l out",
        ),
        (
            "ref -i hyp --sentence --fail-under BLEU=1",
            "--fail-under does not go with --sentence: it shows sentences, and no score of the whole",
            "--fail-under",
            "leave --fail-under out",
        ),
        (
            "ref -i hyp --sentence --differences 3",
            "--differences does not go with --sentence: it shows sentences, and no score of the whole",
            "--differences",
            "leave --differences out",
        ),
        (
            "ref -i hyp --differences 3",
            "--differences needs another system",
            "--differences",
            "add --baseline HYP",
        ),
        (
            "ref -i hyp -i base --sentence",
            "--sentence takes one translation, not 2",
            "-i",
            "give -i once; the other system is --baseline base",
        ),
        (
            "ref -i hyp --baseline base --baseline ref --differences 1",
            "--differences takes one baseline, not 2",
            "--baseline",
            "give --baseline once",
        ),
        (
            "ref -i hyp --sentence -m paper-bleu -l en-de",
            "paper-bleu is a score of a whole test set, not for --sentence",
            "-m",
            "leave paper-bleu out of -m; bleu, chrf, ter and comet have scores of sentences",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: str, message: str, where: str, hint: str) -> None:
    error = refuse(UsageError, *arguments.split())
    assert (error.message, error.where, error.hint) == (message, where, hint)
