"""The messages of PO files, which have the texts of programs."""

from __future__ import annotations

import re

import polib

from nmt_cli.documents.lines import lines_of, text_parts
from nmt_cli.documents.parts import Part
from nmt_cli.errors import DataError
from nmt_cli.languages import match_code
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.tokenization.pieces import Range

_PO_STRINGS = r'"(?:[^"\\\n]|\\.)*"(?:\s*\n[ \t]*"(?:[^"\\\n]|\\.)*")*'
# In the header, which is the translation of the empty text.
_PO_LANGUAGE = re.compile(r'^"Language: *([A-Za-z][\w@-]*) *\\n"', re.M)
_PO_FIELD = re.compile(
    rf"^(?P<name>msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)[ \t]*(?P<strings>{_PO_STRINGS})", re.M
)
_PO_CHARSET = re.compile(r'("Content-Type:[^"\n]*?\bcharset=)([\w.:-]+)', re.IGNORECASE)
_PO_SECOND_FORM = re.compile(r"\s*msgstr\[1\]")
_PO_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def po_parts(text: str, *, languages: LanguagePair, name: str) -> list[Part]:
    """The messages of a PO file or template without a translation, in the places of their translations.

    The first of several plural forms translates the singular, and all others translate the plural. The header says
    UTF-8. DataError if the file is not PO, or is for another target language.
    """
    language = _PO_LANGUAGE.search(text)
    if language and match_code(languages.target, [language[1].replace("_", "-")]) is None:
        message = f"{name} is to be translated into {language[1]}, and this model translates into {languages.target}"
        raise DataError(
            message, where=name, hint=f"name this language: --to {language[1]}, or give a model of it with -m"
        )
    text = _PO_CHARSET.sub(lambda found: found[0] if found[2].lower() == "utf-8" else f"{found[1]}UTF-8", text, count=1)
    parts: list[Part] = []
    line_end = "\r\n" if "\r\n" in text else "\n"
    position = end = 0
    message = plural = name_before = ""
    comments: Range | None = None
    for match in _PO_FIELD.finditer(text):
        value = "".join(map(polib.unescape, _PO_STRING.findall(match["strings"])))
        if match["name"] == "msgctxt" or (match["name"] == "msgid" and name_before != "msgctxt"):
            comments = end, match.start()
        if match["name"] == "msgid":
            message = plural = value
        elif match["name"] == "msgid_plural":
            plural = value
        elif match["name"].startswith("msgstr") and message and not value:
            source = message if _PO_SECOND_FORM.match(text, match.end()) else plural
            if comments:
                parts += [text[position : comments[0]], _with_fuzzy(text[slice(*comments)], line_end)]
                position, comments = comments[1], None
            parts += [text[position : match.start("strings")], *_po_string(source, line_end)]
            position = match.end()
        end, name_before = match.end(), match["name"]
    if not position and "msgid" not in text and text.strip():
        hint = 'a PO file has lines such as msgid "text" and msgstr ""'
        raise DataError(f"{name} is not PO", where=name, hint=hint)
    return [*parts, text[position:]]


def _with_fuzzy(comments: str, line_end: str) -> str:
    """The comments before a message, which say that a translator has to look at its translation.

    Obsolete messages before it are comments, too.
    """
    start = max((line.end() for line in re.finditer(r"^#~.*$", comments, re.M)), default=0)
    obsolete, own = comments[:start], comments[start:]
    if re.search(r"^#,.*\bfuzzy\b", own, re.M):
        return comments
    flagged, num_flags = re.subn(r"^#,", "#, fuzzy,", own, count=1, flags=re.M)
    return obsolete + (flagged if num_flags else f"{own}#, fuzzy{line_end}")


def _po_string(source: str, line_end: str) -> list[Part]:
    """A string of a PO file; one with line breaks has a line for each of its lines, as gettext writes it."""
    lines = lines_of(source)
    parts: list[Part] = [f'""{line_end}' if len(lines) > 1 else ""]
    for number, line in enumerate(lines):
        parts += [line_end if number else "", '"', *text_parts(line, polib.escape), '"']
    return parts
