"""The files behind the paths and patterns of a corpus file."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import Literal

from nmt_cli.errors import DataError
from nmt_cli.preparing.sources.kinds import LanguagePair, TextSource

_ENDINGS = ("", ".gz", ".zst")
_KINDS: tuple[Literal["tsv", "jsonl", "parquet"], ...] = ("tsv", "jsonl", "parquet")
_WILD = re.compile(r"\*\*/|\*+|\?|\[[^\]]*\]")


def matching_files(path: str, *, folder: Path) -> list[Path]:
    """The file at a path, which starts at `folder`, or the files that match a pattern, sorted.

    DataError where nothing matches a pattern; a path is returned whether or not there is a file.
    """
    if not glob.has_magic(path) or (folder / path).exists():
        return [folder / path]
    found = sorted(folder / name for name in glob.glob(path, root_dir=folder, recursive=True))
    files = [file for file in found if file.is_file()]
    if not files:
        raise DataError(
            f"no file matches {path}",
            where=str(folder / path),
            hint="check the pattern: * is part of a name, ** any folders; it starts at the folder of the corpus file",
        )
    return files


def text_pairs(source: TextSource, *, languages: LanguagePair, folder: Path) -> list[tuple[Path, Path]]:
    """The files of the source and of the target, one pair for each match of a pattern.

    DataError lists what there is where one is missing, and where the two sides match different files.
    """
    if source.prefix is not None:
        prefix = folder / source.prefix
        return [(_with_ending(prefix, languages.source), _with_ending(prefix, languages.target))]
    assert source.source is not None
    assert source.target is not None
    sides = [matching_files(pattern, folder=folder) for pattern in (source.source, source.target)]
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{source.source} matches {len(sides[0])} files, {source.target} {len(sides[1])}",
            where=f"{folder / source.source}, {folder / source.target}",
            hint=f"{_odd_one(source, sides, folder)}; files are taken in pairs, in the order of their names",
        )
    for src, tgt in zip(*sides, strict=True):
        if _wild_parts(src, source.source, folder) != _wild_parts(tgt, source.target, folder):
            raise DataError(
                f"{src.name} and {tgt.name} do not belong together",
                where=f"{folder / source.source}, {folder / source.target}",
                hint="both sides need files whose names agree in what the patterns leave open",
            )
    return list(zip(*sides, strict=True))


def kind_of_file(file: Path) -> Literal["tsv", "jsonl", "parquet"] | None:
    """The kind of source that reads a file of pairs, by the file's ending; None for any other file."""
    name = file.name.removesuffix(".gz").removesuffix(".zst")
    return next((kind for kind in _KINDS if name.endswith(f".{kind}")), None)


def not_a_prefix_hint(file: Path, kind: str) -> str:
    """How a file of pairs is given to `nmt prepare`."""
    return (
        f"tsv, jsonl and parquet files are named in a corpus file, nmt prepare FILE.yaml, with a line such as "
        f"train: [{{kind: {kind}, file: {file}}}]; text files are given as --train PREFIX, for PREFIX.en and PREFIX.de"
    )


def _odd_one(source: TextSource, sides: list[list[Path]], folder: Path) -> str:
    """Which file has no partner, where the patterns tell, or else how to see it."""
    patterns = [source.source or "", source.target or ""]
    parts = [
        [_wild_parts(file, pattern, folder) for file in files] for files, pattern in zip(sides, patterns, strict=True)
    ]
    for side, other in ((0, 1), (1, 0)):
        for file, part in zip(sides[side], parts[side], strict=True):
            if part and part not in parts[other]:
                return f"{file.name} has no partner"
    return "list both with ls"


def _wild_parts(file: Path, pattern: str, folder: Path) -> tuple[str, ...]:
    """What the wildcards of a pattern stand for in a file's path; empty where there is no telling."""
    whole, expression, end = str(Path(pattern)), "", 0
    for wild in _WILD.finditer(whole):
        expression += re.escape(whole[end : wild.start()])
        among = f"({wild[0].replace('[!', '[^')})"
        expression += {"**/": "(.*/)?", "?": "(.)"}.get(wild[0], "(.*)" if wild[0].startswith("*") else among)
        end = wild.end()
    name = file if Path(pattern).is_absolute() else file.relative_to(folder)
    found = re.fullmatch(expression + re.escape(whole[end:]), str(name))
    return tuple(part or "" for part in found.groups()) if found else ()


def _with_ending(prefix: Path, language: str) -> Path:
    for ending in _ENDINGS:
        candidate = prefix.with_name(f"{prefix.name}.{language}{ending}")
        if candidate.is_file():
            return candidate
    wanted = f"{prefix}.{language}"
    there = sorted(path.name for path in prefix.parent.glob("*") if path.name.startswith(f"{prefix.name}."))
    if prefix.is_file() and (kind := kind_of_file(prefix)) is not None:
        hint = not_a_prefix_hint(prefix, kind)
    elif prefix.is_file() and prefix.suffix == f".{language}":
        hint = f"leave the ending out: {prefix.with_suffix('')}"
    elif not there:
        hint = f"check the path: {prefix.parent} has no file {prefix.name}.LANGUAGE"
    else:
        hint = f"there are {', '.join(there[:8])}: check the languages"
    raise DataError(f"no such file: {wanted} (nor .gz, .zst)", where=wanted, hint=hint)
