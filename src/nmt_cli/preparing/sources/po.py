"""PO, the format of gettext: the messages of a program and their translations."""

from __future__ import annotations

import gettext
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import polib
from pydantic import Field

from nmt_cli.errors import DataError
from nmt_cli.preparing.sources.lines import join_lines, read_lines
from nmt_cli.preparing.sources.translation_units import Unit, UnitsSource

_MANY = range(2, 200)


class PoSource(UnitsSource):
    """A PO file of gettext. Messages without a finished translation are left out and counted."""

    endings = (".po",)
    kind: Literal["po"] = Field(description="messages and translations of a PO file")

    def units(self, file: Path) -> Iterator[Unit]:
        """Each message; of plurals, the singular with the form of one, and the plural with the form of many.

        The header names the language of the translations and its plural forms.
        """
        messages = _read_messages(file)
        language = messages.metadata.get("Language", "").strip()
        one, many = _plural_forms(messages.metadata.get("Plural-Forms", ""))
        for entry in messages:
            if entry.obsolete:
                continue
            pairs = [(entry.msgid, entry.msgstr)]
            if entry.msgid_plural:
                forms = entry.msgstr_plural if all(entry.msgstr_plural.values()) else {}
                pairs = [(entry.msgid, forms.get(one)), (entry.msgid_plural, forms.get(many))]
            for original, translation in pairs:
                texts = [("", join_lines(original))]
                if translation:
                    texts.append((language, join_lines(translation)))
                yield Unit(entry.linenum or 1, texts, is_finished=not entry.fuzzy)


def _read_messages(file: Path) -> polib.POFile:
    """The file as polib reads it. DataError if it is not PO, or not in the encoding that it names."""
    # polib would break the lines of a text in memory at U+2028 and the like as well.
    with tempfile.NamedTemporaryFile() as plain:
        plain.writelines(read_lines(file))
        plain.flush()
        try:
            return polib.pofile(plain.name)
        except UnicodeError as error:
            hint = "convert the file to UTF-8, and write charset=UTF-8 in its header"
            raise DataError(f"{file.name}: {error}", where=str(file), hint=hint) from None
        except OSError as error:
            line = re.search(r"\(line (\d+)\)", str(error))
            if line is None:
                raise
            hint = 'msgfmt --check names what is wrong with it; a PO file has lines such as msgid "text"'
            message = f"line {line[1]} of {file.name} is not PO"
            raise DataError(message, where=f"{file}:{line[1]}", hint=hint) from None


def _plural_forms(header: str) -> tuple[int, int]:
    """The numbers of the plural forms for one thing and for many, by the header; without one, as in English."""
    expression = re.search(r"plural\s*=([^;]+)", header.replace("nplurals", ""))
    try:
        form = gettext.c2py(expression[1] if expression else "n != 1")
        return form(1), Counter(map(form, _MANY)).most_common(1)[0][0]
    except (ValueError, ZeroDivisionError):  # the first for the placeholder of a template
        return 0, 1
