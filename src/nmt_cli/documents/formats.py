"""Documents by the ending of their name: read into blocks of text, and written with others in their place."""

from __future__ import annotations

import fnmatch
import io
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import TypeAlias

from nmt_cli.decompression import DECOMPRESSION_ERRORS
from nmt_cli.documents.bilingual import tmx_parts, xliff_parts
from nmt_cli.documents.encoding import MARKUP_ENCODING, PO_ENCODING, Encoding, decode_text
from nmt_cli.documents.lines import text_parts
from nmt_cli.documents.markdown import markdown_parts
from nmt_cli.documents.marked_text import MarkedText
from nmt_cli.documents.markup import parse_markup
from nmt_cli.documents.markup_tokens import HTML, XML, MarkupRules
from nmt_cli.documents.office import DRAWING, OPEN_DOCUMENT, WORD, OfficeRules, office_parts
from nmt_cli.documents.parts import Part, blocks_of, render_parts
from nmt_cli.documents.po import po_parts
from nmt_cli.documents.subtitles import subtitle_parts
from nmt_cli.documents.tables import table_parts
from nmt_cli.errors import DataError, UsageError
from nmt_cli.recipe.schema import LanguagePair

# As zipfile tells it: RuntimeError of a password or an unknown compression, ValueError of a wrong place in the file,
# OSError of bzip2.
_DAMAGE = (*DECOMPRESSION_ERRORS, zipfile.BadZipFile, RuntimeError, ValueError, OSError)


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a document may be: its bytes, and the number and the bytes of the files in it."""

    max_bytes: int
    max_entries: int
    max_unpacked_bytes: int


COMMAND_LINE_LIMITS = Limits(max_bytes=1 << 29, max_entries=20_000, max_unpacked_bytes=1 << 31)


@dataclass(frozen=True, slots=True)
class TextDocument:
    """A text in parts. A number between zeros in it stands for one of `nested`."""

    encoding: Encoding
    parts: Sequence[Part]
    nested: Sequence[Sequence[Part]] = ()

    @property
    def blocks(self) -> list[MarkedText]:
        """The blocks of text; those of `nested` come after all others."""
        return [block for parts in (self.parts, *self.nested) for block in blocks_of(parts)]

    def write(self, blocks: Sequence[MarkedText]) -> bytes:
        """The file with other blocks, in its own encoding."""
        remaining = iter(blocks)
        text, *nested = [render_parts(parts, remaining) for parts in (self.parts, *self.nested)]
        while "\0" in text:  # one may be inside of another
            text = re.sub("\0(\\d+)\0", lambda number: nested[int(number[1])], text)
        return self.encoding.encode(text)


@dataclass(frozen=True, slots=True)
class ZipDocument:
    """A zip archive, and the files in it that have text."""

    content: bytes
    documents: Mapping[str, TextDocument]

    @property
    def blocks(self) -> list[MarkedText]:
        """The blocks of text of all files, in the order of their names."""
        return [block for document in self.documents.values() for block in document.blocks]

    def write(self, blocks: Sequence[MarkedText]) -> bytes:
        """The archive with other blocks; its other files stay as they are, in the same order."""
        remaining = iter(blocks)
        new_contents = {
            name: document.write([next(remaining) for _ in document.blocks])
            for name, document in self.documents.items()
        }
        written = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(self.content)) as old, zipfile.ZipFile(written, "w") as new:
            new.comment = old.comment
            for entry in old.infolist():
                copy = zipfile.ZipInfo(entry.filename, entry.date_time)
                copy.compress_type, copy.external_attr = entry.compress_type, entry.external_attr
                copy.create_system = entry.create_system
                new.writestr(copy, new_contents[entry.filename] if entry.filename in new_contents else old.read(entry))
        return written.getvalue()


DocumentInBlocks: TypeAlias = TextDocument | ZipDocument
"""A document whose blocks of text can be replaced."""


@dataclass(frozen=True, slots=True)
class _Archive:
    """A kind of zip archive: a file that it must have, and the rules for files with text, by patterns of names."""

    required: str
    rules: Mapping[str, OfficeRules | MarkupRules]


_OPEN_DOCUMENT = _Archive("content.xml", {"content.xml": OPEN_DOCUMENT, "styles.xml": OPEN_DOCUMENT})
_ARCHIVES = {
    ".docx": _Archive(
        "word/document*.xml",  # Word Online writes document2.xml
        {
            **dict.fromkeys(
                [f"word/{part}*.xml" for part in ("document", "header", "footer", "footnotes", "endnotes", "comments")],
                WORD,
            ),
            **dict.fromkeys(["word/charts/chart*.xml", "word/diagrams/d*.xml"], DRAWING),
        },
    ),
    ".pptx": _Archive(
        "ppt/presentation.xml",
        dict.fromkeys(
            [f"ppt/{part}*.xml" for part in ("slides/slide", "notesSlides/notesSlide", "charts/chart", "diagrams/d")],
            DRAWING,
        ),
    ),
    ".odt": _OPEN_DOCUMENT,
    ".odp": _OPEN_DOCUMENT,
    ".ods": _OPEN_DOCUMENT,
    ".epub": _Archive("META-INF/container.xml", {"*.xhtml": HTML, "*.html": HTML, "*.htm": HTML, "*.ncx": XML}),
}


def _markup_parts(rules: MarkupRules) -> Callable[[str], Sequence[Part]]:
    return lambda text: parse_markup(text, rules).parts


_TEXTS: Mapping[str, Callable[[str], Sequence[Part]]] = {
    ".txt": text_parts,
    ".md": markdown_parts,
    ".markdown": markdown_parts,
    **dict.fromkeys([".html", ".htm", ".xhtml"], _markup_parts(HTML)),
    ".xml": _markup_parts(XML),
    ".srt": partial(subtitle_parts, has_references=False),
    ".vtt": partial(subtitle_parts, has_references=True),
}
_XLIFF = (".xliff", ".xlf", ".sdlxliff", ".mqxliff", ".mxliff")
_PO = (".po", ".pot")
_MARKUP_ENDINGS = (".html", ".htm", ".xhtml", ".xml", ".tmx", *_XLIFF)
# In these, translations stand beside their source.
_BILINGUAL = dict.fromkeys(_XLIFF, xliff_parts) | {".tmx": tmx_parts} | dict.fromkeys(_PO, po_parts)
_DELIMITERS = {".csv": None, ".tsv": "\t"}
ENDINGS = (*_TEXTS, *_BILINGUAL, *_DELIMITERS, *_ARCHIVES)
"""The endings of the names of documents."""


def ending_of(name: str) -> str:
    """The ending of a document's name; empty if no format has it."""
    ending = PurePosixPath(name).suffix.lower()
    return ending if ending in ENDINGS else ""


