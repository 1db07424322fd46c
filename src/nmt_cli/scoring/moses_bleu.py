"""BLEU of Moses' tokens by multi-bleu: as in "Attention Is All You Need", and of lower-cased tokens.

The paper's BLEU comes from tensor2tensor's get_ende_bleu.sh. Here it is computed without Perl, in the steps of that
script: replace-unicode-punctuation.perl on the hypothesis, then on both sides tokenizer.perl -l and the split of
compounds, then multi-bleu.perl. The authors' German reference had ASCII quotes as well (docs/paper.md#bleu).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from importlib.metadata import version
from itertools import groupby
from typing import Any

from sacrebleu.metrics.bleu import BLEU, BLEUSignature

from nmt_cli.errors import UsageError
from nmt_cli.languages import nearest_code

logger = logging.getLogger(__name__)

# The bytes around the hyphen are consumed, as in the script: a-b-c is split at the first hyphen only, a-ö-c at both.
_COMPOUND = re.compile(rb"(\S)-(\S)")
# sacremoses leaves a final full stop at a number or an abbreviation, where tokenizer.perl splits it off.
_FINAL_STOP = re.compile(r"(?<=[^\s.])\.$")
_GERMAN = "de"
_QUOTES = str.maketrans("„“”", '"""')


class MosesBleuTokenizer:
    """Splits raw text of a language, given by its code, into the tokens of tokenizer.perl.

    `changes` are the other changes of the text by their names in the signature. UsageError if the language is given by
    its name.
    """

    def __init__(self, language: str) -> None:
        from sacremoses import MosesTokenizer
        from sacremoses.corpus import NonbreakingPrefixes

        codes = [*NonbreakingPrefixes().available_langs.values()]
        if language not in codes:
            if code := nearest_code(language, codes):
                message = f"{language!r} is no code of a language"
                raise UsageError(message, where=language, hint=f"give its code, which is {code}")
            logger.warning("Moses knows no abbreviations of the language %r; it takes those of English", language)
        self.changes: dict[str, str] = {}
        self._tokenizer = MosesTokenizer(lang=language)
        # sacremoses counts some letters otherwise than tokenizer.perl: see `_letters_and_digits`.
        self._tokenizer.PAD_NOT_ISALNUM = re.compile(rf"([^{_letters_and_digits()}\s\.'\`\,\-])"), r" \1 "

    def tokenize(self, line: str, *, is_reference: bool) -> str:
        """The tokens of a line, with spaces between them."""
        tokens = self._tokenizer.tokenize(line.strip(), return_str=True, escape=True)
        return _FINAL_STOP.sub(" .", tokens)


class PaperTokenizer(MosesBleuTokenizer):
    """Splits raw text into the tokens of the paper's BLEU: for German, compounds are split and quotes are ASCII."""

    def __init__(self, language: str, *, keep_quotes: bool) -> None:
        from sacremoses import MosesPunctNormalizer

        super().__init__(language)
        self._punctuation = MosesPunctNormalizer()
        self._splits_compounds = language == _GERMAN
        self._has_ascii_quotes = language == _GERMAN and not keep_quotes
        self.changes = {"compounds": "split" if self._splits_compounds else "whole", "punct": "ascii-hyp"}
        self.changes |= {"quotes": "ascii-ref"} if self._has_ascii_quotes else {}

    def tokenize(self, line: str, *, is_reference: bool) -> str:
        """The tokens of a line, with spaces between them.

        Unicode punctuation of a hypothesis becomes ASCII first, except „, which the script leaves.
        """
        if not is_reference:
            line = self._punctuation.replace_unicode_punct(line)
        elif self._has_ascii_quotes:
            line = line.translate(_QUOTES)
        tokens = super().tokenize(line, is_reference=is_reference)
        if self._splits_compounds:
            tokens = _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", tokens.encode()).decode()
        return tokens


def _letters_and_digits() -> str:
    """Ranges of the characters that tokenizer.perl keeps in words of every language, for a regular expression.

    sacremoses counts Chinese, Japanese and Korean letters in these languages alone, with their full stop. It counts
    viramas as well, which tokenizer.perl sets apart.
    """
    from sacremoses.corpus import Perluniprops

    properties = Perluniprops()
    characters = set(properties.chars("IsAlnum"))
    for script in ("Hangul", "Han", "Hiragana", "Katakana"):
        characters.update(letter for letter in properties.chars(script) if letter.isalnum())
    # In a run of consecutive codes, a code and its index differ by the same number.
    runs = groupby(enumerate(sorted(map(ord, characters))), key=lambda indexed: indexed[1] - indexed[0])
    ranges = [[code for _, code in run] for _, run in runs]
    return "".join(f"{chr(codes[0])}-{chr(codes[-1])}" for codes in ranges)


class _MosesSignature(BLEUSignature):
    """sacreBLEU's fields, and how the text was changed beforehand."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        for name, value in args["changes"].items():
            self.update(name, value)
        self.update("moses", f"sacremoses-{version('sacremoses')}")


class MosesBleu(BLEU):
    """multi-bleu.perl over tokens: sacreBLEU's BLEU without tokenisation and smoothing.

    `references` are tokens already. `changes` are the tokenizer's, for the signature.
    """

    _SIGNATURE_TYPE = _MosesSignature

    def __init__(
        self, language: str, *, lowercase: bool, changes: dict[str, str], references: Sequence[Sequence[str]]
    ) -> None:
        super().__init__(tokenize="none", smooth_method="none", force=True, lowercase=lowercase, references=references)
        self.tokenizer_signature = f"moses-{language}"
        self.changes = changes


def note_on_comparison(languages: str, *, keep_quotes: bool) -> str:
    """A sentence on the published scores that paper-BLEU and BLEU may each be compared with, for a language pair.

    The paper's scores are of a German reference whose quotes were changed.
    """
    figures = {"en-de": "27.3 (base) and 28.4 (big)", "en-fr": "38.1 (base) and 41.8 (big)"}.get(languages.lower())
    has_other_quotes = keep_quotes and languages.lower().endswith("-de")
    papers = f"the paper's {figures} on newstest2014 and " if figures and not has_other_quotes else ""
    return (
        f"compare paper-BLEU with {papers}other multi-bleu scores of such tokens; compare BLEU with sacreBLEU scores "
        "of the same signature; do not compare the two with each other"
    )
