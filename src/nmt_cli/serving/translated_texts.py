"""Texts: cut into blocks and sentences for the queue, and put together again from the answers for their sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, PlainSerializer

from nmt_cli.documents.kept_text import find_kept, without_overlaps
from nmt_cli.documents.marked_text import MarkedText
from nmt_cli.documents.markup import MarkupDocument, parse_markup, write_plain
from nmt_cli.documents.markup_tokens import MarkupRules
from nmt_cli.documents.parts import Block
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.tokenization.pieces import Range
from nmt_cli.tokenization.sentence_splitting import masked, split_line
from nmt_cli.tokenization.split_text import SplitText, by_rank, ranges_in

# A model would lose a tag. The values of its attributes tell <b id=1> from the comparisons in "a <b and c> d".
_TAG = r"""</?[A-Za-z][\w:.-]*(?:\s+[\w:.@-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>]+))*\s*/?>|<!--[^<>]*-->"""
_LINE_BREAK = r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"
_BREAK = re.compile(rf"({_LINE_BREAK}|{_TAG})")


Answer = Mapping[str, Any]
"""What a worker found for a sentence: the fields of a `Translation`, which cannot be imported without torch."""


def read_text(sent: str, rules: MarkupRules | None) -> MarkupDocument:
    """The text as a client sent it, in a markup language or, without rules, plain: one block."""
    return MarkupDocument([Block(MarkedText(sent), write_plain)]) if rules is None else parse_markup(sent, rules)


def split_text(
    text: str,
    language: str,
    *,
    fits: Callable[[str], bool],
    is_split: Callable[[str], bool],
    kept: Sequence[Range] = (),
) -> SplitText:
    """The text cut at its line breaks and tags, and after the sentences of a line that is to be split.

    Parts that do not fit are cut further. In kept ranges, in addresses and in placeholders nothing ends a sentence.
    """
    sentences: list[str] = []
    gaps = [""]
    all_kept: list[Range] = []
    start = 0
    for part in _BREAK.split(masked(text, kept)):
        end = start + len(part)
        line = text[start:end]
        if _BREAK.fullmatch(part):
            gaps[-1] += line
        else:
            of_line = without_overlaps(ranges_in(kept, start, end), find_kept(line))
            segments = split_line(
                line, language, kept=of_line, by_sentence=is_split(line), fits_model=fits, fits_part=fits
            )
            split = SplitText.of(segments)
            sentences += split.sentences
            gaps[-1] += split.gaps[0]
            gaps += split.gaps[1:]
            all_kept += [(start + first, start + last) for first, last in of_line]
        start = end
    return SplitText(sentences, gaps, all_kept)


@dataclass(frozen=True, slots=True)
class SplitBlock:
    """A block of a text, and its sentences; a block that is not translated has none."""

    block: MarkedText
    split: SplitText

    def translated(self, answers: Sequence[Answer], languages: LanguagePair) -> MarkedText:
        """The block made of a worker's answer for each sentence, with its marks on the words that translate theirs."""
        if not answers:
            return self.block
        texts, links = [answer["text"] for answer in answers], [answer["links"] for answer in answers]
        return self.block.translated(*self.split.joined(texts, links, languages, keeps_breaks=True))


Rounded = Annotated[float, PlainSerializer(partial(round, ndigits=6), return_type=float)]


class Candidate(BaseModel):
    """A translation, its score (log-probability behind a given beginning, over length penalty), and log-probability."""

    text: str
    score: Rounded
    log_prob: Rounded


class TranslatedSentence(Candidate):
    """A sentence's translation; `alignment` has pairs of word positions, in the source and in the translation.

    `unmet_terms` are the terms of the source whose translations it lacks.
    """

    source: str
    alternatives: list[Candidate]
    alignment: list[list[int]] | None = None
    unmet_terms: list[str] = []


class TranslatedText(Candidate):
    """A text's translation, with the translations of its sentences."""

    alternatives: list[Candidate]
    sentences: list[TranslatedSentence]


def join_sentences(
    text: MarkupDocument,
    blocks: Sequence[SplitBlock],
    answers: Sequence[Answer],
    languages: LanguagePair,
    *,
    alignments: bool,
) -> TranslatedText:
    """The translation of a text, made of the answers for the sentences of its blocks.

    Its alternatives are made of the second best of each sentence, the third best, and so on. The last translation of a
    sentence stands for all that are missing.
    """
    best, *alternatives = [
        Candidate(
            text=text.render(translated_blocks(blocks, ranked, languages)),
            score=sum(answer["score"] for answer in ranked),
            log_prob=sum(answer["log_prob"] for answer in ranked),
        )
        for ranked in by_rank([[answer, *answer["alternatives"]] for answer in answers])
    ]
    sources = [source for block in blocks for source in block.split.sentences]
    sentences = [
        TranslatedSentence.model_validate(
            {**answer, "source": source, "alignment": answer["alignment"] if alignments else None}
        )
        for source, answer in zip(sources, answers, strict=True)
    ]
    return TranslatedText(**dict(best), alternatives=alternatives, sentences=sentences)


def translated_blocks(
    blocks: Sequence[SplitBlock], answers: Sequence[Answer], languages: LanguagePair
) -> list[MarkedText]:
    """The translations of blocks, made of an answer for each of their sentences."""
    remaining = iter(answers)
    return [block.translated([next(remaining) for _ in block.split.sentences], languages) for block in blocks]
