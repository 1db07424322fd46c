"""Lines in capitals or in title case, as sentences for the model, and translations in capitals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, NamedTuple
from unicodedata import normalize

from nmt_cli.languages import short_code
from nmt_cli.recipe.schema import TrainedLines
from nmt_cli.tokenization.pieces import Link, Range
from nmt_cli.tokenization.tokenizer import Tokenizer

Casing = Literal["capitals", "title"]

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
# A model that saw fewer such lines in training translates them badly.
_MANY_LINES = 0.01
# Fewer long words, or words with a capital beyond the number of those without, may be names.
_FEWEST_LONG_WORDS, _FEWEST_TITLE_WORDS = 3, 4
# A word in capitals may be an acronym.
_LONGEST_ACRONYM = 5
# With fewer letters that have case, such as those of NASA in Chinese text, nothing is known.
_LEAST_CASED = 0.9
# In title case short words often stay as they are: of, and, the.
_LONGEST_SMALL_WORD = 4
_NOUNS_WITH_CAPITALS = ("de", "lb")
# These have a capital I with a dot, and a small one without it.
_DOTTED_I = ("tr", "az")
_SMALL_DOTTED, _LARGE_DOTTED = str.maketrans("Iİ", "ıi"), str.maketrans("iı", "İI")


class CasedText(NamedTuple):
    """A text as the model reads it, and how it was written; None for as sentences are. Both have the same length."""

    text: str
    casing: Casing | None


def casing_of(text: str, language: str) -> Casing | None:
    """Whether a text is in capitals or, in a language whose nouns have none, in title case."""
    letters = [letter for letter in text if letter.isalpha()]
    if sum(letter.lower() != letter.upper() for letter in letters) < _LEAST_CASED * len(letters):
        return None
    words = [word for word in _WORD.findall(text) if word.lower() != word.upper()]
    if all(map(str.isupper, words)):
        return "capitals" if len(words) > 1 or max(map(len, words), default=0) > _LONGEST_ACRONYM else None
    if short_code(language) in _NOUNS_WITH_CAPITALS:
        return None
    with_capital = sum(word[0].isupper() for word in words)
    long_words = [word for word in words[1:] if len(word) >= _LONGEST_SMALL_WORD]
    has_many = len(long_words) >= _FEWEST_LONG_WORDS or 2 * with_capital - len(words) >= _FEWEST_TITLE_WORDS
    return "title" if has_many and all(word[0].isupper() for word in [words[0], *long_words]) else None


def share_of_casing(lines: Sequence[str], language: str, casing: Casing) -> float:
    """The share of the lines that have this casing."""
    return sum(casing_of(line, language) == casing for line in lines) / max(1, len(lines))


def as_sentence(
    text: str, kept: Sequence[Range], *, tokenizer: Tokenizer, language: str, trained: TrainedLines | None
) -> CasedText:
    """The text in sentence case, if it has a casing of which training had few lines."""
    casing = casing_of(" ".join(text[start:end] for start, end in _ranges_outside(text, kept)), language)
    if casing is None or (trained is not None and _share(trained, casing) >= _MANY_LINES):
        return CasedText(text, None)
    return CasedText(in_sentence_case(text, kept, tokenizer=tokenizer, language=language), casing)


def in_sentence_case(text: str, kept: Sequence[Range], *, tokenizer: Tokenizer, language: str) -> str:
    """The text as a sentence but for its kept ranges, with the same number of characters.

    A word has small letters, unless the vocabulary knows it with capitals much better, as it knows a name.
    """
    is_first = True

    def usual(match: re.Match[str]) -> str:
        nonlocal is_first
        small = match[0].translate(_SMALL_DOTTED).lower() if short_code(language) in _DOTTED_I else match[0].lower()
        if len(small) != len(match[0]):
            return match[0]
        with_capital = capitalised(small, language)
        if is_first or (short_code(language) == "en" and re.match(r"i\b", small)):
            is_first = False
            return with_capital
        # A tie is for small letters; a few nouns of other languages with capitals are in a joint vocabulary, too.
        small_pieces, *others = map(len, tokenizer.encode([small, with_capital, match[0]]))
        gain = 1 if short_code(language) in _NOUNS_WITH_CAPITALS else 2
        best = min(zip(others, [with_capital, match[0]], strict=True), key=lambda pair: pair[0])
        return best[1] if best[0] + gain <= small_pieces else small

    for start, end in _ranges_outside(text, kept):
        text = text[:start] + _WORD.sub(usual, text[start:end]) + text[end:]
    return text


def capitalised(text: str, language: str) -> str:
    """A text at the beginning of a sentence; eBay stays as it is."""
    if text[1:2].isupper():
        return text
    if short_code(language) == "nl" and text.startswith("ij"):
        return f"IJ{text[2:]}"
    first = text[0].translate(_LARGE_DOTTED) if short_code(language) in _DOTTED_I else text[0]
    return first.title() + text[1:]


def in_capitals(text: str, links: Sequence[Link], copies: Sequence[Range], language: str) -> tuple[str, list[Link]]:
    """A translation in capitals, with its links. `copies`, in order, stay as they are."""
    characters = list(text)
    for start, end in _ranges_outside(text, copies):
        run = text[start:end].translate(_LARGE_DOTTED) if short_code(language) in _DOTTED_I else text[start:end]
        characters[start:end] = map(_without_accent if short_code(language) == "el" else str.upper, run)
    # Some capitals are longer: SS for ß.
    places = [0, *accumulate(map(len, characters))]
    moved = [
        link._replace(target_start=places[link.target_start], target_end=places[link.target_end]) for link in links
    ]
    return "".join(characters), moved


def _without_accent(letter: str) -> str:
    """A Greek letter as a capital, which has no accent."""
    return normalize("NFC", normalize("NFD", letter.upper()).replace("\u0301", ""))


def _ranges_outside(text: str, ranges: Sequence[Range]) -> list[Range]:
    """The ranges of a text outside of these, in order."""
    starts = [0, *(end for _, end in ranges)]
    ends = [*(start for start, _ in ranges), len(text)]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]


def _share(trained: TrainedLines, casing: Casing) -> float:
    return trained.in_capitals if casing == "capitals" else trained.in_title_case
