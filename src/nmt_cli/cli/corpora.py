"""`nmt corpora`: the corpora that come with nmt, what they are, and which are prepared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmt_cli.cli.arguments import print_table

if TYPE_CHECKING:
    from nmt_cli.preparing.corpus import Corpus

_COLUMNS = ("name", "languages", "pairs", "download", "prepared", "licence", "description")
_NUMBERS = ("pairs", "download")


def corpora(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME|FILE", help="Everything about one corpus.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """List the corpora that nmt prepare knows by name, with sizes and what is already prepared.

    Example: nmt corpora wmt14-en-de
    """
    from nmt_cli.preparing.corpus import load_corpus
    from nmt_cli.recipe.loading import packaged_names

    names = [name] if name is not None else packaged_names(kind="corpus")
    found = [load_corpus(one, overrides=[]).corpus for one in names]
    described = [_describe(corpus) for corpus in found]
    if as_json:
        typer.echo(json.dumps(described[0] if name is not None else described, ensure_ascii=False, indent=2))
    elif name is not None:
        _print_one(name, found[0], described[0])
    else:
        print_table(_COLUMNS, map(_row, described), right=_NUMBERS)


def _describe(corpus: Corpus) -> dict[str, Any]:
    """All facts about a corpus; `prepared` describes data/NAME, or is null."""
    pairs = corpus.pairs.model_dump() if corpus.pairs is not None else {}
    sources = {
        split: [{"from": source.describe() or ["local files"]} for source in corpus.sources(split)]
        for split in corpus.splits
    }
    is_local = not any(source.describe() for split in corpus.splits for source in corpus.sources(split))
    return {
        "name": corpus.name,
        "description": corpus.description,
        "languages": corpus.languages.model_dump(),
        "pairs": {split: pairs.get(split) for split in corpus.splits},
        "download_bytes": 0 if is_local else corpus.bytes,
        "licence": corpus.licence,
        "citation": corpus.citation,
        "tokenizer": corpus.tokenizer.model_dump(),
        "sources": sources,
        "prepared": _prepared(Path("data") / corpus.name),
    }


def _prepared(directory: Path) -> dict[str, Any] | None:
    """The state of the prepared data in a directory; None if there is no data."""
    from nmt_cli.dataset.manifest import read_manifest
    from nmt_cli.errors import DataError

    try:
        manifest = read_manifest(directory)
    except DataError:
        begun = directory.with_name(f"{directory.name}.partial")
        return {"directory": str(directory), "finished": False} if begun.is_dir() else None
    return {
        "directory": str(directory),
        "finished": True,
        "pairs": manifest.splits["train"].pairs,
        "limit": manifest.corpus.get("limit"),
    }


def _row(one: dict[str, Any]) -> list[str]:
    languages, pairs = one["languages"], one["pairs"]["train"]
    return [
        one["name"],
        f"{languages['source']}-{languages['target']}",
        "?" if pairs is None else f"{pairs:,}",
        _size(one["download_bytes"]),
        _progress(one["prepared"]),
        one["licence"] or "?",
        one["description"],
    ]


def _print_one(reference: str, corpus: Corpus, one: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    for label, text in _rows(reference, corpus, one):
        first, *others = text.splitlines()
        console.print(f"[bold]{label:<13}[/bold]{escape(first)}", soft_wrap=True)
        for line in others:
            console.print(f"{'':<13}{escape(line)}", soft_wrap=True)


def _rows(reference: str, corpus: Corpus, one: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "corpus", f"{one['name']}: {one['description'] or 'no description'}"
    yield "languages", f"{corpus.languages.source} to {corpus.languages.target}"
    sizes = [f"{split} {number:,}" for split, number in one["pairs"].items() if number is not None]
    yield "pairs", ", ".join(sizes) or "not known before they are read"
    yield "download", _size(one["download_bytes"])
    yield "vocabulary", f"{corpus.tokenizer.vocab_size:,} pieces, {'shared' if corpus.tokenizer.shared else 'separate'}"
    yield "licence", one["licence"] or "not stated"
    for split, sources in one["sources"].items():
        for source in sources:
            yield split, "\n".join(source["from"])
    if one["citation"]:
        yield "citation", one["citation"].rstrip()
    yield "prepared", _progress(one["prepared"])
    yield "next", f"nmt prepare {reference}"


def _size(number: int | None) -> str:
    """Bytes in words, in decimal units."""
    if number is None:
        return "?"
    if number == 0:
        return "none"
    unit, name = (1e9, "GB") if number >= 1e9 else (1e6, "MB")
    return f"{number / unit:.1f} {name}"


def _progress(prepared: dict[str, Any] | None) -> str:
    if prepared is None:
        return "no"
    if not prepared["finished"]:
        return f"begun in {prepared['directory']}.partial"
    limit = f", of the first {prepared['limit']:,}" if prepared["limit"] is not None else ""
    return f"{prepared['pairs']:,} pairs in {prepared['directory']}{limit}"