def is_binary(name: str) -> bool:
    """Whether the documents of this ending are zip archives."""
    return ending_of(name) in _ARCHIVES


def check_kind_of_output(source: Path, output: Path) -> None:
    """Raise UsageError if a document would be written under the name of another kind: a .docx holds no .html."""
    ending = ending_of(source.name)
    # Endings of one format, such as .htm and .html, have one reader.
    kinds = [_TEXTS.get(one) or _BILINGUAL.get(one) or one for one in (ending, ending_of(output.name))]
    if all(kinds) and kinds[0] != kinds[1]:
        message = (
            f"{source.name} is translated into another {ending} file, and {output} is named as one of another kind"
        )
        hint = f"write it to {quote(str(source.with_name(f'translated{ending}')))}"
        raise UsageError(message, where=str(output), hint=hint)


def read_document(
    content: bytes, name: str, *, languages: LanguagePair, limits: Limits, column: str | None = None
) -> DocumentInBlocks:
    """The document in the bytes of a file; the ending of its name says its format.

    `column` is the column of a table to translate, by its name or number. DataError if there is no such format, the
    file is not in it, is larger than the limits, or is damaged.
    """
    ending = ending_of(name)
    if not ending:
        message = f"{name} has no ending of a document that nmt translates"
        raise DataError(message, where=name, hint=f"give a file that ends in {', '.join(ENDINGS)}")
    if len(content) > limits.max_bytes:
        raise _too_large(f"it has {len(content):,} bytes, and {limits.max_bytes:,} are allowed", name=name)
    if column is not None and ending not in _DELIMITERS:
        message = f"{name} has no columns"
        raise DataError(message, setting="column", hint="leave `column` out: it is for .csv and .tsv files")
    if ending in _ARCHIVES:
        return _read_archive(content, _ARCHIVES[ending], name=name, limits=limits)
    declaration = MARKUP_ENCODING if ending in _MARKUP_ENDINGS else PO_ENCODING if ending in _PO else None
    text, encoding = decode_text(content, declaration, name=name)
    if ending in _BILINGUAL:
        parts = _BILINGUAL[ending](text, languages=languages, name=name)
    elif ending in _DELIMITERS:
        parts = table_parts(text, column=column, delimiter=_DELIMITERS[ending], name=name)
    else:
        parts = list(_TEXTS[ending](text))
    return TextDocument(encoding, parts)


