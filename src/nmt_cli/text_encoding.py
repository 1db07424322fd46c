"""Texts that are not UTF-8 (compressed data, UTF-16, Windows-1252), and the commands that convert them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from shlex import quote

from nmt_cli.decompression import BYTE_ORDER_MARKS, COMPRESSIONS, open_bytes
from nmt_cli.errors import DataError

STDIN = "stdin"

# Images, PDF, RTF, the files of old Office, and the zip archives of Office and OpenDocument.
_DOCUMENT = re.compile(
    rb"(?s)\x89PNG|\xff\xd8\xff|GIF8[79]a|%PDF-\d|\{\\rtf\d|\xd0\xcf\x11\xe0|"
    rb"PK\x03\x04.{26}(\[Content_Types\]|mimetype|_rels/|docProps/|word/|xl/|ppt/)"
)
# Decodes the bytes that are not UTF-8 as Windows-1252, and keeps all others.
_CONVERT_WRONG_BYTES = (
    "python3 -c 'import codecs,sys; "
    'codecs.register_error("w",lambda e:(e.object[e.start:e.end].decode("cp1252","replace"),e.end)); '
    'sys.stdout.buffer.writelines(l.decode("utf8","w").encode() for l in sys.stdin.buffer)\''
)
# A text in UTF-8 has at least this many lines with letters beside ASCII for each line that is not UTF-8.
_MIN_GOOD_LINES = 0.05
_MIN_SHARE_OF_ASCII = 0.7
# A character of UTF-8 whose bytes were read as Windows-1252 or Latin-1, such as Ã¼ for ü.
_LATER_BYTE = "[\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]"
DOUBLE_ENCODED = re.compile(f"[\xc2-\xdf]{_LATER_BYTE}|[\xe0-\xef]{_LATER_BYTE}{{2}}|[\xf0-\xf4]{_LATER_BYTE}{{3}}")
DECODE_TWICE = (
    "python3 -c 'import re,sys; "
    's=lambda m:b"".join(c.encode("latin1" if ord(c)<256 else "cp1252","replace") for c in m[0])'
    '.decode("utf8","replace"); '
    r'sys.stdout.writelines(re.sub("[^\0-\x7f]+",lambda m:m[0] if re.search("[?\ufffd]",s(m)) else s(m),l) '
    r"""for l in open(0,newline="\n"))'"""
)
"""The command that mends double-encoded text from stdin to stdout, and keeps all other text."""
COMPOSE = (
    """python3 -c 'import sys,unicodedata as u; """
    """sys.stdout.writelines(u.normalize("NFC",l) for l in open(0,newline="\\n"))'"""
)
"""The command that composes letters and their accents (NFC) from stdin to stdout."""

# An accent or a part of a vowel or syllable that may stand apart, with the character before it.
_APART = re.compile("[\u1100-\u11ff]+|.[\u0300-\u036f\u0653-\u0655\u09be\u0bbe\u0d3e\u3099\u309a]")
_BYTES_LOOKED_AT = 64
_MIN_SHARE_OF_ZEROS = 0.35
# Control characters that text does not have, and the most of them in it: the Ctrl-Z of a DOS file, or a few strays.
_CONTROLS = re.compile(r"[\0-\x08\x0e-\x1a\x1c-\x1f]")
_MAX_CONTROLS, _MAX_SHARE_OF_CONTROLS = 1, 0.05
_FILES_SHOWN = 8
_BLOCK = 1 << 20


def find_decomposed(text: str) -> re.Match[str] | None:
    """The first accent that may stand apart from its letter; None if the text is composed (NFC)."""
    return None if unicodedata.is_normalized("NFC", text) else _APART.search(text)


