"""XLIFF 1.2 and 2, and TMX: the translation stands beside its source, and existing translations stay."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from nmt_cli.documents.markup import block_writer, cdata_parts, parts_between
from nmt_cli.documents.markup_tokens import XML, Token, cdata_text, is_cdata, markup_tokens, matching_tags
from nmt_cli.documents.parts import Part
from nmt_cli.errors import DataError
from nmt_cli.languages import match_code, standard_code
from nmt_cli.recipe.schema import LanguagePair

# Their content is code of the document's format.
_CODES = frozenset(["ph", "it", "bpt", "ept", "ut"])
# The codes at the beginning and the end of a span. They are no tags because spans may overlap.
_SPAN_STARTS, _SPAN_ENDS = frozenset(["bpt", "bx", "sc"]), frozenset(["ept", "ex", "ec"])
_SPAN_KEYS = ("startRef", "rid", "i", "id")
# A code that stands alone may be a line break, which ends a text as <br> does in HTML.
_LONE_CODES = frozenset(["x", "ph", "it", "ut"])
_LINE_BREAK = re.compile(
    r"type\s*=\s*[\"'](?:lb|xlf:lb|x-(?:html-)?br)[\"']|<(?:\w+:)?br\b|[\"'>](?:\\r)?\\n[\"'<]", re.IGNORECASE
)
_UNITS = frozenset({"trans-unit", "segment"})
_NO_TRANSLATION = re.compile(r"new|initial|needs-(?:translation|adaptation|l10n)")
_FOR_REVIEW = "needs-review-translation"
# What a translator says of a unit: of XLIFF 1.2, of Phrase's MXLIFF, and of memoQ's MQXLIFF.
_APPROVALS = (
    *(("approved", "yes"), ("m:confirmed", "1"), ("m:locked", "true"), ("mq:locked", "locked")),
    *(("mq:status", status) for status in ("ManuallyConfirmed", "Reviewer1Confirmed", "Proofread")),
)


class _Tree:
    """The tokens of a document, and the elements directly inside of each element, by their indices."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.pairs = matching_tags(tokens)
        self.parents: list[int] = []
        self.children: dict[int, list[int]] = {}
        parent = -1
        for index, token in enumerate(tokens):
            if token.kind == "close" and index in self.pairs:
                parent = self.parents[self.pairs[index]]
            self.parents.append(parent)
            if token.kind in ("open", "empty"):
                self.children.setdefault(parent, []).append(index)
            if token.kind == "open" and index in self.pairs:
                parent = index

    def named(self, *names: str) -> list[int]:
        """The elements with one of these names, whatever their namespace."""
        return [
            index for index, token in enumerate(self.tokens) if _local_name(token) in names and token.kind != "close"
        ]

    def child(self, parent: int, name: str) -> int | None:
        """The first element of this name directly inside of another one."""
        children = self.children.get(parent, ())
        return next((index for index in children if _local_name(self.tokens[index]) == name), None)

    def end(self, index: int) -> int:
        """The token that ends an element: the element itself if it is empty."""
        return self.pairs.get(index, index)

    def inner(self, index: int) -> Sequence[Token]:
        """The tokens inside of an element."""
        return self.tokens[index + 1 : self.end(index)]

    def inner_text(self, index: int) -> str:
        """The text of an element as it is written, without tags and codes."""
        inner = [one for one in _with_whole_codes(self.inner(index)) if one.kind == "text" or is_cdata(one)]
        return "".join(cdata_text(one) if is_cdata(one) else one.raw for one in inner).strip()

    def segments(self, index: int) -> dict[str, int]:
        """The segments inside of a source or a target, by what both call them."""
        marks = [one for one in range(index + 1, self.end(index)) if _attribute(self.tokens[one], "mtype") == "seg"]
        return {_attribute(self.tokens[one], "mid") or str(number): one for number, one in enumerate(marks)}

    def space_before(self, index: int) -> str:
        """The white space before a tag, with which its line begins."""
        before = self.tokens[index - 1].raw if index else ""
        return before if before.isspace() else ""

    def is_translated(self, index: int) -> bool:
        """False if the element, or the nearest one around it that says so, is not to be translated."""
        while index >= 0:
            if value := _attribute(self.tokens[index], "translate"):
                return value == "yes"
            index = self.parents[index]
        return True

    def assembled(self, replaced: dict[int, tuple[int, list[Part]]]) -> list[Part]:
        """The document with new parts in the place of some tokens.

        `replaced` has the index after the last of these tokens and the new parts, by the index of the first.
        """
        parts: list[Part] = []
        index = 0
        while index < len(self.tokens):
            end, new = replaced.get(index, (index + 1, [self.tokens[index].raw]))
            parts += new
            index = end
        return parts


