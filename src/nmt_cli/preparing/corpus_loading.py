"""Corpora loaded by name, from a corpus file, or from the files of the text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt_cli.errors import RecipeError, UsageError
from nmt_cli.languages import match_code, parse_languages
from nmt_cli.preparing.corpus import Corpus, LocatedCorpus, source_of
from nmt_cli.preparing.sources.archive import ArchiveSource
from nmt_cli.preparing.sources.base import Split, kind_of_file, without_query
from nmt_cli.preparing.sources.columns import TableSource
from nmt_cli.preparing.sources.text import split_code
from nmt_cli.recipe.foreign_names import check_own_keys
from nmt_cli.recipe.loading import find_yaml_file, parse_override
from nmt_cli.recipe.mistakes import validate
from nmt_cli.recipe.section import as_name
from nmt_cli.recipe.yaml_files import Document, merge, read_document


def load_corpus(name_or_path: str, *, overrides: Sequence[str]) -> LocatedCorpus:
    """The corpus of a file, or of a packaged name; `overrides` are `key.key=value`.

    RecipeError, with the command that prepares it, for a file that seems to be text.
    """
    file = find_yaml_file(name_or_path, kind="corpus", command="nmt prepare")
    if kind_of_file(file) is not None:
        hint = f"nmt prepare --train {shlex.quote(str(file))} -l en-de"
        raise RecipeError(f"{file.name} is text, not a corpus file", where=str(file), hint=hint)
    document = read_document(file)
    check_own_keys(document.values, Corpus.model_fields, noun="corpus file", where=str(file))
    document.values.setdefault("name", file.stem)
    return LocatedCorpus(_apply_overrides(document, overrides, source=str(file)), file.parent)


def corpus_from_files(
    files: Mapping[Split, Sequence[str]],
    *,
    languages: str | Sequence[str],
    name: str,
    overrides: Sequence[str],
    columns: str | None = None,
    alignments: Sequence[str] = (),
) -> LocatedCorpus:
    """The corpus of files of pairs, recognised by their endings, and of text files PREFIX.LANGUAGE.

    `languages` is SOURCE-TARGET: one for all files, or one for each text to train on, in order. Then validation and
    test text has a file for each direction, in the order of their first texts. `columns` names two columns or keys of
    each table, SOURCE,TARGET, and `alignments` has a file for each text to train on, or none. Raises UsageError if it
    is not two different codes, or two columns, or if there are more or fewer files.
    """
    pairs = [_two_codes(one) for one in ([languages] if isinstance(languages, str) else languages)]
    values: dict[str, Any] = {"name": as_name(name, default="corpus"), "languages": pairs[0]}
    for split, paths in files.items():
        if len(pairs) == 1:
            values[split] = [
                _source_with_columns(path, columns) for path in _first_of_two_sides(paths, [*pairs[0].values()])
            ]
            continue
        wanted = pairs if split == "train" else [pair for index, pair in enumerate(pairs) if pair not in pairs[:index]]
        if len(paths) != len(wanted):
            codes = ", ".join(f"{pair['source']}-{pair['target']}" for pair in wanted)
            each = "for each -l" if split == "train" else "for each direction"
            message = f"--{split} has {len(paths)} {'file' if len(paths) == 1 else 'files'}, and there are {codes}"
            hint = f"give --{split} once {each}, in the same order; a corpus file can have more files"
            raise UsageError(message, where=f"--{split}", hint=hint)
        values[split] = [
            {**_source_with_columns(path, columns), "languages": pair} for path, pair in zip(paths, wanted, strict=True)
        ]
    if alignments and len(alignments) != len(values["train"]):
        message = f"there are {len(alignments)} files of alignments, and {len(values['train'])} training texts"
        raise UsageError(message, where="--alignments", hint="give --alignments FILE once for each --train, in order")
    for text, file in zip(values["train"], alignments, strict=False):
        text["alignments"] = file
    document = Document(values, {("languages",): "--languages"})
    return LocatedCorpus(_apply_overrides(document, overrides, source="nmt prepare"), Path())


def _two_codes(languages: str) -> dict[str, str]:
    source, target = parse_languages(languages)
    if source == target:
        hint = "for example --languages en-de"
        raise UsageError(f"`languages` {languages!r} names one language twice", setting="languages", hint=hint)
    return {"source": source, "target": target}


def _first_of_two_sides(paths: Sequence[str], codes: Sequence[str]) -> list[str]:
    """The paths without the second of two text files that belong together, such as my.de after my.en."""
    first: dict[Path | str, str] = {}
    for path in paths:
        prefix, code = split_code(Path(path).name)
        is_side = match_code(code, codes) is not None and kind_of_file(Path(path)) is None and Path(path).is_file()
        first.setdefault(Path(path).parent / prefix if is_side else path, path)
    return list(first.values())


def _source_with_columns(path: str, columns: str | None) -> dict[str, Any]:
    """The keys of the source at a path, with its two columns if they are given and its kind has columns."""
    source, kind = source_of(path), kind_of_file(without_query(path))
    if columns is not None and kind is ArchiveSource:
        problem = f"`columns` are those of a table, and {Path(path).name} is an archive"
        raise UsageError(problem, setting="columns", hint="unpack it, and give the table in it")
    if columns is None or kind is None or "source" not in kind.model_fields:  # a kind without columns
        return dict(source)
    names = [column.strip() for column in columns.split(",")]
    if len(names) != 2 or not all(names):
        hint = "by number or by name, source first: --columns 3,4"
        raise UsageError(f"`columns` {columns!r} is not SOURCE,TARGET", setting="columns", hint=hint)
    given = [int(name) if name.isdecimal() and issubclass(kind, TableSource) else name for name in names]
    return {**source, "source": given[0], "target": given[1]}


def _apply_overrides(document: Document, overrides: Sequence[str], *, source: str) -> Corpus:
    for override in overrides:
        document = merge(document, parse_override(override))
    return validate(document, Corpus, source=source, fix="nmt prepare NAME --dry-run shows every key with its value")
