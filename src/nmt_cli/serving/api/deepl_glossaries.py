"""DeepL's API of glossaries: version 2 has one language pair in a glossary, version 3 several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel, Field

from nmt_cli.serving.api.deepl import KeyedDeepLCall, deepl_router
from nmt_cli.serving.api.endpoints import Call, NotBlank, json_response
from nmt_cli.serving.glossaries import Dictionary, EntriesFormat, Glossary
from nmt_cli.serving.request_errors import not_found_error

_CREATED = 201


class DeepLGlossaryPair(BaseModel):
    """The languages of a dictionary."""

    source_lang: str
    target_lang: str


class DeepLDictionaryRequest(DeepLGlossaryPair):
    """Terms and their translations; a translation may have several forms: Haus|Hauses."""

    entries: Annotated[str, Field(description="lines of a term and its translation")]
    entries_format: EntriesFormat = "tsv"


class DeepLGlossaryRequest(DeepLDictionaryRequest):
    """A glossary of one language pair."""

    name: NotBlank


class DeepLGlossaryV3Request(BaseModel):
    """A glossary of several language pairs."""

    name: NotBlank
    dictionaries: Annotated[list[DeepLDictionaryRequest], Field(min_length=1)]


class DeepLGlossaryChangeRequest(BaseModel):
    """Changes of a glossary: a new name, and entries that are added or replaced."""

    name: NotBlank | None = None
    dictionaries: list[DeepLDictionaryRequest] = []


class DeepLGlossary(DeepLGlossaryPair):
    """A glossary of one language pair."""

    glossary_id: str
    name: str
    ready: bool
    creation_time: str
    entry_count: int


class DeepLGlossaries(BaseModel):
    """The glossaries of a key."""

    glossaries: list[DeepLGlossary]


class DeepLDictionaryInfo(DeepLGlossaryPair):
    """The size of a dictionary."""

    entry_count: int


class DeepLGlossaryV3(BaseModel):
    """A glossary of several language pairs."""

    glossary_id: str
    name: str
    creation_time: str
    dictionaries: list[DeepLDictionaryInfo]


class DeepLGlossariesV3(BaseModel):
    """The glossaries of a key."""

    glossaries: list[DeepLGlossaryV3]


class DeepLDictionary(DeepLGlossaryPair):
    """The entries of a dictionary as lines."""

    entries: str
    entries_format: EntriesFormat


class DeepLDictionaries(BaseModel):
    """The entries of a dictionary."""

    dictionaries: list[DeepLDictionary]


class DeepLGlossaryPairs(BaseModel):
    """The language pairs that a glossary can have."""

    supported_languages: list[DeepLGlossaryPair]


router = deepl_router()


@router.get("/v2/glossary-language-pairs", response_model=DeepLGlossaryPairs)
async def glossary_pairs(call: KeyedDeepLCall) -> Response:
    """The language pairs of the models."""
    return json_response({"supported_languages": [_pair_json(*pair) for pair in call.service.models.pairs]})


@router.post("/v2/glossaries", response_model=DeepLGlossary, status_code=_CREATED)
async def create_glossary(fields: DeepLGlossaryRequest, call: KeyedDeepLCall) -> Response:
    """A new glossary of one language pair."""
    made = await _created(fields.name, [fields], call)
    return json_response(_glossary_json(made), status=_CREATED)


@router.get("/v2/glossaries", response_model=DeepLGlossaries)
async def glossaries(call: KeyedDeepLCall) -> Response:
    """The glossaries of one language pair."""
    found = [glossary for glossary in call.service.glossaries.of(call.owner) if len(glossary.dictionaries) == 1]
    return json_response({"glossaries": list(map(_glossary_json, found))})


@router.get("/v2/glossaries/{glossary_id}", response_model=DeepLGlossary)
async def glossary(call: KeyedDeepLCall) -> Response:
    """A glossary of one language pair."""
    return json_response(_glossary_json(_found(call)))


@router.get("/v2/glossaries/{glossary_id}/entries", response_class=PlainTextResponse)
async def glossary_entries(call: KeyedDeepLCall) -> Response:
    """Its entries as lines of TSV."""
    return Response(_only_dictionary(_found(call)).tsv, media_type="text/tab-separated-values")


@router.post("/v3/glossaries", response_model=DeepLGlossaryV3, status_code=_CREATED)
async def create_glossary_v3(fields: DeepLGlossaryV3Request, call: KeyedDeepLCall) -> Response:
    """A new glossary of several language pairs."""
    made = await _created(fields.name, fields.dictionaries, call)
    return json_response(_glossary_v3_json(made), status=_CREATED)


@router.get("/v3/glossaries", response_model=DeepLGlossariesV3)
async def glossaries_v3(call: KeyedDeepLCall) -> Response:
    """All glossaries."""
    return json_response({"glossaries": list(map(_glossary_v3_json, call.service.glossaries.of(call.owner)))})


@router.get("/v3/glossaries/{glossary_id}", response_model=DeepLGlossaryV3)
async def glossary_v3(call: KeyedDeepLCall) -> Response:
    """A glossary."""
    return json_response(_glossary_v3_json(_found(call)))


@router.patch("/v3/glossaries/{glossary_id}", response_model=DeepLGlossaryV3)
async def change_glossary(fields: DeepLGlossaryChangeRequest, call: KeyedDeepLCall) -> Response:
    """A glossary with a new name, or with entries added or replaced."""
    dictionaries = await _dictionaries(fields.dictionaries, call)

    def change(glossary: Glossary) -> Glossary:
        return replace(glossary.with_entries(dictionaries), name=fields.name or glossary.name)

    return json_response(_glossary_v3_json(await _changed(change, call)))


@router.get("/v3/glossaries/{glossary_id}/entries", response_model=DeepLDictionaries)
async def dictionary_entries(fields: Annotated[DeepLGlossaryPair, Query()], call: KeyedDeepLCall) -> Response:
    """The entries of a dictionary."""
    dictionary = _found(call).dictionary(_pair(fields, call))
    answer = {**_pair_json(*dictionary.pair), "entries": dictionary.tsv, "entries_format": "tsv"}
    return json_response({"dictionaries": [answer]})


@router.put("/v3/glossaries/{glossary_id}/dictionaries", response_model=DeepLDictionaryInfo)
async def replace_dictionary(fields: DeepLDictionaryRequest, call: KeyedDeepLCall) -> Response:
    """A dictionary in place of that of the same language pair."""
    (dictionary,) = await _dictionaries([fields], call)
    await _changed(lambda glossary: glossary.with_dictionaries([dictionary]), call)
    return json_response(_dictionary_json(dictionary))


@router.delete("/v3/glossaries/{glossary_id}/dictionaries", status_code=204)
async def delete_dictionary(fields: Annotated[DeepLGlossaryPair, Query()], call: KeyedDeepLCall) -> Response:
    """Delete the dictionary of a language pair."""
    pair = _pair(fields, call)
    await _changed(lambda glossary: glossary.without_dictionary(pair), call)
    return Response(status_code=204)


@router.delete("/v2/glossaries/{glossary_id}", status_code=204, name="delete_glossary_v2")
@router.delete("/v3/glossaries/{glossary_id}", status_code=204, name="delete_glossary_v3")
async def delete_glossary(call: KeyedDeepLCall) -> Response:
    """Delete a glossary."""
    await asyncio.to_thread(call.service.glossaries.delete, _found(call).id, call.owner)
    return Response(status_code=204)


async def _created(name: str, sent: Sequence[DeepLDictionaryRequest], call: Call) -> Glossary:
    return await asyncio.to_thread(call.service.glossaries.create, name, await _dictionaries(sent, call), call.owner)


async def _changed(change: Callable[[Glossary], Glossary], call: Call) -> Glossary:
    return await asyncio.to_thread(call.service.glossaries.change, _found(call).id, call.owner, change)


async def _dictionaries(sent: Sequence[DeepLDictionaryRequest], call: Call) -> list[Dictionary]:
    """The dictionaries of a request; to read many entries takes time."""
    return await asyncio.to_thread(
        lambda: [Dictionary.read(_pair(one, call), one.entries, one.entries_format) for one in sent]
    )


def _found(call: Call) -> Glossary:
    return call.service.glossaries.find(call.request.path_params["glossary_id"], call.owner)


def _pair(fields: DeepLGlossaryPair, call: Call) -> tuple[str, str]:
    """The pair that a model translates; RequestError if there is none."""
    return call.service.models.route(fields.source_lang, fields.target_lang, text="").pair


def _only_dictionary(glossary: Glossary) -> Dictionary:
    if len(glossary.dictionaries) != 1:
        raise not_found_error("Glossary", hint="it has several language pairs: ask at /v3/glossaries")
    return glossary.dictionaries[0]


def _pair_json(source: str, target: str) -> dict[str, str]:
    return {"source_lang": source, "target_lang": target}


def _dictionary_json(dictionary: Dictionary) -> dict[str, Any]:
    return {**_pair_json(*dictionary.pair), "entry_count": len(dictionary.entries)}


def _glossary_json(glossary: Glossary) -> dict[str, Any]:
    return {
        "glossary_id": glossary.id,
        "name": glossary.name,
        "ready": True,
        "creation_time": glossary.created,
        **_dictionary_json(_only_dictionary(glossary)),
    }


def _glossary_v3_json(glossary: Glossary) -> dict[str, Any]:
    return {
        "glossary_id": glossary.id,
        "name": glossary.name,
        "creation_time": glossary.created,
        "dictionaries": list(map(_dictionary_json, glossary.dictionaries)),
    }