def xliff_parts(text: str, *, languages: LanguagePair, name: str) -> list[Part]:
    """The segments of an XLIFF file that have no translation, in the places of their translations."""
    tree = _Tree(list(markup_tokens(text, XML)))
    roots = tree.named("xliff")
    _check_root(roots, "xliff", name=name)
    _check_languages(tree, roots, languages, name=name)
    replaced: dict[int, tuple[int, list[Part]]] = {}
    for unit in tree.named(*_UNITS):
        source, target = tree.child(unit, "source"), tree.child(unit, "target")
        if source is None or not tree.is_translated(unit):
            continue
        content = tree.child(unit, "seg-source") or source
        is_old = _local_name(tree.tokens[unit]) == "trans-unit"
        if target is None:
            tag = tree.tokens[source].name.replace("source", "target")
            opening = f'<{tag} state="{_FOR_REVIEW}">' if is_old else f"<{tag}>"
            end, translated = tree.end(content), _inline_parts(tree.inner(content))
            new = [tree.tokens[end].raw, tree.space_before(source), opening, *translated, f"</{tag}>"]
            replaced[end] = end + 1, new
        elif untranslated := _untranslated(tree, unit, content, target):
            tag = _with_attribute(tree.tokens[target], "state", _FOR_REVIEW) if is_old else tree.tokens[target].raw
            replaced[target] = target + 1, [tag]
            for element, own in untranslated.items():
                token = tree.tokens[element]
                opening = (tag if element == target else token.raw).removesuffix(">").rstrip("/ ") + ">"
                new = [opening, *_inline_parts(tree.inner(own)), f"</{token.name}>"]
                replaced[element] = tree.end(element) + 1, new
        else:
            continue
        if is_old and _attribute(tree.tokens[unit], "approved") == "yes":
            replaced[unit] = unit + 1, [_with_attribute(tree.tokens[unit], "approved", "no")]
        elif not is_old and _attribute(tree.tokens[unit], "state") in ("", "initial"):
            tag = _with_attribute(tree.tokens[unit], "state", "translated")
            replaced[unit] = unit + 1, [re.sub(r"\s+subState\s*=\s*(?:\"[^\"]*\"|'[^']*')", "", tag)]
    if replaced:
        attribute, elements = "target-language", tree.named("file")
        if _attribute(tree.tokens[roots[0]], "srcLang"):
            attribute, elements = "trgLang", roots
        for index in elements:
            if not _attribute(tree.tokens[index], attribute):
                new = [_with_attribute(tree.tokens[index], attribute, standard_code(languages.target))]
                replaced[index] = index + 1, new
    return tree.assembled(replaced)


def tmx_parts(text: str, *, languages: LanguagePair, name: str) -> list[Part]:
    """The units of a translation memory without the target language, in the places of their translations."""
    tree = _Tree(list(markup_tokens(text, XML)))
    _check_root(tree.named("tmx"), "tmx", name=name)
    replaced: dict[int, tuple[int, list[Part]]] = {}
    found: dict[str, None] = {}
    has_source = False
    for unit in tree.named("tu"):
        variants: dict[str, int] = {}
        for index in tree.children.get(unit, ()):
            if _local_name(tree.tokens[index]) == "tuv":
                code = _attribute(tree.tokens[index], "xml:lang") or _attribute(tree.tokens[index], "lang") or ""
                variants[code.replace("_", "-")] = index
        found |= dict.fromkeys(variants)
        codes = [code for code in variants if code[:1].isalpha()]
        source, target = match_code(languages.source, codes), match_code(languages.target, codes)
        has_source |= source is not None
        segment = tree.child(variants[source], "seg") if source is not None else None
        if source is None or segment is None:
            continue
        other = tree.child(variants[target], "seg") if target is not None else None
        if other is not None and not tree.inner_text(other):
            seg = tree.tokens[other].name
            replaced[other] = tree.end(other) + 1, [f"<{seg}>", *_inline_parts(tree.inner(segment)), f"</{seg}>"]
        elif target is None:
            tuv, last = tree.tokens[variants[source]], tree.end(max(variants.values()))
            attribute = "xml:lang" if _attribute(tuv, "xml:lang") else "lang"
            seg = tree.tokens[segment].name
            opening = f'<{tuv.name} {attribute}="{standard_code(languages.target)}">{tree.space_before(segment)}<{seg}>'
            closing = f"</{seg}>{tree.space_before(tree.end(variants[source]))}</{tuv.name}>"
            inserted = [tree.space_before(variants[source]), opening, *_inline_parts(tree.inner(segment)), closing]
            replaced[last] = last + 1, [tree.tokens[last].raw, *inserted]
    if not has_source:
        message = f"{name} has no text in {languages.source}, from which this model translates"
        message += f"; its languages are {', '.join(found)}" if found else ""
        raise DataError(message, where=name, hint="give a model of the other direction with -m, or another file")
    return tree.assembled(replaced)


