"""`nmt corpora`: the corpora that come with nmt, what they are, and which are prepared."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmt_cli.cli.arguments import DebugOption, JsonOption, QuietOption, complete_packaged
from nmt_cli.cli.printing import print_facts, print_json, print_list
from nmt_cli.console import size_text
from nmt_cli.errors import DataError

if TYPE_CHECKING:
    from nmt_cli.preparing.corpus import Corpus

_COLUMNS = ("name", "languages", "pairs", "download", "prepared", "licence", "description")
_NUMBER_COLUMNS = ("pairs", "download")


def corpora(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE",
            help="Everything about one corpus.",
            show_default=False,
            autocompletion=complete_packaged("corpus"),
        ),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """List the corpora that nmt prepare knows by name.

    Example: nmt corpora wmt14-en-de
    """
    from nmt_cli.preparing.corpus_loading import load_corpus
    from nmt_cli.recipe.loading import find_yaml_file, packaged_names

    names = [name] if name is not None else packaged_names(kind="corpus")
    files = [find_yaml_file(reference, kind="corpus", command="nmt corpora") for reference in names]
    descriptions = [_describe(load_corpus(str(file), overrides=[]).corpus) for file in files]
    if as_json:
        print_json(descriptions[0] if name is not None else descriptions)
    elif name is not None:
        print_facts(_facts(name, descriptions[0]))
    else:
        print_list(_COLUMNS, map(_table_row, descriptions), right_aligned=_NUMBER_COLUMNS, num_sentence_columns=2)


def _describe(corpus: Corpus) -> dict[str, Any]:
    """All facts about a corpus; `prepared` describes data/NAME, or is null."""
    pairs = corpus.pairs.model_dump() if corpus.pairs is not None else {}
    downloads = {split: [source.describe() for source in corpus.sources(split)] for split in corpus.splits}
    return {
        "name": corpus.name,
        "description": corpus.description,
        "languages": corpus.directions.model_dump(),
        "pairs": {split: pairs.get(split) for split in corpus.splits},
        "download_bytes": corpus.bytes if any(map(any, downloads.values())) else 0,
        "licence": corpus.licence,
        "citation": corpus.citation,
        "tokenizer": corpus.tokenizer.model_dump(),
        "sources": {
            split: [{"from": urls or ["local files"]} for urls in sources] for split, sources in downloads.items()
        },
        "prepared": _describe_prepared(Path("data") / corpus.name),
    }


def _describe_prepared(directory: Path) -> dict[str, Any] | None:
    """The state of the prepared data in a directory; None if there is no data."""
    from nmt_cli.dataset.data_manifest import read_manifest

    try:
        manifest = read_manifest(directory)
    except DataError:
        unfinished = directory.with_name(f"{directory.name}.partial")
        return {"directory": str(directory), "finished": False} if unfinished.is_dir() else None
    return {
        "directory": str(directory),
        "finished": True,
        "pairs": manifest.splits["train"].pairs,
        "limit": manifest.corpus.get("limit"),
    }


def _table_row(corpus: dict[str, Any]) -> list[str]:
    from nmt_cli.recipe.directions import Directions

    pairs = corpus["pairs"]["train"]
    return [
        corpus["name"],
        str(Directions.model_validate(corpus["languages"])),
        "?" if pairs is None else f"{pairs:,}",
        _download_text(corpus),
        _progress_text(corpus["prepared"]),
        corpus["licence"] or "?",
        corpus["description"],
    ]


def _facts(reference: str, corpus: dict[str, Any]) -> Iterator[tuple[str, str]]:
    from nmt_cli.preparing.corpus import DEFAULT_VOCAB_SIZE
    from nmt_cli.recipe.directions import Directions

    tokenizer = corpus["tokenizer"]
    yield "corpus", f"{corpus['name']}: {corpus['description'] or 'no description'}"
    yield "languages", Directions.model_validate(corpus["languages"]).title
    sizes = [f"{split} {number:,}" for split, number in corpus["pairs"].items() if number is not None]
    yield "pairs", ", ".join(sizes) or "not known before they are read"
    yield "download", _download_text(corpus)
    size = tokenizer["vocab_size"]
    pieces = f"{DEFAULT_VOCAB_SIZE:,} pieces or fewer" if size is None else f"{size:,} pieces"
    yield "vocabulary", f"{pieces}, {'shared' if tokenizer['shared'] else 'separate'}"
    yield "licence", corpus["licence"] or "not stated"
    for split, sources in corpus["sources"].items():
        for source in sources:
            yield split, "\n".join(source["from"])
    if corpus["citation"]:
        yield "citation", corpus["citation"].rstrip()
    yield "prepared", _progress_text(corpus["prepared"])
    yield "next", f"nmt prepare {shlex.quote(reference)}"


def _download_text(corpus: dict[str, Any]) -> str:
    num_bytes = corpus["download_bytes"]
    return "?" if num_bytes is None else size_text(num_bytes) if num_bytes else "none"


def _progress_text(prepared: dict[str, Any] | None) -> str:
    if prepared is None:
        return "no"
    if not prepared["finished"]:
        return f"begun in {prepared['directory']}.partial"
    limit = f", of the first {prepared['limit']:,}" if prepared["limit"] is not None else ""
    return f"{prepared['pairs']:,} pairs in {prepared['directory']}{limit}"
