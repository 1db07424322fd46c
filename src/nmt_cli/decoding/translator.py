"""The translator of a model directory: lines of raw text in, lines of raw text out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch

from nmt_cli.decoding.engine import Engine
from nmt_cli.decoding.line_reader import AskedLine, LineReader
from nmt_cli.decoding.search.hypotheses import Details
from nmt_cli.decoding.sentences import translate_sentences
from nmt_cli.decoding.settings import check_num_candidates, with_overrides
from nmt_cli.decoding.terms import TermList
from nmt_cli.decoding.translation import (
    SplitLine,
    Translation,
    best_by_utility,
    copied,
    in_one_line,
    without_repetition,
)
from nmt_cli.documents.marked_text import MarkedText
from nmt_cli.documents.markup import MarkupDocument, parse_markup
from nmt_cli.documents.markup_tokens import MARKUP
from nmt_cli.errors import DataError, UsageError
from nmt_cli.recipe.directions import Directions
from nmt_cli.recipe.schema import DecodingConfig, DecodingOverrides
from nmt_cli.tokenization.pieces import Range
from nmt_cli.tokenization.split_text import by_rank


class LineTranslator:
    """Translates lines of raw text with one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._process_id = os.getpid()
        self._reader = LineReader(engine)

    @property
    def engine(self) -> str:
        """The name of the engine: torch or ctranslate2."""
        return self._engine.name

    @property
    def precision(self) -> str:
        """The precision of matrix products: fp32, bf16 or int8."""
        return self._engine.precision

    @property
    def device(self) -> str:
        """The device, such as cpu or cuda:0."""
        return self._engine.device

    @property
    def directions(self) -> Directions:
        """The languages of the model, and which it translates into which."""
        return self._engine.directions

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.directions}: {self.engine}, {self.precision}, {self.device}>"

    def settings(self, **overrides: Unpack[DecodingOverrides]) -> DecodingConfig:
        """The model's own decoding section with these changes; UsageError names a wrong one."""
        return with_overrides(self._engine.decoding, overrides)

    def translate(
        self,
        lines: Iterable[str],
        *,
        to: str | Sequence[str | None] | None = None,
        from_: str | Sequence[str | None] | None = None,
        tags: Mapping[str, str] | None = None,
        config: DecodingConfig | None = None,
        nbest: int = 1,
        prefixes: Iterable[str] | None = None,
        mbr: str | None = None,
        word_scores: bool = False,
        alignments: bool = False,
        copy_symbols: bool = False,
        markup: str | None = None,
        kept: Sequence[Sequence[Range]] | None = None,
        terms: TermList | Mapping[str, str | Sequence[str]] | Sequence[TermList | None] | None = None,
        first_line: int = 1,
        **overrides: Unpack[DecodingOverrides],
    ) -> list[Translation]:
        """The translation of each line, in order, by the model's own decoding section or by `config`.

        `to` is the code of the language to translate into, for all lines or for each; a model of several needs it. Only
        some of them need `from_`, the language of the lines, too. `tags` are tags of the training text that the lines
        get, too, such as {"domain": "news"}.

        `overrides` replace single settings of it; None leaves a setting as it is. `prefixes` holds the beginning of
        each translation, or "". `mbr` (chrf or bleu) ranks a line's candidates, the beam or the samples, by their
        similarity to each other. A list of alternatives has each text once, unless they are samples.

        The sentences of a line are translated one by one, as `split_sentences` says, unless it has a prefix; a line
        break ends a sentence, too. A line too long for the model is also cut elsewhere if necessary; a warning tells
        its number, counted from `first_line`, or quotes a block of a document. The translation of a blank line is
        empty.

        With `copy_symbols` a line without letters stays as it is, and so do addresses and placeholders in a line, like
        the `kept` ranges of characters of each line. Each translation has the `terms`, which are one list for all lines
        or a list for each; `unmet_terms` names the terms that it lacks. With `markup` (html or xml) lines are documents
        or parts of documents: their tags stay, on the words that translate the words they stood on.

        UsageError if the engine does not have a setting, its value is wrong, the model lacks a language or a tag, or
        this process was forked after the model was opened. DataError if a text is not valid Unicode, a term is blank,
        there are too few or too many prefixes, or one is too long.
        """
        texts, prefix_texts = list(lines), None if prefixes is None else list(prefixes)
        is_text = isinstance(lines, str) or isinstance(prefixes, str)
        if is_text or not all(isinstance(text, str) for text in [*texts, *(prefix_texts or [])]):
            raise TypeError("translate takes lines, each of them a string: translate([text], prefixes=[beginning])")
        self._check_not_forked()
        if isinstance(to, str | None) and isinstance(from_, str | None):
            self._reader.check_direction(from_, to)  # its error does not wait for a line
        to_of_lines, from_of_lines = (_for_each(texts, codes) for codes in (to, from_))
        terms_of_lines = _for_each(texts, TermList(terms) if isinstance(terms, Mapping) else terms)
        if markup is not None:
            is_given = {
                "prefix": prefixes is not None,
                "kept": kept is not None,
                "word_scores": word_scores,
                "alignments": alignments,
            }
            _check_markup(markup, is_given)
            options = {
                "tags": tags,
                "config": config,
                "nbest": nbest,
                "mbr": mbr,
                "first_line": first_line,
                **overrides,
            }
            of_documents = {"to": to_of_lines, "from_": from_of_lines}
            of_documents |= {} if terms is None else {"terms": terms_of_lines}
            return self._translate_markup(
                [parse_markup(text, MARKUP[markup]) for text in texts], of_documents, **options
            )
        config = with_overrides(config or self._engine.decoding, overrides)
        check_num_candidates(nbest, config=config, vocab=self._engine.target.vocab_size, mbr=mbr)
        if terms is not None and config.samples:
            message = "samples are drawn piece by piece, so there are no terms in them"
            raise UsageError(message, setting="terms", hint="leave out `terms`, or take a beam: `samples: 0`")
        if prefix_texts is not None and len(prefix_texts) != len(texts):
            message = f"there are {len(texts):,} lines and {len(prefix_texts):,} prefixes"
            hint = "give one line of prefixes for each line of text; an empty one leaves its translation free"
            raise DataError(message, setting="prefix", hint=hint)
        split_lines = self._reader.read(
            [
                AskedLine(text, to=to, from_=from_, prefix=prefix, kept=kept, terms=terms)
                for text, to, from_, prefix, kept, terms in zip(
                    texts,
                    to_of_lines,
                    from_of_lines,
                    prefix_texts or [""] * len(texts),
                    _for_each(texts, kept),
                    terms_of_lines,
                    strict=True,
                )
            ],
            tags=tags or {},
            config=config,
            copy_symbols=copy_symbols,
            first_line=first_line,
        )
        details = Details(piece_log_probs=word_scores, alignment=alignments)
        return self._translate_split(split_lines, config=config, nbest=nbest, mbr=mbr, details=details)

    def _translate_split(
        self, split_lines: Sequence[SplitLine], *, config: DecodingConfig, nbest: int, mbr: str | None, details: Details
    ) -> list[Translation]:
        """The translation of each line that is split into sentences."""
        # If equal texts are merged, all candidates are asked for, because some of the best may be equal.
        merge = mbr is None and not config.samples
        translations = translate_sentences(
            self._engine,
            [one for line in split_lines for one in line.sentences if not one.is_copied],
            config=config,
            nbest=config.num_candidates if mbr is not None or (merge and nbest > 1) else nbest,
            details=details,
        )
        ranked = iter(without_repetition(candidates)[:nbest] if merge else candidates for candidates in translations)
        translated = [
            line.join(
                [
                    [copied(one.text, one.kept, details=details)] if one.is_copied else next(ranked)
                    for one in line.sentences
                ]
            )
            for line in split_lines
        ]
        if mbr is None:
            return translated
        return [
            best_by_utility(
                line,
                utility=mbr,
                target_language=split_line.languages.target,
                is_sampled=config.samples > 0,
                nbest=nbest,
            )
            for split_line, line in zip(split_lines, translated, strict=True)
        ]

    def _translate_markup(
        self, documents: Sequence[MarkupDocument], of_documents: Mapping[str, Sequence[Any]], **options: Any
    ) -> list[Translation]:
        """The translation of each document: its blocks are translated, and its tags stay.

        `of_documents` are options with a value for each document.
        """
        for name, values in of_documents.items():
            options[name] = [value for value, one in zip(values, documents, strict=True) for _ in one.blocks]
        marked = [block for one in documents for block in one.blocks]
        blocks = iter(self._translate_blocks(marked, **options))
        return [_joined(document, [next(blocks) for _ in document.blocks]) for document in documents]

    def translate_marked(self, blocks: Sequence[MarkedText], **options: Any) -> list[MarkedText]:
        """The translation of each block, with its inline markup on the words that translate the words it stood on.

        Symbols, addresses, placeholders and kept marks stay as they are. The options are those of `translate`.
        """
        return [candidates[0][0] for candidates in self._translate_blocks(blocks, **options)]

    def _translate_blocks(
        self, blocks: Sequence[MarkedText], **options: Any
    ) -> list[list[tuple[MarkedText, Translation]]]:
        """The translations of each block, best first, with and without its markup."""
        translations = self.translate(
            [block.text for block in blocks],
            kept=[block.kept for block in blocks],
            alignments=True,
            copy_symbols=True,
            **options,
        )
        return [
            [(block.translated(candidate.text, candidate.links), candidate) for candidate in (best, *best.alternatives)]
            for block, best in zip(blocks, translations, strict=True)
        ]

    def _check_not_forked(self) -> None:
        """Raise UsageError in a forked process that would wait forever: the engine's threads are not in it."""
        is_torch_on_cpu = self.engine == "torch" and self.device == "cpu"
        if os.getpid() == self._process_id or (is_torch_on_cpu and torch.get_num_threads() == 1):
            return
        hint = "start the process by spawn, and open the model there"
        if is_torch_on_cpu:
            hint += "; or call torch.set_num_threads(1) in it first"
        raise UsageError("this process was forked after the model was opened", where=repr(self), hint=hint)


