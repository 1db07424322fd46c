"""Replaces the model's own words in a translation by the terms that it lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice, product
from operator import itemgetter

from nmt_cli.decoding.terms import WORD_CHARACTER, Occurrence, TermUnit, places_of_terms, units_of
from nmt_cli.documents.marked_text import LETTER_WITHOUT_SPACES
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
    places = sorted(
        (
            (*_place(words, links, one, taken=met.values()), one.targets)
            for index, one in enumerate(occurrences)
            if index not in met
        ),
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


def _place(words: Sequence[TermUnit], links: Sequence[Link], term: Occurrence, *, taken: Collection[Range]) -> Range:
    """The range of neighbouring words that translate a term, outside of the ranges that are taken.

    If there are none, it is the empty range after the translation of the text before the term.
    """
    best, most_links = None, 0
    start = num_links = 0  # of the neighbours that end here
    for word in words:
        is_taken = any(begin <= word.start < end for begin, end in taken)
        num_own = 0 if is_taken else _num_links_to(term, word, links)
        if num_own and not num_links:
            start = word.start
        num_links = num_links + num_own if num_own else 0
        if num_links > most_links:
            best, most_links = (start, word.end), num_links
    return best or _after_text_before(words, links, term)


def _num_links_to(term: Occurrence, word: TermUnit, links: Sequence[Link]) -> int:
    """How many links lead from a term to a word; 0 if most links to the word come from elsewhere."""
    of_word = [link for link in links if link.target_start < word.end and word.start < link.target_end]
    of_term = [link for link in of_word if link.source_start < term.end and term.start < link.source_end]
    return len(of_term) if 2 * len(of_term) >= len(of_word) else 0


def _after_text_before(words: Sequence[TermUnit], links: Sequence[Link], term: Occurrence) -> Range:
    """The empty range after the translation of the text before a term."""
    before = [(link.source_end, link.target_end) for link in links if link.source_end <= term.start]
    _, end = max(before, default=(0, 0))
    position = max((word.end for word in words if word.start < end and word.text[0].isalnum()), default=0)
    return position, position
