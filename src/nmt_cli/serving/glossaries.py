"""Glossaries of clients: dictionaries of terms by language pair, in memory, and in a folder if there is one."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

from nmt_cli.decoding.terms import TermList, parse_terms
from nmt_cli.errors import DataError, UsageError
from nmt_cli.files import read_json, write_file
from nmt_cli.serving.keys import KeyOwner
from nmt_cli.serving.request_errors import (
    RequestError,
    invalid_request_error,
    not_found_error,
    too_large_error,
    unexpected_error,
)

EntriesFormat = Literal["tsv", "csv"]
# Of one key, or of everybody without one. DeepL's clients know this status for "no more".
_MAX_GLOSSARIES, _STATUS_QUOTA = 100, 456
_MAX_BYTES = 10 * 1024 * 1024
"""The entries of a glossary, as DeepL limits them."""


@dataclass(frozen=True, slots=True, eq=False)
class Dictionary:
    """Terms of a language, each with its translation, or with several forms of it: Haus|Hauses.

    It equals no other, so that it can be the key of a cache.
    """

    source: str
    target: str
    entries: Mapping[str, str]

    @classmethod
    def read(cls, pair: tuple[str, str], text: str, entries_format: EntriesFormat) -> Dictionary:
        """The dictionary in lines of text; DataError if there are none, or one is wrong."""
        terms = parse_terms(text, is_csv=entries_format == "csv", name="entries")
        return cls(*pair, {source: "|".join(forms) for source, forms in terms.items()})

    @property
    def pair(self) -> tuple[str, str]:
        """The codes of both languages."""
        return self.source, self.target

    @property
    def tsv(self) -> str:
        """The entries as lines."""
        return "\n".join(f"{source}\t{target}" for source, target in self.entries.items())


@dataclass(frozen=True, slots=True)
class Glossary:
    """Dictionaries under a name, one for each language pair."""

    id: str
    owner: str
    name: str
    created: str
    dictionaries: Sequence[Dictionary] = field(default_factory=list)

    def dictionary(self, pair: tuple[str, str]) -> Dictionary:
        """The dictionary of a language pair; RequestError if there is none."""
        for dictionary in self.dictionaries:
            if dictionary.pair == pair:
                return dictionary
        raise not_found_error(f"Dictionary {pair[0]}-{pair[1]}", hint="the glossary has other language pairs")

    def with_dictionaries(self, dictionaries: Sequence[Dictionary]) -> Glossary:
        """The glossary with new dictionaries, which replace those of their pairs; RequestError if two have one pair."""
        if len({dictionary.pair for dictionary in dictionaries}) < len(dictionaries):
            hint = "send all entries of a language pair in one dictionary"
            raise invalid_request_error("two dictionaries have the same languages", hint=hint, where="dictionaries")
        by_pair = {dictionary.pair: dictionary for dictionary in (*self.dictionaries, *dictionaries)}
        return replace(self, dictionaries=list(by_pair.values()))

    def with_entries(self, dictionaries: Sequence[Dictionary]) -> Glossary:
        """The glossary with further entries in its dictionaries, by language pair; RequestError as above."""
        own = {dictionary.pair: dictionary.entries for dictionary in self.dictionaries}
        return self.with_dictionaries(
            [replace(one, entries={**own.get(one.pair, {}), **one.entries}) for one in dictionaries]
        )

    def without_dictionary(self, pair: tuple[str, str]) -> Glossary:
        """The glossary without the dictionary of a language pair; RequestError if there is none."""
        removed = self.dictionary(pair)
        return replace(self, dictionaries=[other for other in self.dictionaries if other is not removed])


class GlossaryStore:
    """The glossaries of all keys; an owner sees none of another."""

    def __init__(self, folder: Path | None = None) -> None:
        """Read the glossaries in a folder; UsageError if it cannot keep them, DataError if one is damaged."""
        if folder is not None:
            _check_is_writable(folder)
        self._folder = folder
        self._by_id: dict[str, Glossary] = {}
        self._lock = threading.Lock()
        for file in sorted(folder.glob("*.json")) if folder is not None else []:
            glossary = _read_glossary(file)
            self._by_id[glossary.id] = glossary

    def of(self, owner: KeyOwner) -> list[Glossary]:
        """The glossaries of an owner, the oldest first."""
        own = [glossary for glossary in list(self._by_id.values()) if glossary.owner == owner.name]
        return sorted(own, key=lambda glossary: glossary.created)

    def find(self, glossary_id: str, owner: KeyOwner) -> Glossary:
        """The glossary of an owner; RequestError if there is none."""
        glossary = self._by_id.get(glossary_id)
        if glossary is None or glossary.owner != owner.name:
            raise not_found_error("Glossary", hint="give the id of a glossary of this key")
        return glossary

    def create(self, name: str, dictionaries: Sequence[Dictionary], owner: KeyOwner) -> Glossary:
        """A new glossary; RequestError if there are too many."""
        with self._lock:
            if len(self.of(owner)) >= _MAX_GLOSSARIES:
                message = f"there are {_MAX_GLOSSARIES} glossaries already"
                raise RequestError(message, hint="delete one", status=_STATUS_QUOTA, code="quota_exceeded")
            created = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            glossary = Glossary(str(uuid.uuid4()), owner.name, name, created)
            return self._keep(glossary.with_dictionaries(dictionaries))

    def change(self, glossary_id: str, owner: KeyOwner, change: Callable[[Glossary], Glossary]) -> Glossary:
        """The glossary of an owner after a change."""
        with self._lock:
            return self._keep(change(self.find(glossary_id, owner)))

    def delete(self, glossary_id: str, owner: KeyOwner) -> None:
        """Delete a glossary."""
        with self._lock:
            glossary = self.find(glossary_id, owner)
            if self._folder is not None:
                (self._folder / f"{glossary.id}.json").unlink(missing_ok=True)
            del self._by_id[glossary.id]
            _term_list.cache_clear()

    def terms(self, glossary_ids: Sequence[str], pair: tuple[str, str], owner: KeyOwner) -> TermList:
        """The terms of glossaries for a language pair; of two translations of a term, that of the first glossary."""
        dictionaries = [self.find(glossary_id, owner).dictionary(pair) for glossary_id in glossary_ids]
        return _term_list(tuple(dictionaries))

    def _keep(self, glossary: Glossary) -> Glossary:
        num_bytes = sum(len(dictionary.tsv.encode()) for dictionary in glossary.dictionaries)
        if num_bytes > _MAX_BYTES:
            message = f"the glossary would have {num_bytes:,} bytes"
            raise too_large_error(message, hint=f"a glossary has at most {_MAX_BYTES:,}: make another one")
        if self._folder is not None:
            content = json.dumps(asdict(glossary), ensure_ascii=False)
            try:
                write_file(self._folder / f"{glossary.id}.json", content, error=DataError)
            except DataError as error:  # a full disk is no mistake of the client
                raise unexpected_error() from error
        self._by_id[glossary.id] = glossary
        _term_list.cache_clear()  # it may hold a dictionary that is no longer there
        return glossary


@lru_cache(maxsize=32)
def _term_list(dictionaries: tuple[Dictionary, ...]) -> TermList:
    """The terms of dictionaries; to make the list of many takes time."""
    entries: dict[str, str] = {}
    for dictionary in reversed(dictionaries):
        entries |= dictionary.entries
    return TermList(entries)


def _check_is_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        message = f"glossaries cannot be kept in {folder}: {error.strerror}"
        raise UsageError(message, setting="glossaries", hint="give a folder that you may write to") from None


def _read_glossary(file: Path) -> Glossary:
    hint = "remove the file, or restore it"
    content: dict[str, Any] = read_json(file, error=DataError, hint=hint)
    try:
        dictionaries = [Dictionary(**dictionary) for dictionary in content["dictionaries"]]
        return Glossary(**{**content, "dictionaries": dictionaries})
    except (TypeError, KeyError):
        raise DataError(f"{file.name} is no glossary", where=str(file), hint=hint) from None
