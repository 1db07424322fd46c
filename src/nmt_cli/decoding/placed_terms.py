"""Puts missing terms into a translation: each in place of the model's own words for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product
from operator import itemgetter

from nmt_cli.decoding.terms import (
    LETTER_WITHOUT_SPACES,
    WORD_CHARACTER,
    Occurrence,
    TermUnit,
    places_of_terms,
    units_of,
)
from nmt_cli.tokenization.pieces import Link, Range

_MOST_COMBINATIONS = 16  # of forms, if several terms of a sentence have several of them


def beginnings_with_terms(
    text: str, links: Sequence[Link], occurrences: Sequence[Occurrence], *, num_fixed: int, num_more: int
) -> Iterator[str]:
    """Beginnings of a translation up to the last term that it lacked, with `num_more` words or marks after it.

    If only marks follow, and `num_more` is 0, all of them stay. There is one beginning for each choice of the terms'
    forms. The first `num_fixed` characters stay as they are.
    """
    met = places_of_terms(occurrences, text)
    words = [unit for unit in units_of(text) if not unit.text.isspace()]
    free = [word for word in words if not any(start <= word.start < end for start, end in met.values())]
    places = sorted(
        ((*_place(free, links, one), one.targets) for index, one in enumerate(occurrences) if index not in met),
        key=itemgetter(0, 1),
    )
    placed = [
        (start, end, _forms_for_place(targets, is_first=not any(map(str.isalnum, text[:start]))))
        for start, end, targets in places
        if start >= num_fixed
    ]
    if not placed:
        return
    for forms in islice(product(*(targets for *_, targets in placed)), _MOST_COMBINATIONS):
        beginning, position = "", 0
        for (start, end, _), form in zip(placed, forms, strict=True):
            beginning += text[position : max(start, position)]
            follows_word = WORD_CHARACTER.search(beginning[-1:]) and not LETTER_WITHOUT_SPACES.match(form)
            beginning += f" {form}" if follows_word else form
            position = max(end, position)
            beginning += " " if WORD_CHARACTER.match(text, position) else ""
        rest = [word for word in words if word.start >= position]
        kept = rest[:num_more] if num_more or any(word.text[0].isalnum() for word in rest) else rest
        yield beginning + text[position : kept[-1].end] if kept else beginning.rstrip()


def _forms_for_place(targets: Sequence[str], *, is_first: bool) -> Sequence[str]:
    """The forms of a term with a capital letter at the beginning of a sentence; elsewhere, those without one."""
    if is_first:
        return [form for form in targets if form[0].isupper()] or targets
    return [form for form in targets if not form[0].isupper() or form[0].lower() + form[1:] not in targets]


def _place(words: Sequence[TermUnit], links: Sequence[Link], term: Occurrence) -> Range:
    """The range of the words that translate a term.

    If there are none, it is the empty range after the translation of the text before the term.
    """
    best, most, run, start = (0, 0), 0, 0, 0  # `run` counts the links of the words to the term since `start`
    for word in words:
        of_word = [link for link in links if link.target_start < word.end and word.start < link.target_end]
        to_term = sum(link.source_start < term.end and term.start < link.source_end for link in of_word)
        if not to_term or 2 * to_term < len(of_word):
            run = 0
            continue
        start, run = start if run else word.start, run + to_term
        if run > most:
            best, most = (start, word.end), run
    if most:
        return best
    _, before = max(
        ((link.source_end, link.target_end) for link in links if link.source_end <= term.start), default=(0, 0)
    )
    position = max((word.end for word in words if word.start < before and word.text[0].isalnum()), default=0)
    return position, position
