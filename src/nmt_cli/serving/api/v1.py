"""Our own API: n-best lists, scores, alignments, search options, streamed texts, single words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from nmt_cli.decoding.terms import TermList
from nmt_cli.documents.markup import MarkupDocument
from nmt_cli.documents.markup_tokens import MARKUP
from nmt_cli.languages import DetectedLanguage
from nmt_cli.serving.api.endpoints import (
    Call,
    JsonRoute,
    NotBlank,
    OpenCall,
    SourceLanguage,
    Terms,
    json_response,
    keyed_call,
    term_list,
)
from nmt_cli.serving.api.requests import watch_caller
from nmt_cli.serving.models import ServedModel
from nmt_cli.serving.request_errors import BUSY, REFUSED, ClientGone, RequestError
from nmt_cli.serving.request_limits import SearchOptions
from nmt_cli.serving.router import ModelRoute
from nmt_cli.serving.translated_texts import Candidate, TranslatedText
from nmt_cli.serving.worker_model import AttentionTask, NextWordsTask

_NDJSON = "application/x-ndjson"


class _ModelChoice(BaseModel):
    """The languages, which name a model and its direction; no further fields are taken."""

    model_config = ConfigDict(extra="forbid")

    source: Annotated[str | None, Field(description="a language's code; auto or none: detected in the texts")] = None
    target: Annotated[str | None, Field(description="a language's code; may be left out if there is only one")] = None


class TranslateRequest(SearchOptions, _ModelChoice):
    """Texts to translate in one direction; settings that are left out are the model's own."""

    text: str | list[str]
    format: Annotated[
        Literal["text", "html", "xml"], Field(description="html, xml: tags stay on their words; else plain text")
    ] = "text"
    terms: Terms = {}
    stream: Annotated[bool, Field(strict=True, description="a line of JSON for each text as soon as it is done")] = (
        False
    )


class TranslateAnswer(BaseModel):
    """The translations in order, their languages, and how the source language was found."""

    source: str
    target: str
    detection: Literal["given", "detected", "undecided"]
    confidence: float
    translations: list[TranslatedText]


class NextWordsRequest(_ModelChoice):
    """A sentence, and the beginning of its translation, for which the next words are asked."""

    text: NotBlank
    prefix: Annotated[str, Field(description="what the translation begins with, in whole words")] = ""
    terms: Terms = {}


class NextWord(Candidate):
    """A word that may come next, and the best translation with it."""

    word: str


class NextWordsAnswer(BaseModel):
    """The words that may come next; the word of the likeliest translation is first."""

    words: list[NextWord]


class AttentionRequest(_ModelChoice):
    """A sentence and its translation."""

    text: NotBlank
    translation: NotBlank


class AttentionAnswer(BaseModel):
    """The attention of each target word: weights by layer, head, row (target) and column (source). Rows sum to 1."""

    part: Literal["cross"]
    rows: list[str]
    columns: list[str]
    weights: list[list[list[list[float]]]]


class ServedModelAnswer(BaseModel):
    """A model: what it translates, what it was made of, and whether it has a worker."""

    name: str
    languages: list[SourceLanguage]
    updates: list[int]
    digest: Annotated[str, Field(description="identifies its files")]
    is_ready: bool


class LimitsAnswer(BaseModel):
    """The limits of one request."""

    characters: int
    texts: int
    sentences: int
    alternatives: int
    beam: int


class ModelsAnswer(BaseModel):
    """The served models, and the limits of a request."""

    models: list[ServedModelAnswer]
    key_required: bool
    limits: LimitsAnswer


class ErrorDetails(BaseModel):
    """Why a request was refused, and what to do."""

    code: str
    message: str
    hint: str
    where: str | None


class ErrorAnswer(BaseModel):
    """A refused request."""

    error: ErrorDetails


def error_content(error: RequestError) -> dict[str, Any]:
    """A refusal as this API says it."""
    return {"error": {name: getattr(error, name) for name in ("code", "message", "hint", "where")}}


router = APIRouter(
    route_class=JsonRoute,
    tags=["nmt"],
    generate_unique_id_function=lambda route: route.name,
    responses={"4XX": {"model": ErrorAnswer, "description": REFUSED}, 503: {"model": ErrorAnswer, "description": BUSY}},
)
_Keyed = Annotated[Call, Depends(keyed_call(missing_status=401))]


