"""The API of LibreTranslate: its paths, fields and codes, so that its clients work here.

https://github.com/LibreTranslate/LibreTranslate, the protocol only.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, UploadFile
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, Field, Json, WithJsonSchema

from nmt_cli.documents.formats import ENDINGS
from nmt_cli.documents.markup_tokens import MARKUP
from nmt_cli.languages import DetectedLanguage
from nmt_cli.serving.api.endpoints import (
    FILE_FORM,
    Call,
    FileRoute,
    FormRoute,
    Language,
    OpenCall,
    SourceLanguage,
    Terms,
    file_response,
    json_response,
    keyed_call,
    term_list,
)
from nmt_cli.serving.api.requests import watch_caller
from nmt_cli.serving.request_errors import BUSY, REFUSED, RequestError, invalid_request_error, shorten
from nmt_cli.serving.request_limits import SearchOptions
from nmt_cli.serving.service import off_the_loop

# No enum: clients send "" for text, and generators of clients would make a name of it.
_FORMAT = {"pattern": "^(text|html)?$", "type": "string", "description": "html: tags stay on their words"}


class LibreTranslateRequest(BaseModel):
    """Text to translate; a list of texts in JSON only."""

    q: str | Annotated[list[str], Field(json_schema_extra={"minItems": 1})]
    source: Annotated[str, Field(description="a language's code, or auto")]
    target: Annotated[str, Field(description="a language's code")]
    format: Annotated[Literal["text", "html", ""], WithJsonSchema(_FORMAT)] = "text"
    alternatives: Annotated[int, Field(ge=0, description="further translations of each text; else none")] = 0
    api_key: str | None = None


class LibreFileRequest(BaseModel):
    """A document to translate."""

    file: UploadFile
    source: Annotated[str, Field(description="a language's code, or auto")]
    target: Annotated[str, Field(description="a language's code")]
    terms: Annotated[Json[Terms], Field(description="an object, as in /v1/translate; LibreTranslate has none")] = {}
    api_key: str | None = None


class LibreFileAnswer(BaseModel):
    """The address of the translated document."""

    translatedFileUrl: str


class LibreDetectRequest(BaseModel):
    """Text whose language is asked for."""

    q: Annotated[str, Field(min_length=1)]
    api_key: str | None = None


class LibreDetectedLanguage(BaseModel):
    """A language, and how sure it is, in per cent."""

    confidence: float
    language: str


class LibreTranslateAnswer(BaseModel):
    """The translation of a text; for a list of texts, every field is a list."""

    translatedText: str | list[str]
    detectedLanguage: LibreDetectedLanguage | list[LibreDetectedLanguage] | None = None
    alternatives: list[str] | list[list[str]] | None = None


class LibreSideLanguages(BaseModel):
    """The languages to begin with."""

    source: Language
    target: Language


class LibreSettings(BaseModel):
    """The settings that a page of LibreTranslate asks for."""

    apiKeys: bool  # the protocol's names
    keyRequired: bool
    charLimit: int
    frontendTimeout: int
    suggestions: bool
    filesTranslation: bool
    supportedFilesFormat: list[str]
    language: LibreSideLanguages


class LibreError(BaseModel):
    """Why a request was refused."""

    error: str


def error_content(error: RequestError) -> dict[str, Any]:
    """A refusal as LibreTranslate says it."""
    return {"error": error.message_with_hint}


router = APIRouter(
    route_class=FormRoute,
    tags=["LibreTranslate"],
    generate_unique_id_function=lambda route: f"libretranslate_{route.name}",
    responses={"4XX": {"model": LibreError, "description": REFUSED}, 503: {"model": LibreError, "description": BUSY}},
)
_Keyed = Annotated[Call, Depends(keyed_call(missing_status=400, key_field="api_key"))]


@router.post("/translate", response_model=LibreTranslateAnswer)
async def translate(fields: LibreTranslateRequest, call: _Keyed) -> Response:
    """A text, or each of a list of texts, translated by the model for its language.

    The fields may also be sent as a form, or in the query string.
    """
    limit = call.service.limits.alternatives
    if fields.q == []:
        raise invalid_request_error(
            "Invalid request: missing q parameter", hint="q is the text to translate", where="q"
        )
    if fields.alternatives > limit:
        message = f"{shorten(str(fields.alternatives))} alternatives are too many"
        raise invalid_request_error(message, hint=f"ask for at most {limit}", where="alternatives")
    texts = [fields.q] if isinstance(fields.q, str) else fields.q
    sent_texts = await call.service.read_texts(texts, MARKUP.get(fields.format))
    with watch_caller(call.request) as caller:
        routed_translations = await call.service.translate_each(
            sent_texts,
            SearchOptions(nbest=1 + fields.alternatives),
            source=fields.source,
            target=fields.target,
            owner=call.owner,
            caller=caller,
        )
    answer: dict[str, list[Any]] = {"translatedText": [translated.text for translated, _ in routed_translations]}
    detected = [_detected_language(route.detected) for _, route in routed_translations if route.detected]
    if detected:
        answer["detectedLanguage"] = detected
    if fields.alternatives:
        answer["alternatives"] = [
            [candidate.text for candidate in translated.alternatives] for translated, _ in routed_translations
        ]
    is_list = isinstance(fields.q, list)
    return json_response(answer if is_list else {name: values[0] for name, values in answer.items()})


async def translate_file(fields: Annotated[LibreFileRequest, FILE_FORM], call: _Keyed) -> Response:
    """The address of a translated document, which is kept there for an hour."""
    with watch_caller(call.request) as caller:
        document = await call.service.start_document(
            await fields.file.read(),
            fields.file.filename or "",
            source=fields.source,
            target=fields.target,
            terms=await term_list(fields.terms),
            owner=call.owner,
            caller=caller,
        )
        await document.work
    path = f"download_file/{document.key}.{quote(document.name)}"
    return json_response({"translatedFileUrl": str(call.request.base_url) + path})


router.add_api_route(
    "/translate_file",
    translate_file,
    methods=["POST"],
    response_model=LibreFileAnswer,
    route_class_override=FileRoute,
)


@router.get("/download_file/{name}", response_class=FileResponse)
async def download_file(call: OpenCall) -> Response:
    """The translated document."""
    key, _, _ = call.request.path_params["name"].partition(".")
    return file_response(call.service.documents.find_by_key(key))


@router.post("/detect", response_model=list[LibreDetectedLanguage])
async def detect(fields: LibreDetectRequest, call: _Keyed) -> Response:
    """The most likely language of a text, among the languages of the models.

    The fields may also be sent as a form, or in the query string.
    """
    call.service.check_texts([fields.q])
    with call.owner.charged(requests=1, characters=0):
        found = await off_the_loop([fields.q], partial(call.service.models.detect, fields.q))
        return json_response([_detected_language(found)])


@router.get("/languages", response_model=list[SourceLanguage])
async def languages(call: OpenCall) -> Response:
    """Each language, and the languages that it is translated into."""
    return json_response(SourceLanguage.of_pairs(call.service.models.pairs))


@router.get("/frontend/settings", response_model=LibreSettings)
async def settings(call: OpenCall) -> Response:
    """Limits, keys, and the languages to begin with."""
    service = call.service
    source = service.models.sources[0]
    target = service.models.targets_of(source)[0]
    return json_response(
        {
            "apiKeys": service.keys.are_required,
            "keyRequired": service.keys.are_required,
            "charLimit": service.limits.characters,
            "frontendTimeout": 500,
            "suggestions": False,
            "filesTranslation": True,
            "supportedFilesFormat": list(ENDINGS),
            "language": {
                "source": Language.of(source),
                "target": Language.of(target),
            },
        }
    )


def _detected_language(detected: DetectedLanguage) -> dict[str, Any]:
    return {"confidence": round(100 * detected.confidence, 1), "language": detected.code}