def _for_each(lines: Sequence[str], value: Any) -> Sequence[Any]:
    """A value for each line, from one for all of them or from a list of as many; ValueError for other lists."""
    if value is None or isinstance(value, str | TermList):
        return [value] * len(lines)
    values = list(value)
    if len(values) != len(lines):
        raise ValueError(f"there are {len(lines)} lines, and {len(values)} values for them")
    return values


def _check_markup(markup: str, is_given: Mapping[str, bool]) -> None:
    """Raise UsageError unless there is such markup, and nothing is given that is only of plain text."""
    if markup not in MARKUP:
        raise UsageError(f"there is no markup called {markup!r}", setting="markup", hint="take html or xml")
    for setting in (name for name, is_here in is_given.items() if is_here):
        message = f"`{setting}` is of plain text, and the lines are {markup}"
        raise UsageError(message, setting=setting, hint=f"leave out `{setting}`, or `markup`")


def _joined(document: MarkupDocument, blocks: Sequence[Sequence[tuple[MarkedText, Translation]]]) -> Translation:
    """The translation of a document, made of the candidates of its blocks."""
    best, *others = [
        Translation(
            in_one_line(document.render([marked for marked, _ in ranked])),
            sum(candidate.score for _, candidate in ranked),
            sum(candidate.log_prob for _, candidate in ranked),
            sum(candidate.num_pieces for _, candidate in ranked),
            unmet_terms=tuple(term for _, candidate in ranked for term in candidate.unmet_terms),
        )
        for ranked in by_rank(blocks)
    ]
    return replace(best, alternatives=tuple(others))
