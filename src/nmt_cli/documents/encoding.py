"""The encoding of a document's file, which it may name itself."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from pathlib import PurePath
from shlex import quote
from typing import Final

from nmt_cli.decompression import BYTE_ORDER_MARKS
from nmt_cli.errors import DataError
from nmt_cli.text_encoding import check_uncompressed, wide_encoding

MARKUP_ENCODING: Final = re.compile(
    rb"<(?:\?xml\b[^>]*?\bencoding|meta\b[^>]*?\bcharset)\s*=\s*[\"']?\s*(?P<name>[\w.:-]+)", re.IGNORECASE
)
"""How XML and HTML name the encoding of their file."""
PO_ENCODING: Final = re.compile(rb"\"Content-Type:[^\"\n]*?\bcharset=(?P<name>[\w.:-]+)", re.IGNORECASE)
"""How PO does."""
_BEGINNING = 4096
# Browsers read these names so: names that Python does not know or reads otherwise, and codecs of fewer characters.
_NAMES = {
    "windows-31j": "cp932",
    "x-sjis": "cp932",
    "windows-949": "cp949",
    "windows-874": "cp874",
    "iso-8859-8-i": "iso8859-8",
    "x-gbk": "gb18030",
    "big5": "big5hkscs",
}
_AS_BROWSERS_READ = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "gb2312": "gb18030",
}
_TO_UTF8 = "convert the file to UTF-8, and write UTF-8 where it names its encoding"


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a file writes its text: the codec, and the byte-order mark before it."""

    codec: str
    mark: bytes = b""

    def encode(self, text: str) -> bytes:
        """The bytes of a text. A reference stands for each character that the encoding lacks: only markup has such."""
        return self.mark + text.encode(self.codec, "xmlcharrefreplace")


def decode_text(content: bytes, declaration: re.Pattern[bytes] | None, *, name: str) -> tuple[str, Encoding]:
    """The text of a file and its encoding: by its byte-order mark, as it says itself, or UTF-8.

    `declaration` is how files of this format say it; None if they do not. PO is always written in UTF-8.
    DataError if the file is compressed, is no text, or is in another encoding.
    """
    check_uncompressed(content[:_BEGINNING], name=name)
    encoding = _encoding_of(content, declaration, name=name)
    try:
        text = content[len(encoding.mark) :].decode(_AS_BROWSERS_READ.get(encoding.codec, encoding.codec))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = (
            f"line {line:,} of {name} is not {encoding.codec.upper()}: it has the byte 0x{content[error.start]:02x}"
        )
        hint = _TO_UTF8
        if encoding.codec == "utf-8":
            file = PurePath(name)
            converted = quote(str(file.with_name(f"utf8-{file.name}")))
            hint = f"if it is Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 {quote(name)} > {converted}"
        raise DataError(message, where=f"{name}:{line}", hint=hint) from None
    if "\0" in text:
        raise DataError(
            f"{name} is not text: it holds control characters such as '\\x00'", where=name, hint="give a text file"
        )
    return text, Encoding("utf-8") if declaration is PO_ENCODING else encoding


def _encoding_of(content: bytes, declaration: re.Pattern[bytes] | None, *, name: str) -> Encoding:
    if content.startswith(codecs.BOM_UTF8):
        return Encoding("utf-8", codecs.BOM_UTF8)
    if wide := wide_encoding(content[:_BEGINNING]):
        mark = next((mark for mark in BYTE_ORDER_MARKS if content.startswith(mark)), b"")
        is_little = mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF32_LE)
        return Encoding(f"{wide}-{'le' if is_little else 'be'}" if mark else wide, mark)
    declared = declaration.search(content[:_BEGINNING]) if declaration else None
    label = declared["name"].decode() if declared else "utf-8"
    try:
        codec = codecs.lookup(_NAMES.get(label.lower(), label)).name
        b"".decode(codec)  # not of a codec such as hex, which is none of text
    except (LookupError, UnicodeError):
        if label == "CHARSET":  # of a template of gettext
            return Encoding("utf-8")
        raise DataError(f"{name} is in {label}, which is no known encoding", where=name, hint=_TO_UTF8) from None
    if codec.startswith(("utf-16", "utf-32", "utf-7")):  # the name could not be read, if it were true
        codec = "utf-8"
    # Readers of XML take a name as it is.
    is_html = declared is not None and declared[0].lower().startswith(b"<meta")
    return Encoding(_AS_BROWSERS_READ.get(codec, codec) if is_html else codec)