def check_encoding(beginning: bytes, *, name: str) -> None:
    """Raise DataError if a text begins like compressed data, UTF-16 or UTF-32; `name` is its file or `STDIN`."""
    check_uncompressed(beginning, name=name)
    if encoding := wide_encoding(beginning):
        not_text = _not_text_error(beginning[:_BYTES_LOOKED_AT].decode(encoding, "ignore"), name=name, where=name)
        hint = conversion(_file_called(name), f"iconv -f {encoding} -t UTF-8", new="utf8")
        raise not_text or DataError(f"{Path(name).name} is {encoding}, not UTF-8", where=name, hint=hint)


def wide_encoding(beginning: bytes) -> str | None:
    """The UTF-16 or UTF-32 that a text begins with: by its mark, or, for Latin letters, by its zero bytes."""
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if beginning.startswith(mark):
            return encoding
    # Latin letters in UTF-16 have a zero byte each, which comes second in little endian.
    for offset, encoding in ((1, "UTF-16LE"), (0, "UTF-16BE")):
        zeros = beginning[offset:_BYTES_LOOKED_AT:2].count(0)
        if zeros > _MIN_SHARE_OF_ZEROS * min(len(beginning), _BYTES_LOOKED_AT):
            return encoding
    return None


def is_unicode(text: str) -> bool:
    """False if a text holds surrogates: bytes that were not UTF-8, or half a character from JSON."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_characters(text: str, *, where: str) -> None:
    """Raise DataError if a text holds a lone surrogate: half a character, or Python's sign for a byte of no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) - 0xDC00
        is_byte = 0x80 <= byte <= 0xFF
        found = f"the byte 0x{byte:02x}, which is not UTF-8" if is_byte else f"half a character, {text[error.start]!r}"
        message = f"the text holds {found}"
        raise DataError(message, where=where, hint="write the text in UTF-8, or leave the character out") from None


def check_uncompressed(beginning: bytes, *, name: str) -> None:
    """Raise DataError if a text begins like compressed data or a document; `name` is its file or `STDIN`."""
    if _DOCUMENT.match(beginning):
        raise DataError(f"{Path(name).name} is a document, not text", where=name, hint="save it as plain text")
    for compression in COMPRESSIONS:
        if re.match(compression.magic, beginning):
            message = f"{Path(name).name} is compressed by {compression.program}, not text"
            hint = f"uncompress it first: {compression.decompressor} {quote(name)} > NEW"
            if name == STDIN:
                hint = f"give it as a file, or uncompress it first: {compression.decompressor} FILE"
            raise DataError(message, where=name, hint=hint)


def decode_utf8(content: bytes, *, name: str) -> str:
    """A whole text without its byte-order mark; DataError, with the line, if it is not UTF-8."""
    check_encoding(content, name=name)
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise not_utf8_error(error, name=name, number=content.count(b"\n", 0, error.start) + 1) from None


def not_utf8_error(error: UnicodeDecodeError, *, name: str, number: int) -> DataError:
    """The error for the line of this number, which is not UTF-8; it names the first wrong byte."""
    where, file = f"{name}:{number}", _file_called(name)
    message = f"line {number} is not UTF-8: it has the byte 0x{error.object[error.start]:02x}"
    hint = latin1_hint([file] if file and file.is_file() else [])
    line = error.object[: error.start].rpartition(b"\n")[2] + error.object[error.start :].partition(b"\n")[0]
    not_text = _not_text_error(line.decode("latin-1"), name=name, where=where)
    return not_text or DataError(message, where=where, hint=hint)


def files_not_utf8(files: Iterable[Path]) -> list[Path]:
    """The files, compressed or not, that are not UTF-8 from beginning to end."""
    return [file for file in files if _count_beside_ascii(file)[1]]


def files_in_other_encodings(files: Iterable[Path]) -> list[Path]:
    """The files, compressed or not, in which more lines beside ASCII are wrong than are UTF-8."""
    counts = ((file, *_count_beside_ascii(file)) for file in files)
    return [file for file, num_good, num_wrong in counts if num_wrong > num_good]


