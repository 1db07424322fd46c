"""The XML inside of Office and OpenDocument files: paragraphs are blocks, and runs and spans are marks in them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from nmt_cli.documents.markup import block_writer, parts_between
from nmt_cli.documents.markup_tokens import MarkupRules, Token, markup_tokens, matching_tags
from nmt_cli.documents.parts import Part


def _names(prefix: str, names: str) -> frozenset[str]:
    return frozenset(f"{prefix}:{name}" for name in names.split())


@dataclass(frozen=True, slots=True)
class Runs:
    """The elements of a run of text with equal properties, how its text begins, and a field in the place of a run."""

    run: str
    properties: str
    text: str
    opening: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class OfficeRules:
    """What the elements of a document are.

    Text stands in `paragraphs`, in `runs` or directly. Elements of `codes` are empty marks, but paragraphs inside of
    them have blocks of their own. `separators` stand between blocks. What is inside of `kept` and `skipped` elements is
    not translated; kept ones stand in a line. `ignored` elements are left out, because programs make them anew.
    """

    paragraphs: frozenset[str]
    separators: frozenset[str]
    codes: frozenset[str]
    runs: Runs | None = None
    kept: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()


WORD = OfficeRules(
    paragraphs=_names("w", "p"),
    separators=_names("w", "tab br cr ptab"),
    codes=_names("w", "pPr del moveFrom sdtPr sdtEndPr smartTagPr customXmlPr")
    | _names("m", "oMath oMathPara")
    | {"mc:AlternateContent"},
    runs=Runs("w:r", "w:rPr", "w:t", '<w:t xml:space="preserve">'),
    kept=frozenset({"w:fldSimple", "field"}),
    ignored=_names("w", "proofErr lastRenderedPageBreak"),
)
DRAWING = OfficeRules(
    paragraphs=_names("a", "p"),
    separators=_names("a", "br tab"),
    codes=_names("a", "pPr endParaRPr") | {"a14:m", "mc:AlternateContent"},
    runs=Runs("a:r", "a:rPr", "a:t", "<a:t>", field="a:fld"),
    kept=frozenset({"a:fld"}),
)
OPEN_DOCUMENT = OfficeRules(
    paragraphs=_names("text", "p h"),
    separators=_names("text", "tab line-break"),
    codes=_names("text", "note ruby-text s")
    | _names("draw", "frame custom-shape g line path rect control")
    | _names("office", "annotation"),
    kept=_names(
        "text",
        """
        page-number page-count date time sequence sequence-ref bookmark-ref reference-ref note-ref file-name chapter
        author-name author-initials title subject user-defined variable-set variable-get expression database-display
        """,
    ),
    skipped=_names("text", "tracked-changes"),
)
# Properties that do not change how text looks.
_INVISIBLE = re.compile(
    r"<w:(?:lang|noProof)\b[^<>]*/>|<w:rFonts w:hint=\"\w+\"/>| (?:lang|altLang|dirty|err|noProof|smtClean)=\"[^\"]*\""
)
_NO_PROPERTIES = re.compile(r"<([\w:]+)\s*(?:/>|></\1>)")
_FIELD_CHARACTER = re.compile(r"<w:fldChar\b[^<>]*w:fldCharType=\"(begin|separate|end)\"")
_RUBY, _RUBY_BASE = "w:ruby", "w:rubyBase"
_FIELD_BEGIN, _FIELD_SEPARATE, _FIELD_END = "field begin", "field separate", "field end"
_XML = MarkupRules("xml", blocks=None)


def office_parts(text: str, rules: OfficeRules) -> tuple[list[Part], list[list[Part]]]:
    """The parts of a document, and those inside of codes in a line: a number between zeros is in their place."""
    reader = _Reader(rules)
    parts = reader.read(list(markup_tokens(text, _XML)))
    return parts, reader.nested


class _Reader:
    """Reads paragraphs, and those inside of codes in them."""

    def __init__(self, rules: OfficeRules) -> None:
        self._rules = rules
        self._markup_rules = MarkupRules("xml", blocks=None, kept=rules.kept)
        self.nested: list[list[Part]] = []

    def read(self, tokens: Sequence[Token]) -> list[Part]:
        """The parts of tokens outside of paragraphs."""
        pairs = matching_tags(tokens)
        parts: list[Part] = []
        index = 0
        while index < len(tokens):
            token = tokens[index]
            end = pairs.get(index, index) if token.kind == "open" else index
            if end > index and token.name in self._rules.skipped:
                parts.append(_raw(tokens[index : end + 1]))
            elif end > index and token.name in self._rules.paragraphs:
                parts += [token.raw, *self._paragraph(tokens[index + 1 : end]), tokens[end].raw]
            else:
                parts.append(token.raw)
                end = index
            index = end + 1
        return parts

    def _paragraph(self, tokens: Sequence[Token]) -> list[Part]:
        """The blocks of a paragraph, which separators divide."""
        tokens = self._with_whole_codes(tokens)
        if not any(token.kind == "text" and any(map(str.isalpha, token.raw)) for token in tokens):
            return [_raw(tokens)]
        base = ""
        if self._rules.runs:
            tokens, base = _flattened(tokens, self._rules.runs)
        parts = parts_between(
            tokens,
            self._markup_rules,
            block_writer(tokens, self._markup_rules),
            separator_parts=lambda token: [token.raw] if token.name in self._rules.separators else [],
        )
        if self._rules.runs is None:
            return parts
        in_runs = partial(_in_runs, rules=self._rules, runs=self._rules.runs, properties=base)
        return [in_runs(part) if isinstance(part, str) else part.respelled(in_runs) for part in parts]

    def _with_whole_codes(self, tokens: Sequence[Token]) -> list[Token]:
        """The tokens, where each element of code is one token with its content, and nothing is ignored.

        Whatever stands in a run beside its text and its properties is code, too.
        """
        pairs, runs = matching_tags(tokens), self._rules.runs
        whole: list[Token] = []
        end_of_run = index = -1
        while (index := index + 1) < len(tokens):
            token = tokens[index]
            if token.name in self._rules.ignored:
                continue
            end = pairs.get(index, index) if token.kind == "open" else index
            is_code = token.name in self._rules.codes
            if runs is not None:
                is_code |= index < end_of_run and token.name not in (runs.properties, runs.text)
                if token.name == runs.run and end > index:
                    end_of_run = end
            base = _ruby_base(tokens, pairs, index) if token.name == "w:r" and end > index else None
            if base is not None:
                inner = self._with_whole_codes(tokens[base + 1 : pairs[base]])
                whole.append(Token("open", _raw(tokens[index : base + 1]), _RUBY))
                whole += [*inner, Token("close", _raw(tokens[pairs[base] : end + 1]), _RUBY)]
                index = end
            elif end > index and (is_code or (runs is not None and token.name == runs.properties)):
                whole.append(Token("empty", self._code(tokens[index : end + 1]), token.name))
                index = end
            else:
                whole.append(token)
        return whole

    def _code(self, tokens: Sequence[Token]) -> str:
        """An element of code as it is written; a number stands for one with paragraphs, which have parts."""
        if not any(token.name in self._rules.paragraphs for token in tokens):
            return _raw(tokens)
        number = len(self.nested)
        self.nested.append([])
        self.nested[number] = self.read(tokens)
        return f"\0{number}\0"


def _ruby_base(tokens: Sequence[Token], pairs: dict[int, int], run: int) -> int | None:
    """The index of the base in a run whose text has a reading above it; None if it has none."""
    index = run + 1
    while index < pairs[run] and tokens[index].name != _RUBY_BASE:
        if tokens[index].name != _RUBY:  # other elements may have runs of their own
            index = pairs.get(index, index)
        index += 1
    return index if index < pairs[run] and index in pairs else None


@dataclass(frozen=True, slots=True)
class _Text:
    """Text in a run, as it is written, with its properties and what of them can be seen."""

    raw: str
    properties: str
    look: str


def _flattened(tokens: Sequence[Token], runs: Runs) -> tuple[list[Token], str]:
    """The tokens of a paragraph without its runs, and the properties that most of its text outside of links has.

    Text with other properties has tags around it. Anything else of a run is an empty tag.
    """
    items = _with_fields(_merged_texts(tokens, runs), runs)
    lengths: Counter[str] = Counter()
    lengths_outside: Counter[str] = Counter()
    spellings: dict[str, str] = {}
    depth = 0
    for item in items:
        if isinstance(item, Token):
            depth += (item.kind == "open") - (item.kind == "close")
            continue
        lengths[item.look] += len(item.raw.strip())
        lengths_outside[item.look] += len(item.raw.strip()) if depth == 0 else 0
        spellings.setdefault(item.look, item.properties)
    base = max(lengths, key=lambda look: (lengths_outside[look], lengths[look]), default="")
    flat: list[Token] = []
    for number, item in enumerate(items):
        if isinstance(item, Token):
            flat.append(item)
        elif item.look == base:
            flat.append(Token("text", item.raw))
        else:
            flat += _tagged(item, runs, f"run {number}")
    return flat, spellings.get(base, "")


def _tagged(text: _Text, runs: Runs, name: str) -> list[Token]:
    opening = f"<{runs.run}>{text.properties}{runs.opening}"
    closing = f"</{runs.text}></{runs.run}>"
    return [Token("open", opening, name), Token("text", text.raw), Token("close", closing, name)]


def _merged_texts(tokens: Sequence[Token], runs: Runs) -> list[Token | _Text]:
    """The texts of a paragraph, and all else that stands between them; neighbours that look the same are one."""
    merged: list[Token | _Text] = []
    for item in _texts(tokens, runs):
        last = merged[-1] if merged else None
        if isinstance(item, _Text) and isinstance(last, _Text) and (item.look == last.look or not item.raw.strip()):
            merged[-1] = replace(last, raw=last.raw + item.raw)
        else:
            merged.append(item)
    return merged


def _texts(tokens: Sequence[Token], runs: Runs) -> Iterator[Token | _Text]:
    pairs = matching_tags(tokens)
    properties = look = ""
    end_of_run = end_of_text = end_of_field = -1
    for index, token in enumerate(tokens):
        if index <= end_of_text:
            if token.kind == "text":
                yield _Text(token.raw, properties, look)
        elif index <= end_of_field:
            if token.kind == "text":
                yield token
            elif index == end_of_field:
                yield Token("close", f"</{runs.text}>{token.raw}", runs.field)
        elif token.name == runs.run and token.kind == "open":
            end_of_run, properties, look = pairs.get(index, -1), "", ""
        elif runs.field and token.name == runs.field and index in pairs:
            end_of_field = pairs[index]
            inner = tokens[index + 1 : end_of_field]
            before = [other.raw for other in inner if other.kind == "empty"]
            yield Token("open", f"{token.raw}{''.join(before)}<{runs.text}>", runs.field)
        elif index >= end_of_run:
            if token.name != runs.run and token.kind != "text":
                yield token
        elif token.name == runs.properties:
            properties = token.raw
            look = _INVISIBLE.sub("", properties).strip()
            look = "" if _NO_PROPERTIES.fullmatch(look) else look
        elif token.name == runs.text:
            end_of_text = pairs.get(index, index)
        elif token.name == "w:noBreakHyphen":
            yield _Text("\u2011", properties, look)
        elif token.kind != "text":
            character = _FIELD_CHARACTER.match(token.raw)
            name = f"field {character[1]}" if character else token.name
            yield Token("empty", f"<{runs.run}>{properties}{token.raw}</{runs.run}>", name)


def _with_fields(items: Sequence[Token | _Text], runs: Runs) -> list[Token | _Text]:
    """The items with each field as a pair of tags. The text of a field is kept, unless it is a link."""
    found: list[Token | _Text] = []
    index = 0
    while index < len(items):
        field = _field_at(items, index)
        if field is None:
            found.append(items[index])
            index += 1
            continue
        middle, end = field
        opening = _raw(_untagged(items[index : middle + 1], runs))
        closing = _raw(_untagged(items[end : end + 1], runs))
        if "HYPERLINK" in opening:
            name, inner = f"link {index}", _with_fields(items[middle + 1 : end], runs)
        else:
            name, inner = "field", [*_untagged(items[middle + 1 : end], runs)]
        found += [Token("open", opening, name), *inner, Token("close", closing, name)]
        index = end + 1
    return found


def _field_at(items: Sequence[Token | _Text], start: int) -> tuple[int, int] | None:
    """The indices at which the result of the field at `start` begins and ends; None if the field goes on elsewhere."""
    depth = middle = 0
    for index in range(start, len(items)):
        item = items[index]
        name = item.name if isinstance(item, Token) else ""
        if index == start and name != _FIELD_BEGIN:
            return None
        if isinstance(item, Token) and item.kind in ("open", "close"):
            return None  # it may begin and end in different elements
        depth += (name == _FIELD_BEGIN) - (name == _FIELD_END)
        if name == _FIELD_SEPARATE and depth == 1:
            middle = index
        if depth == 0:
            return (middle or index - 1), index
    return None


def _untagged(items: Sequence[Token | _Text], runs: Runs) -> list[Token]:
    """The items as tokens, each text in a run of its own."""
    tokens: list[Token] = []
    for item in items:
        if isinstance(item, Token):
            tokens.append(item)
        else:
            opening, text, closing = _tagged(item, runs, "")
            tokens += [opening._replace(kind="other"), text, closing._replace(kind="other")]
    return tokens


def _in_runs(markup: str, *, rules: OfficeRules, runs: Runs, properties: str) -> str:
    """The markup with each text that stands outside of runs in a run of its own."""
    holders = rules.codes | {runs.run, runs.field, _RUBY_BASE}
    parts: list[str] = []
    depth = 0
    for token in markup_tokens(markup, _XML):
        if token.name in holders:
            opens, closes = token.kind == "open", token.kind == "close"
            # A base stands in a run, and has runs itself.
            depth += closes - opens if token.name == _RUBY_BASE else opens - closes
        if token.kind == "text" and depth == 0:
            parts.append(f"<{runs.run}>{properties}{runs.opening}{token.raw}</{runs.text}></{runs.run}>")
        else:
            parts.append(token.raw)
    return "".join(parts)


def _raw(tokens: Sequence[Token]) -> str:
    return "".join(token.raw for token in tokens)
