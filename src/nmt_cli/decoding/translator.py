"""The translator of a model directory: lines of raw text in, lines of raw text out."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch

from nmt_cli.decoding.engine import Engine, check_num_candidates, with_overrides
from nmt_cli.decoding.search.hypotheses import Details, SourceSentence, SymbolIds
from nmt_cli.decoding.sentences import SentenceTranslator
from nmt_cli.decoding.terms import TermList
from nmt_cli.decoding.translation import (
    LineSentence,
    SplitLine,
    Translation,
    best_by_utility,
    copied,
    in_one_line,
    without_repetition,
)
from nmt_cli.documents.kept_text import find_kept, without_overlaps, without_ranges
from nmt_cli.documents.marked_text import MarkedText, beginning_of
from nmt_cli.documents.markup import MARKUP, MarkupDocument, parse_markup
from nmt_cli.errors import DataError, UsageError
from nmt_cli.recipe.directions import Direction, Directions
from nmt_cli.recipe.schema import DecodingConfig, DecodingOverrides
from nmt_cli.text_encoding import check_characters
from nmt_cli.tokenization.casing import CasedText, as_sentence
from nmt_cli.tokenization.pieces import Range
from nmt_cli.tokenization.sentence_splitting import LineSplitter
from nmt_cli.tokenization.split_text import SplitText, has_letters

logger = logging.getLogger(__name__)

_TYPED_SYMBOL = re.compile(r"\s*(>>\S+?<<)\s*")


class LineTranslator:
    """Translates lines of raw text with one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._process_id = os.getpid()
        self._sentences = SentenceTranslator(engine)
        self._splitter = LineSplitter(engine.source, trained=engine.trained_lines)

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
        if isinstance(to, str | None) and isinstance(from_, str | None) and (to or not self._typed_symbols):
            self.directions.find(from_, to)  # its error does not wait for a line
        to_of_lines, from_of_lines = (_for_each(codes, texts) for codes in (to, from_))
        terms = TermList(terms) if isinstance(terms, Mapping) else terms
        terms = [terms] * len(texts) if isinstance(terms, TermList) else terms
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
            of_documents = {"to": to_of_lines, "from_": from_of_lines, "terms": terms}
            return self._translate_markup(
                [parse_markup(text, MARKUP[markup]) for text in texts], of_documents, **options
            )
        config = with_overrides(config or self._engine.decoding, overrides)
        check_num_candidates(nbest, config=config, vocab=self._engine.target.vocab_size, mbr=mbr)
        if terms is not None and config.samples:
            message = "samples are drawn piece by piece, so there are no terms in them"
            raise UsageError(message, setting="terms", hint="leave out `terms`, or take a beam: `samples: 0`")
        if kept is None:
            texts, to_of_lines = self._without_typed_symbols(texts, to_of_lines)
        directions = self._directions_of(from_of_lines, to_of_lines, tag_symbols=self._tag_symbols(tags or {}))
        split_lines = self._split(
            texts,
            directions,
            prefix_texts,
            kept,
            terms,
            config=config,
            copy_symbols=copy_symbols,
            first_line=first_line,
        )
        details = Details(piece_log_probs=word_scores, alignment=alignments)
        # If equal texts are merged, all candidates are asked for, because some of the best may be equal.
        merge = mbr is None and not config.samples
        translations = self._sentences.translate(
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
        self, documents: Sequence[MarkupDocument], of_documents: Mapping[str, Sequence[Any] | None], **options: Any
    ) -> list[Translation]:
        """The translation of each document: its blocks are translated, and its tags stay.

        `of_documents` are options with a value for each document.
        """
        for name, values in of_documents.items():
            if values is not None:
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

    def _without_typed_symbols(
        self, lines: Sequence[str], to: Sequence[str | None]
    ) -> tuple[list[str], list[str | None]]:
        """The lines without the target language that the users of OPUS-MT type before them, and their targets."""
        code_of = self._typed_symbols
        typed = [_TYPED_SYMBOL.match(line) if code_of else None for line in lines]
        known = [match if match and match[1] in code_of else None for match in typed]
        texts = [line[match.end() :] if match else line for line, match in zip(lines, known, strict=True)]
        return texts, [code_of[match[1]] if match else code for match, code in zip(known, to, strict=True)]

    @property
    def _typed_symbols(self) -> dict[str, str]:
        """The codes of target languages by the symbols that the users of OPUS-MT type."""
        return {symbol: code for code, symbol in self.directions.target_symbols.items() if symbol.startswith(">>")}

    def _tag_symbols(self, tags: Mapping[str, str]) -> tuple[str, ...]:
        """The symbols of tags, in the order of training; UsageError if the vocabulary lacks one."""
        symbols = [f"<{name}:{tags[name]}>" for name in sorted(tags)]
        for symbol in symbols:
            if symbol not in self._engine.source.symbols:
                known = [one[1:-1].replace(":", "=") for one in self._engine.source.symbols if ":" in one]
                hint = f"take one of its tags: {', '.join(known)}" if known else "leave `tag` out"
                message = f"the model was trained without the tag {symbol[1:-1].replace(':', '=')}"
                raise UsageError(message, setting="tag", hint=hint)
        return tuple(symbols)

    def _directions_of(
        self, from_: Sequence[str | None], to: Sequence[str | None], *, tag_symbols: tuple[str, ...]
    ) -> list[Direction]:
        """The direction of each line, with the symbols of tags; UsageError as in `Directions.find`."""
        found: dict[tuple[str | None, str | None], Direction] = {}
        wanted = list(zip(from_, to, strict=True))
        for source, target in wanted:
            if (source, target) not in found:
                direction = self.directions.find(source, target)
                found[source, target] = replace(direction, source_symbols=(*direction.source_symbols, *tag_symbols))
                if not self.directions.is_trained(direction.languages):
                    logger.warning("%s was not trained: its quality is a matter of luck", direction.languages)
        return [found[pair] for pair in wanted]

    def _check_not_forked(self) -> None:
        """Raise UsageError in a forked process that would wait forever: the engine's threads are not in it."""
        is_torch_on_cpu = self.engine == "torch" and self.device == "cpu"
        if os.getpid() == self._process_id or (is_torch_on_cpu and torch.get_num_threads() == 1):
            return
        hint = "start the process by spawn, and open the model there"
        if is_torch_on_cpu:
            hint += "; or call torch.set_num_threads(1) in it first"
        raise UsageError("this process was forked after the model was opened", where=repr(self), hint=hint)

    def _split(
        self,
        lines: Sequence[str],
        directions: Sequence[Direction],
        prefixes: Sequence[str] | None,
        kept: Sequence[Sequence[Range]] | None,
        terms: Sequence[TermList | None] | None,
        *,
        config: DecodingConfig,
        copy_symbols: bool,
        first_line: int,
    ) -> list[SplitLine]:
        """Each line in the sentences that the model reads. A message calls a line with kept ranges by its text."""
        for number, text in enumerate(lines, first_line):
            check_characters(text, where=f"line {number}")
        prefix_ids = self._encode_prefixes(prefixes, num_lines=len(lines), first_line=first_line)
        rows = self._engine.source.encode_raw(lines)
        kept_of_lines: Sequence[Sequence[Range]] = [()] * len(lines) if kept is None else kept
        terms_of_lines: Sequence[TermList | None] = [None] * len(lines) if terms is None else terms
        split_lines = []
        for number, (line, direction, ids, prefix, kept_in_line, of_line) in enumerate(
            zip(lines, directions, rows, prefix_ids, kept_of_lines, terms_of_lines, strict=True), first_line
        ):
            languages = direction.languages
            if copy_symbols and not has_letters(line):
                whole = in_one_line(line)
                kept_here = without_overlaps(kept_in_line)
                copy = LineSentence(whole, SourceSentence(ids), languages, kept=kept_here, is_copied=True)
                split_lines.append(SplitLine(SplitText([whole], ["", ""]), [copy], languages))
                continue
            kept_here = without_overlaps(kept_in_line, find_kept(line) if copy_symbols else [])
            place = f"line {number}" if kept is None else f"the text {beginning_of(line)!r}"
            split_lines.append(
                self._split_line(
                    line, direction, ids, prefix, kept_here, of_line, config=config, key=str(number), place=place
                )
            )
        return split_lines

    def _split_line(
        self,
        line: str,
        direction: Direction,
        ids: Sequence[int],
        prefix: Sequence[int],
        kept: Sequence[Range],
        terms: TermList | None,
        *,
        config: DecodingConfig,
        key: str,
        place: str,
    ) -> SplitLine:
        """The line itself, or its parts: the first sentence gets the prefix. Keys are 7, or 7.0, 7.1 and so on."""
        languages, engine = direction.languages, self._engine
        symbols = SymbolIds.of(direction, source=engine.source, target=engine.target)
        positions = engine.max_positions - max(map(len, symbols))
        # An output may be longer than its source. So positions are kept free for it, but at most half of them.
        longest = positions - max(1, min(config.max_extra_tokens, positions // 2))
        # Nobody knows where a prefix ends, so a line with a prefix stays whole.
        when = "never" if prefix else config.split_sentences
        split = self._splitter.split(line, ids, languages.source, when=when, place=place, model_limit=longest)
        kept_parts = split.ranges_by_sentence(kept)
        cased = [
            CasedText(part, None) if prefix else self._as_sentence(part, kept_part, languages.source)
            for part, kept_part in zip(split.sentences, kept_parts, strict=True)
        ]
        is_whole = len(cased) == 1
        as_typed = is_whole and cased[0].casing is None
        part_rows = [ids] if as_typed else engine.source.encode_raw([part.text for part in cased])
        sentences = [
            LineSentence(
                text,
                SourceSentence(part_ids, () if index else prefix, key if is_whole else f"{key}.{index}", symbols),
                languages,
                casing,
                kept_part,
                terms,
                is_copied=(bool(kept_part) or not is_whole) and not has_letters(without_ranges(text, kept_part)),
            )
            for index, ((text, casing), kept_part, part_ids) in enumerate(
                zip(cased, kept_parts, part_rows, strict=True)
            )
        ]
        return SplitLine(split, sentences, languages)

    def _as_sentence(self, text: str, kept: Sequence[Range], language: str) -> CasedText:
        engine = self._engine
        return as_sentence(text, kept, tokenizer=engine.source, language=language, trained=engine.trained_lines)

    def _encode_prefixes(self, prefixes: Sequence[str] | None, *, num_lines: int, first_line: int) -> list[list[int]]:
        """The pieces of the prefix of each line; DataError if a prefix is missing or too long."""
        if prefixes is None:
            return [[] for _ in range(num_lines)]
        if len(prefixes) != num_lines:
            raise DataError(
                f"there are {num_lines:,} lines and {len(prefixes):,} prefixes",
                setting="prefix",
                hint="give one line of prefixes for each line of text; an empty one leaves its translation free",
            )
        for number, prefix in enumerate(prefixes, first_line):
            check_characters(prefix, where=f"the prefix of line {number}")
        encoded = self._engine.target.encode_raw(prefixes)
        longest = self._engine.max_positions - 1 - self.directions.num_target_symbols
        for number, ids in enumerate(encoded, first_line):
            if len(ids) > longest:
                raise DataError(
                    f"the prefix of line {number} has {len(ids):,} pieces, and this model takes {longest:,}",
                    setting="prefix",
                    where=f"line {number}",
                    hint="shorten it",
                )
        return encoded


def _for_each(code: str | Sequence[str | None] | None, lines: Sequence[str]) -> list[str | None]:
    """The code of a language for each line, from one for all or one for each; ValueError for another number."""
    if code is None or isinstance(code, str):
        return [code] * len(lines)
    if len(code) != len(lines):
        raise ValueError(f"there are {len(lines)} lines, and {len(code)} languages")
    return list(code)


def _check_markup(markup: str, is_given: Mapping[str, bool]) -> None:
    """Raise UsageError unless there is such markup, and nothing is given that is only of plain text."""
    if markup not in MARKUP:
        raise UsageError(f"there is no markup called {markup!r}", setting="markup", hint="take html or xml")
    for setting in (name for name, is_here in is_given.items() if is_here):
        message = f"`{setting}` is of plain text, and the lines are {markup}"
        raise UsageError(message, setting=setting, hint=f"leave out `{setting}`, or `markup`")


def _joined(document: MarkupDocument, blocks: Sequence[Sequence[tuple[MarkedText, Translation]]]) -> Translation:
    """The translation of a document, made of the candidates of its blocks: the best of each, and so on.

    The last candidate of a block stands for all that are missing.
    """
    best, *others = [
        Translation(
            in_one_line(document.render([marked for marked, _ in ranked])),
            sum(candidate.score for _, candidate in ranked),
            sum(candidate.log_prob for _, candidate in ranked),
            sum(candidate.num_pieces for _, candidate in ranked),
            unmet_terms=tuple(term for _, candidate in ranked for term in candidate.unmet_terms),
        )
        for rank in range(max(map(len, blocks), default=1))
        for ranked in [[candidates[min(rank, len(candidates) - 1)] for candidates in blocks]]
    ]
    return replace(best, alternatives=tuple(others))