def latin1_hint(files: Sequence[Path], *, beside: Iterable[Path] = ()) -> str:
    """The fix that converts files of Latin-1 or Windows-1252; it has the commands of the first few files, or of FILE.

    If many lines are UTF-8 already, the commands convert the others only. If most letters are not Latin, the user
    has to write the encoding. Files `beside` them, such as the other side of a text, are copied to the new names.
    """
    copies = [copy_command(file, new="utf8") for file in beside if file not in files][:_FILES_SHOWN]
    files = files[:_FILES_SHOWN]
    # Windows-1252 has all letters of Latin-1. It has quotes and dashes where Latin-1 has control characters.
    reason, command = "if the text is Latin-1 or Windows-1252", "iconv -f WINDOWS-1252 -t UTF-8"
    if any(map(_has_mixed_encodings, files)):
        reason = "mixed encodings: some lines are UTF-8, and others not; convert only those"
        command = _CONVERT_WRONG_BYTES
    elif any(map(_has_other_letters, files)):
        reason = "for ENCODING, write that of the text, such as CP1251 or GB18030"
        command = "iconv -f ENCODING -t UTF-8"
    commands = [conversion(file, command, new="utf8") for file in files] or [conversion(None, command, new="utf8")]
    return f"{reason}: {'; '.join([*commands, *copies])}"


def conversion(file: Path | None, command: str, *, new: str) -> str:
    """The command line that reads a file, also a compressed one, through `command`, and writes `new`-FILE beside it.

    Without a file, the user has to write its name.
    """
    if file is None:
        return f"{shell_pipe(None, command)} > NEW"
    plain = file.with_suffix("") if decompressor_of(file) else file
    return f"{shell_pipe(file, command)} > {quote(str(plain.with_name(f'{new}-{plain.name}')))}"


def copy_command(file: Path, *, new: str) -> str:
    """The command line that copies a file to the name that `conversion` gives to a converted one."""
    return f"cp {quote(str(file))} {quote(str(file.with_name(f'{new}-{file.name}')))}"


def shell_pipe(file: Path | None, command: str) -> str:
    """The command line that gives a file, also a compressed one, to the stdin of `command`."""
    if file is None:
        return f"{command} < FILE"
    decompressor, name = decompressor_of(file), quote(str(file))
    return f"{decompressor} {name} | {command}" if decompressor else f"{command} < {name}"


def decompressor_of(file: Path) -> str | None:
    """The program that uncompresses a file to stdout, by the ending of its name; None if nmt knows no such ending."""
    return next((known.decompressor for known in COMPRESSIONS if known.ending == file.suffix), None)


def _count_beside_ascii(file: Path) -> tuple[int, int]:
    """The numbers of lines with more than ASCII that are UTF-8, and that are not."""
    with open_bytes(file) as stream:
        are_good = Counter(is_unicode(line.decode("utf-8", "surrogateescape")) for line in stream if not line.isascii())
    return are_good[True], are_good[False]


def _has_mixed_encodings(file: Path) -> bool:
    """True if a file that is not UTF-8 has lines in UTF-8 with more than ASCII."""
    num_good, num_wrong = _count_beside_ascii(file)
    return num_good > _MIN_GOOD_LINES * num_wrong


def _has_other_letters(file: Path) -> bool:
    """True if a file that is not UTF-8 has too many bytes beside ASCII for Latin letters."""
    with open_bytes(file) as stream:
        beginning = stream.read(_BLOCK)
    return len(beginning.decode("ascii", "ignore")) < _MIN_SHARE_OF_ASCII * len(beginning)


def _not_text_error(text: str, *, name: str, where: str) -> DataError | None:
    """The error for content that is no text, by its control characters; None if it may be text."""
    controls = _CONTROLS.findall(text)
    if len(controls) <= max(_MAX_CONTROLS, _MAX_SHARE_OF_CONTROLS * len(text)):
        return None
    message = f"{Path(name).name} is not text: it holds control characters such as {controls[0]!r}"
    return DataError(message, where=where, hint="give a text file")


def _file_called(name: str) -> Path | None:
    return None if name == STDIN else Path(name)
