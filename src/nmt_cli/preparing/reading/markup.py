"""Plain text out of the files of evaluation campaigns, which wrap sentences in tags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

from nmt_cli.errors import DataError
from nmt_cli.files import open_bytes, sha256
from nmt_cli.preparing.sources.cache import cache_folder, held, writing_errors
from nmt_cli.preparing.sources.kinds import Markup

_SEGMENT = re.compile(rb"<seg\b[^>]*>(.*?)</seg>", re.IGNORECASE)
_TAG = re.compile(rb"^\s*</?(\w+)\b[^>]*>")
_TITLES = re.compile(rb"</?(?:title|description)>")
_SPACES = re.compile(rb"\s+")


def plain_file(file: Path, markup: Markup) -> Path:
    """A file in the cache with the sentences of a marked-up file, one a line; entities such as &amp; stay as they are.

    `seg`: the <seg> elements, as sacreBLEU reads them. `ted`: the lines of the talks of IWSLT without those that are
    a tag, such as <url>; titles and descriptions are sentences. DataError where there is no sentence in it.
    """
    plain = cache_folder() / "plain" / f"{markup}-{sha256(file)[:32]}" / f"{file.name}.txt"
    with held(plain), writing_errors(plain):
        if not plain.exists():
            lines = list(_sentences(file, markup))
            if not lines:
                raise DataError(
                    f"{file.name} has no sentence in the markup {markup}",
                    where=str(file),
                    hint="write markup: seg for <seg> elements, ted for tagged talks, null for plain text",
                )
            part = plain.with_name(f".{plain.name}.part")
            part.write_bytes(b"".join(line + b"\n" for line in lines))
            part.replace(plain)
    return plain


def _sentences(file: Path, markup: Markup) -> Iterator[bytes]:
    with open_bytes(file) as stream:
        match markup:
            case "seg":
                for line in stream:
                    yield from (_SPACES.sub(b" ", found[1].strip()) for found in _SEGMENT.finditer(line))
            case "ted":
                for line in stream:
                    tag = _TAG.match(line)
                    if tag is None or tag[1] in (b"title", b"description"):
                        yield _TITLES.sub(b"", line).strip()
            case _:
                assert_never(markup)
