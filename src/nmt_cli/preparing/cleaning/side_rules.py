"""Cleaning rules that look at the characters of one side: its letters, scripts, web addresses and language."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import regex
from numpy.typing import NDArray

from nmt_cli.errors import DataError
from nmt_cli.languages import language_identifier, letters_of, script_of, short_code

_NUM_CODES = 0x40000  # no letter lies beyond the third plane
_OWN_SCRIPT, _OTHER_SCRIPT = 1, 2

_MIN_CHARACTERS = 30  # a shorter text is too often taken for another language
_LEAST_PROBABILITY_OF_OTHER = 0.5
_MOST_PROBABILITY_OF_OWN = 0.05
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_BEGINS_WITH_ADDRESS = re.compile(r"[\W_]*(?:(?:https?|ftp)://|www\.)\w", re.IGNORECASE)


class ScriptRule:
    """Finds texts in which more than half of the letters belong to another script than the language's.

    Characters that belong to no script (digits, signs, mathematical letters) do not count. A text without
    letters passes.
    """

    def __init__(self, code: str) -> None:
        self._script = script_of(code)

    def __call__(self, texts: Sequence[str]) -> list[int]:
        """The indices of these texts, none of which is empty or has surrogates."""
        indices = [index for index, text in enumerate(texts) if self._script != "Latn" or not text.isascii()]
        if not indices:
            return []
        checked = [texts[index] for index in indices]
        scripts = _scripts_of_characters(self._script)[np.minimum(_code_points(checked), _NUM_CODES - 1)]
        num_own, num_other = (
            np.add.reduceat(scripts == script, _starts(checked), dtype=np.int64)
            for script in (_OWN_SCRIPT, _OTHER_SCRIPT)
        )
        return [indices[position] for position in np.flatnonzero(num_other > num_own).tolist()]


class LanguageRule:
    """Finds texts that are probably in another language, and hardly in their own.

    Short texts pass. Raises DataError if py3langid is missing or does not know the language.
    """

    def __init__(self, code: str) -> None:
        self._identifier = language_identifier(where="cleaning.other_language")
        self._language = short_code(code)
        if self._language not in self._identifier.labels:
            raise DataError(
                f"py3langid cannot identify {code!r}",
                where="cleaning.other_language",
                hint="switch the rule off: --set cleaning.other_language=false",
            )

    def __call__(self, texts: Sequence[str]) -> list[int]:
        """The indices of these texts."""
        return [index for index, text in enumerate(texts) if len(text) >= _MIN_CHARACTERS and self._is_other(text)]

    def _is_other(self, text: str) -> bool:
        best, probability = self._identifier.classify(text)
        if best == self._language or probability < _LEAST_PROBABILITY_OF_OTHER:
            return False
        return bool(dict(self._identifier.rank(text))[self._language] < _MOST_PROBABILITY_OF_OWN)


def find_punctuation_only(texts: Sequence[str]) -> list[int]:
    """The indices of the texts without a letter or a digit of any script."""
    return [
        index
        for index, text in enumerate(texts)
        # Nearly all texts begin with a letter, which costs less to ask than a search.
        if not text[:1].isalnum() and _LETTER_OR_DIGIT.search(text) is None
    ]


def find_urls_only(texts: Sequence[str]) -> list[int]:
    """The indices of the texts that are nothing but web addresses and punctuation."""
    begins_with_address = _BEGINS_WITH_ADDRESS.match
    return [
        index
        for index, text in enumerate(texts)
        if begins_with_address(text) and all(map(_is_address_or_punctuation, text.split()))
    ]


def find_repeated_characters(texts: Sequence[str], *, longest: int) -> list[int]:
    """The indices of the texts that repeat one character more than `longest` times in a row."""
    if not texts:
        return []
    codes = _code_points(texts)
    run_starts = np.flatnonzero(np.diff(codes, prepend=~codes[:1], append=~codes[-1:]))
    long_runs = run_starts[:-1][np.diff(run_starts) > longest]
    # No run reaches from one text into the next: a line end lies between them.
    indices: list[int] = np.unique(np.searchsorted(_starts(texts), long_runs, side="right") - 1).tolist()
    return indices


def _code_points(texts: Sequence[str]) -> NDArray[np.uint32]:
    """The characters of texts, flat, with a line end between two texts; the texts have no surrogates."""
    return np.frombuffer("\n".join(texts).encode("utf-32-le"), dtype="<u4")


def _starts(texts: Sequence[str]) -> NDArray[np.int64]:
    """The index in `_code_points` at which each text begins, [n]."""
    lengths = np.fromiter((len(text) + 1 for text in texts), dtype=np.int64, count=len(texts))
    return np.cumsum(lengths) - lengths


@lru_cache(maxsize=2)
def _scripts_of_characters(script: str) -> NDArray[np.uint8]:
    """For every character: 1 for a letter of the script, 2 for a letter of another script, else 0."""
    scripts = np.zeros(_NUM_CODES, dtype=np.uint8)
    characters = "".join(map(chr, range(_NUM_CODES)))
    any_script = r"^\p{Script=Zyyy}\p{Script=Zinh}"
    for value, letters in ((_OTHER_SCRIPT, any_script), (_OWN_SCRIPT, letters_of(script))):
        for run in regex.finditer(rf"(?V1)[\p{{L}}&&[{letters}]]+", characters):
            scripts[run.start() : run.end()] = value
    return scripts


def _is_address_or_punctuation(word: str) -> bool:
    return _BEGINS_WITH_ADDRESS.match(word) is not None or _LETTER_OR_DIGIT.search(word) is None