def _read_archive(content: bytes, archive: _Archive, *, name: str, limits: Limits) -> ZipDocument:
    texts: dict[str, tuple[bytes, OfficeRules | MarkupRules]] = {}
    with _reading(content, name=name) as opened:
        entries = opened.infolist()
        _check_entries(entries, name=name, limits=limits)
        if not fnmatch.filter(opened.namelist(), archive.required):
            message = f"{name} has no {archive.required}, so it is not what its ending says"
            raise DataError(message, where=name, hint="give it its right ending, or save it again")
        if (damaged := opened.testzip()) is not None:
            raise zipfile.BadZipFile(f"{damaged} in it is damaged")
        for entry in entries:
            pattern = next((pattern for pattern in archive.rules if fnmatch.fnmatchcase(entry.filename, pattern)), None)
            if pattern is not None:
                texts[entry.filename] = opened.read(entry), archive.rules[pattern]
    documents = {file: _read_entry(*text, name=f"{name}/{file}") for file, text in texts.items()}
    return ZipDocument(content, documents)


def _read_entry(content: bytes, rules: OfficeRules | MarkupRules, *, name: str) -> TextDocument:
    text, encoding = decode_text(content, MARKUP_ENCODING, name=name)
    if isinstance(rules, MarkupRules):
        return TextDocument(encoding, parse_markup(text, rules).parts)
    return TextDocument(encoding, *office_parts(text, rules))


@contextmanager
def _reading(content: bytes, *, name: str) -> Iterator[zipfile.ZipFile]:
    """The archive; DataError if it is damaged, encrypted or none."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as opened:
            yield opened
    except _DAMAGE as error:
        message = f"{name} cannot be opened: {error}"
        hint = "save it again, without a password, or give it its right ending"
        raise DataError(message, where=name, hint=hint) from None


def _check_entries(entries: Sequence[zipfile.ZipInfo], *, name: str, limits: Limits) -> None:
    """Raise DataError if an archive has too many files, or too much in them."""
    if len(entries) > limits.max_entries:
        raise _too_large(f"it has {len(entries):,} files, and {limits.max_entries:,} are allowed", name=name)
    num_bytes = sum(entry.file_size for entry in entries)  # no entry is read beyond the size that it names
    if num_bytes > limits.max_unpacked_bytes:
        message = f"its files have {num_bytes:,} bytes, and {limits.max_unpacked_bytes:,} are allowed"
        raise _too_large(message, name=name)


def _too_large(reason: str, *, name: str) -> DataError:
    return DataError(f"{name} is too large: {reason}", where=name, hint="divide it into smaller documents")