def _check_languages(tree: _Tree, roots: Sequence[int], languages: LanguagePair, *, name: str) -> None:
    """Raise DataError if an XLIFF file names other languages than those of the model."""
    for index in (*roots, *tree.named("file")):
        for attributes, language, side in (
            (("srcLang", "source-language"), languages.source, "from"),
            (("trgLang", "target-language"), languages.target, "into"),
        ):
            code = next(filter(None, (_attribute(tree.tokens[index], attribute) for attribute in attributes)), "")
            if code[:1].isalpha() and match_code(language, [code.replace("_", "-")]) is None:
                message = f"{name} is to be translated {side} {code}, and this model translates {side} {language}"
                raise DataError(
                    message,
                    where=name,
                    hint="give a model of these languages with -m; one of several directions needs --from and --to",
                )


def _check_root(roots: Sequence[int], root: str, *, name: str) -> None:
    if not roots:
        message = f"{name} is no {root.upper()} file: it has no <{root}>"
        raise DataError(message, where=name, hint=f"give a file whose root is <{root}>, or its right ending")


def _untranslated(tree: _Tree, unit: int, source: int, target: int) -> dict[int, int]:
    """The target of a unit, or the segments in it, without a translation; each with its source.

    A text is a translation if the unit is approved, as its state says, or if it differs from the source.
    """
    sources, targets = tree.segments(source), tree.segments(target)
    pairs = {targets[name]: sources[name] for name in sources} if sources.keys() <= targets.keys() else {}
    pairs = pairs or {target: source}
    state = _attribute(tree.tokens[target], "state") or _attribute(tree.tokens[unit], "state")
    is_approved = any(_attribute(tree.tokens[unit], name) == value for name, value in _APPROVALS)
    if not tree.inner_text(target) or (_NO_TRANSLATION.fullmatch(state) and not is_approved):
        return pairs
    if is_approved or state:
        return {}
    return {one: own for one, own in pairs.items() if not _is_translation(tree.inner_text(one), tree.inner_text(own))}


def _is_translation(text: str, source: str) -> bool:
    """Whether a text differs from its source, in which there may be nothing to translate."""
    return bool(text) if text != source else not any(map(str.isalpha, source))


def _inline_parts(tokens: Sequence[Token]) -> list[Part]:
    """The content of a segment as blocks, or as it is if there is nothing to translate.

    CDATA and a code that stands for a line break are between two blocks.
    """
    tokens = _with_spans(_with_whole_codes(tokens))
    return parts_between(tokens, XML, block_writer(tokens, XML), separator_parts=_separator_parts)


def _separator_parts(token: Token) -> list[Part]:
    """The parts of CDATA or of a code that stands for a line break; of other tokens none."""
    if is_cdata(token):
        return cdata_parts(token)
    is_lone = token.kind == "empty" and _local_name(token) in _LONE_CODES
    return [token.raw] if is_lone and _LINE_BREAK.search(html.unescape(token.raw)) else []


def _with_whole_codes(tokens: Sequence[Token]) -> list[Token]:
    """The tokens with each element of code as one token."""
    pairs = matching_tags(tokens)
    whole: list[Token] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        end = pairs.get(index, index) if token.kind == "open" and _local_name(token) in _CODES else index
        if end > index:
            token = token._replace(kind="empty", raw="".join(inner.raw for inner in tokens[index : end + 1]))
        whole.append(token)
        index = end + 1
    return whole


def _with_spans(tokens: Sequence[Token]) -> list[Token]:
    """The tokens with the codes around a span as its tags. Codes of spans that overlap stay empty."""
    spans = list(tokens)
    parents = _Tree(tokens).parents
    started: list[tuple[str, int]] = []
    for index, token in enumerate(tokens):
        name = _local_name(token)
        if name not in _SPAN_STARTS | _SPAN_ENDS:
            continue
        key = next(filter(None, (_attribute(token, attribute) for attribute in _SPAN_KEYS)), "")
        if name in _SPAN_STARTS:
            started.append((key, index))
        elif started and started[-1][0] == key:
            _, start = started.pop()
            if parents[start] == parents[index]:
                spans[start] = Token("open", tokens[start].raw, f"span {start}")
                spans[index] = Token("close", token.raw, f"span {start}")
        else:
            started = [other for other in started if other[0] != key]
    return spans


def _local_name(token: Token) -> str:
    return token.name.rpartition(":")[2]


def _attribute(token: Token, name: str) -> str:
    """The value of an attribute of a tag; empty if it has none."""
    found = re.search(rf"(?<![\w:.-]){name}\s*=\s*(?:\"([^\"]*)\"|'([^']*)')", token.attributes)
    return (found[1] or found[2] or "") if found else ""


def _with_attribute(token: Token, name: str, value: str) -> str:
    """The tag with another value of an attribute."""
    pattern = rf"(?<![\w:.-])({name}\s*=\s*)(?:\"[^\"]*\"|'[^']*')"
    if re.search(pattern, token.attributes):
        return re.sub(pattern, rf'\g<1>"{value}"', token.raw, count=1)
    beginning = f"<{token.name}"
    return f'{beginning} {name}="{value}"{token.raw.removeprefix(beginning)}'
