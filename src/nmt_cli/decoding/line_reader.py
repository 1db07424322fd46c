"""Lines as the model reads them: split into sentences, in its casing, with the symbols of their direction."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nmt_cli.decoding.engine import Engine
from nmt_cli.decoding.search.hypotheses import SourceSentence, SymbolIds
from nmt_cli.decoding.terms import TermList
from nmt_cli.decoding.translation import LineSentence, SplitLine, in_one_line
from nmt_cli.documents.kept_text import find_kept, without_overlaps, without_ranges
from nmt_cli.documents.marked_text import beginning_of
from nmt_cli.errors import DataError, UsageError
from nmt_cli.languages import match_code
from nmt_cli.recipe.schema import DecodingConfig, LanguagePair
from nmt_cli.text_encoding import check_characters
from nmt_cli.tokenization.casing import CasedText, as_sentence, in_sentence_case
from nmt_cli.tokenization.pieces import Range
from nmt_cli.tokenization.sentence_splitting import LineSplitter
from nmt_cli.tokenization.split_text import SplitText, has_letters
from nmt_cli.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_TYPED_SYMBOL = re.compile(r"\s*(>>\S+?<<)\s*")


@dataclass(frozen=True, slots=True)
class AskedLine:
    """A line to translate, the codes of its languages if they are given, and what its translation must have.

    `prefix` is the beginning of the translation. The `kept` ranges of the line stay as they are; None if it is plain
    text.
    """

    text: str
    to: str | None
    from_: str | None
    prefix: str
    kept: Sequence[Range] | None
    terms: TermList | None


class LineReader:
    """Makes the sentences that an engine searches of lines."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._splitter = LineSplitter(engine.source, trained=engine.trained_lines)
        self._directions: dict[tuple[str | None, str | None, tuple[str, ...]], tuple[LanguagePair, SymbolIds]] = {}
        self._typed_symbols = {
            symbol: code for code, symbol in engine.directions.target_symbols.items() if symbol.startswith(">>")
        }
        """The codes of target languages by the symbols that the users of OPUS-MT type."""

    def read(
        self,
        lines: Sequence[AskedLine],
        *,
        tags: Mapping[str, str],
        config: DecodingConfig,
        copy_symbols: bool,
        first_line: int,
    ) -> list[SplitLine]:
        """Each line in its sentences. A message calls a line by its number, or by its text if it has kept ranges.

        The errors are those of `LineTranslator.translate`.
        """
        for number, line in enumerate(lines, first_line):
            check_characters(line.text, where=f"line {number}")
        prefixes = self._prefixes(lines, first_line=first_line)
        lines = [self._without_typed_symbol(line, number) for number, line in enumerate(lines, first_line)]
        tag_symbols = self._tag_symbols(tags)
        rows = self._engine.source.encode_source([line.text for line in lines])
        split_lines = []
        for number, (line, ids, prefix) in enumerate(zip(lines, rows, prefixes, strict=True), first_line):
            languages, symbols = self._direction(line.from_, line.to, tag_symbols)
            if copy_symbols and not has_letters(line.text):
                split_lines.append(_copied_line(line, ids, languages))
                continue
            kept = without_overlaps(line.kept or (), find_kept(line.text) if copy_symbols else [])
            place = f"line {number}" if line.kept is None else f"the text {beginning_of(line.text)!r}"
            source = SourceSentence(ids, prefix, str(number), symbols)
            split_lines.append(self._split(replace(line, kept=kept), source, languages, config=config, place=place))
        return split_lines

    def check_direction(self, from_: str | None, to: str | None) -> None:
        """Raise UsageError if lines that name no language themselves have no direction."""
        if to is not None or not self._typed_symbols:
            self._engine.directions.find(from_, to)

    def _split(
        self, line: AskedLine, source: SourceSentence, languages: LanguagePair, *, config: DecodingConfig, place: str
    ) -> SplitLine:
        """The line itself, or its parts: the first sentence gets the prefix. Keys are 7, or 7.0, 7.1 and so on."""
        longest = config.longest_source(self._engine.max_positions - max(map(len, source.symbols)))
        # Nobody knows where a prefix ends, so a line with a prefix stays whole.
        when = "never" if source.prefix else config.split_sentences
        split = self._splitter.split(
            line.text, source.ids, languages.source, kept=line.kept or (), when=when, place=place, model_limit=longest
        )
        kept_parts = split.kept_by_sentence()
        cased = [
            self._as_sentence(part, kept, languages.source)
            for part, kept in zip(split.sentences, kept_parts, strict=True)
        ]
        is_whole = len(cased) == 1
        as_typed = is_whole and cased[0].casing is None
        if source.prefix and cased:
            target = self._engine.target
            cased[0], prefix = cased_with_prefix(cased[0], line.prefix, tokenizer=target, language=languages.target)
            if prefix != line.prefix:
                source = replace(source, prefix=target.encode_target([prefix])[0])
        rows = [source.ids] if as_typed else self._engine.source.encode_source([part.text for part in cased])
        sentences = []
        for index, ((text, casing), kept, ids) in enumerate(zip(cased, kept_parts, rows, strict=True)):
            key = source.key if is_whole else f"{source.key}.{index}"
            sentence = replace(source, ids=ids, prefix=() if index else source.prefix, key=key)
            is_copied = (bool(kept) or not is_whole) and not has_letters(without_ranges(text, kept))
            sentences.append(LineSentence(text, sentence, languages, casing, kept, line.terms, is_copied=is_copied))
        return SplitLine(split, sentences, languages)

    def _as_sentence(self, text: str, kept: Sequence[Range], language: str) -> CasedText:
        engine = self._engine
        return as_sentence(text, kept, tokenizer=engine.source, language=language, trained=engine.trained_lines)

    def _without_typed_symbol(self, line: AskedLine, number: int) -> AskedLine:
        """A line without the target language that the users of OPUS-MT type before it; it is translated into that.

        UsageError if the model does not have this language, or if nothing says the language of the line.
        """
        if not self._typed_symbols or line.kept is not None:
            return line
        typed, targets = _TYPED_SYMBOL.match(line.text), self._engine.directions.targets
        if typed is None and line.to is None and line.text.strip() and len(targets) > 1:
            message = f"line {number} does not say the language to translate into"
            raise UsageError(message, where=f"line {number}", setting="to", hint=f"for example `to: {targets[0]}`")
        if typed is None:
            return replace(line, to=line.to or targets[0])
        code = self._typed_symbols.get(typed[1]) or match_code(typed[1].strip("<>"), targets)
        if code is None:
            message = f"line {number} is to be translated by {typed[1]}, which the model does not know"
            raise UsageError(message, where=f"line {number}", hint=f"write one of its languages: >>{targets[0]}<<")
        return replace(line, text=line.text[typed.end() :], to=code)

    def _direction(
        self, from_: str | None, to: str | None, tag_symbols: tuple[str, ...]
    ) -> tuple[LanguagePair, SymbolIds]:
        """The languages of a line and its symbols; the log says once if the model was not trained for them."""
        key, engine = (from_, to, tag_symbols), self._engine
        if key not in self._directions:
            direction = engine.directions.find(from_, to)
            symbols = SymbolIds.of(direction, source=engine.source, target=engine.target)
            symbols = symbols._replace(source=(*symbols.source, *engine.source.symbol_ids(tag_symbols)))
            self._directions[key] = direction.languages, symbols
            if not engine.directions.is_trained(direction.languages):
                logger.warning("the model was not trained for %s: read what it writes", direction.languages)
        return self._directions[key]

    def _tag_symbols(self, tags: Mapping[str, str]) -> tuple[str, ...]:
        """The symbols of tags, in the order of training; UsageError if the vocabulary lacks one."""
        known = self._engine.source.tags if tags else []
        for name, value in tags.items():
            if f"{name}={value}" not in known:
                hint = f"take one of its tags: {', '.join(known)}" if known else "leave `tag` out"
                raise UsageError(f"the model was trained without the tag {name}={value}", setting="tag", hint=hint)
        return tuple(f"<{name}:{tags[name]}>" for name in sorted(tags))

    def _prefixes(self, lines: Sequence[AskedLine], *, first_line: int) -> list[list[int]]:
        """The pieces of the prefix of each line; DataError if one is too long."""
        if not any(line.prefix for line in lines):
            return [[] for _ in lines]
        for number, line in enumerate(lines, first_line):
            check_characters(line.prefix, where=f"the prefix of line {number}")
        prefixes = self._engine.target.encode_target([line.prefix for line in lines])
        longest = self._engine.max_positions - 1 - self._engine.directions.num_target_symbols
        for number, ids in enumerate(prefixes, first_line):
            if len(ids) > longest:
                raise DataError(
                    f"the prefix of line {number} has {len(ids):,} pieces, and this model takes {longest:,}",
                    setting="prefix",
                    where=f"line {number}",
                    hint="shorten it",
                )
        return prefixes


def cased_with_prefix(cased: CasedText, prefix: str, *, tokenizer: Tokenizer, language: str) -> tuple[CasedText, str]:
    """A line in its casing, and the prefix of its translation, as the model reads both.

    The translation of a line in capitals is in capitals if its prefix is. `tokenizer` and `language` are the target's.
    """
    if cased.casing != "capitals" or not prefix:
        return cased, prefix
    if not prefix.isupper():
        return CasedText(cased.text, None), prefix
    return cased, in_sentence_case(prefix, find_kept(prefix), tokenizer=tokenizer, language=language)


def _copied_line(line: AskedLine, ids: Sequence[int], languages: LanguagePair) -> SplitLine:
    """A line without letters, which stays as it is."""
    whole, kept = in_one_line(line.text), without_overlaps(line.kept or ())
    copy = LineSentence(whole, SourceSentence(ids), languages, kept=kept, is_copied=True)
    return SplitLine(SplitText([whole], ["", ""]), [copy], languages)