@router.post("/v1/translate", response_model=TranslateAnswer, responses={200: {"content": {_NDJSON: {}}}})
async def translate(fields: TranslateRequest, call: _Keyed) -> Response:
    """Texts in one language, translated into another one, at once or as a stream of lines."""
    call.service.check_texts([fields.prefix])
    sent = [fields.text] if isinstance(fields.text, str) else fields.text
    texts = await call.service.read_texts(sent, MARKUP.get(fields.format))
    text = "\n".join(text.plain for text in texts)
    route = await call.service.find_route(fields.source, fields.target, text=text)
    routes = [route] * len(texts)
    terms = await term_list(fields.terms)
    characters = sum(len(text.plain) for text in texts)
    charged = call.owner.charged(requests=max(1, len(texts)), characters=characters)
    if fields.stream:
        lines = _stream_lines(fields, call, texts, routes, terms, charged)
        # Awaited before the status is sent, so that a full queue is a 503.
        first_line = await anext(lines, b"")
        return StreamingResponse(_prepend(first_line, lines), media_type=_NDJSON)
    with charged, watch_caller(call.request) as caller:
        translated = call.service.translate(texts, routes, fields, terms=terms, caller=caller)
        translations = [text async for text in translated]
    answer = {
        "source": route.source,
        "target": route.target,
        "detection": _detection_kind(route.detected),
        "confidence": 1.0 if route.detected is None else round(route.detected.confidence, 4),
        "translations": translations,
    }
    return json_response(answer)


@router.post("/v1/words", response_model=NextWordsAnswer)
async def next_words(fields: NextWordsRequest, call: _Keyed) -> Response:
    """The next words that the model thinks likely, each with the best translation that has it."""
    call.service.check_texts([fields.text, fields.prefix])
    with call.owner.charged(requests=1, characters=0):
        route = await call.service.find_route(fields.source, fields.target, text=fields.text)
        num_words, beam = call.service.limits.alternatives + 1, route.model.config.recipe.decoding.beam
        task = NextWordsTask(" ".join(fields.prefix.split()), num_words, beam)
        with watch_caller(call.request) as caller:
            terms = await term_list(fields.terms)
            answer = await call.service.ask_about_words(fields.text, task, route, terms=terms, caller=caller)
            return json_response(NextWordsAnswer.model_validate(answer))


@router.post("/v1/attention", response_model=AttentionAnswer)
async def attention(fields: AttentionRequest, call: _Keyed) -> Response:
    """The weights of the cross-attention between the words of a sentence and of its translation."""
    task = AttentionTask(fields.translation.strip())
    call.service.check_texts([fields.text, fields.translation])
    with call.owner.charged(requests=1, characters=0):
        route = await call.service.find_route(fields.source, fields.target, text=fields.text)
        with watch_caller(call.request) as caller:
            answer = await call.service.ask_about_words(fields.text, task, route, caller=caller)
    return Response(answer["map"], media_type="application/json")


@router.get("/v1/models", response_model=ModelsAnswer)
async def models(call: OpenCall) -> Response:
    """The served models, and the limits of a request."""
    service = call.service
    return json_response(
        {
            "models": [_model_json(model) for model in service.models],
            "key_required": service.keys.are_required,
            "limits": {name: getattr(service.limits, name) for name in LimitsAnswer.model_fields},
        }
    )


def _detection_kind(detected: DetectedLanguage | None) -> Literal["given", "detected", "undecided"]:
    if detected is None:
        return "given"
    return "detected" if detected.confidence else "undecided"


def _model_json(model: ServedModel) -> dict[str, Any]:
    return {
        "name": model.config.recipe.name,
        "languages": SourceLanguage.of_pairs(model.pairs),
        "updates": model.config.updates,
        "digest": model.digest,
        "is_ready": model.pool.num_ready > 0,
    }


async def _stream_lines(
    fields: TranslateRequest,
    call: Call,
    texts: list[MarkupDocument],
    routes: list[ModelRoute],
    terms: TermList | None,
    charged: AbstractContextManager[None],
) -> AsyncIterator[bytes]:
    """A line of JSON for each text, in order; if an error ends the stream, the last line is the error."""
    is_begun = False
    try:
        with charged, watch_caller(call.request) as caller:
            async for text in call.service.translate(texts, routes, fields, terms=terms, caller=caller):
                yield to_json(text, inf_nan_mode="null") + b"\n"
                is_begun = True
    except ClientGone:
        return
    except RequestError as error:
        if not is_begun:
            raise
        yield to_json(error_content(error)) + b"\n"


async def _prepend(first_line: bytes, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first_line
    async for line in lines:
        yield line
