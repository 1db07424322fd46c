"""Our own API: n-best lists, scores, alignments, search options, streamed texts, single words."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from nmt_cli.languages import Detected, name_of
from nmt_cli.serving.api.endpoints import TEXT_ERRORS, Api, Call, NoFields, json_response
from nmt_cli.serving.api.requests import watch_caller
from nmt_cli.serving.errors import ClientGone, RequestError, invalid_request
from nmt_cli.serving.models import ServedModel
from nmt_cli.serving.routing import Service
from nmt_cli.serving.texts import TranslatedText
from nmt_cli.serving.workers.messages import AttentionJob, NextWordsJob, SearchJob

_NDJSON = "application/x-ndjson"


class TranslateRequest(BaseModel):
    """Texts to translate with one model; settings that are left out are the model's own."""

    model_config = ConfigDict(extra="forbid")

    text: str | list[str]
    source: Annotated[str | None, Field(description="a language's code; auto or none: detected in the first text")] = (
        None
    )
    target: Annotated[str | None, Field(description="a language's code; may be left out where there is one")] = None
    nbest: Annotated[int, Field(ge=1, description="translations of each text and sentence")] = 1
    beam: Annotated[int | None, Field(ge=1, description="width of the search; 1 is greedy")] = None
    length_penalty: Annotated[float | None, Field(ge=0, le=10, allow_inf_nan=False)] = None
    max_extra_tokens: Annotated[int | None, Field(ge=0, description="at most the model's own")] = None
    prefix: Annotated[str, Field(description="what the translation of a single sentence begins with")] = ""
    split: Annotated[
        Literal["sentences", "lines"], Field(description="lines: as nmt decode, cut only where the model needs it")
    ] = "sentences"
    alignments: Annotated[bool, Field(description="which source word each target word was made from")] = False
    stream: Annotated[bool, Field(description="a line of JSON for each text as soon as it is done")] = False


class Candidate(BaseModel):
    """A translation, its score (log-probability over length penalty), and its log-probability."""

    text: str
    score: float
    log_prob: float


class TranslatedSentenceV1(Candidate):
    """A sentence's translation; `alignment` has pairs of word positions, in the source and in the translation."""

    source: str
    alternatives: list[Candidate]
    alignment: list[list[int]] | None = None


class TranslatedTextV1(Candidate):
    """A text's translation, with the translations of its sentences."""

    alternatives: list[Candidate]
    sentences: list[TranslatedSentenceV1]


class TranslateAnswer(BaseModel):
    """The translations in order, by which model, and how the source language was found."""

    source: str
    target: str
    detection: Literal["given", "detected", "only"]
    confidence: float
    translations: list[TranslatedTextV1]


class NextWordsRequest(BaseModel):
    """A sentence, and the words before the one for which others are asked."""

    model_config = ConfigDict(extra="forbid")

    text: str
    prefix: Annotated[str, Field(description="what the translation begins with, in whole words")] = ""
    source: str | None = None
    target: str | None = None


class NextWord(BaseModel):
    """A word that may come next, and the best translation with it."""

    word: str
    text: str
    score: float
    log_prob: float


class NextWordsAnswer(BaseModel):
    """The words that may come next, that of the best translation first."""

    words: list[NextWord]


class AttentionRequest(BaseModel):
    """A sentence and its translation."""

    model_config = ConfigDict(extra="forbid")

    text: str
    translation: str
    source: str | None = None
    target: str | None = None


class AttentionAnswer(BaseModel):
    """The attention of each target word: weights by layer, head, row (target) and column (source). Rows sum to 1."""

    part: Literal["cross"]
    rows: list[str]
    columns: list[str]
    weights: list[list[list[list[float]]]]


class ErrorDetails(BaseModel):
    """Why a request was refused, and what to do."""

    code: str
    message: str
    hint: str
    where: str | None


class ErrorAnswer(BaseModel):
    """A refused request."""

    error: ErrorDetails


def error_content(problem: RequestError) -> dict[str, Any]:
    """A refusal as this API says it."""
    return {
        "error": {
            "code": problem.code,
            "message": problem.message,
            "hint": problem.hint,
            "where": problem.where,
        }
    }


API = Api("nmt", prefix="/v1", error=ErrorAnswer, error_content=error_content, missing_key_status=401)


@API.endpoint(
    "POST",
    "/translate",
    "Translate texts",
    takes=TranslateRequest,
    answer=TranslateAnswer,
    streams=_NDJSON,
    errors=TEXT_ERRORS,
)
async def translate(call: Call[TranslateRequest]) -> Response:
    """Texts in one language, translated by one model, at once or as a stream of lines."""
    asked, service = call.fields, call.service
    texts = [asked.text] if isinstance(asked.text, str) else asked.text
    service.translator.check(texts)
    call.owner.spend(max(1, len(texts)))
    route = service.models.route(asked.source, asked.target, text=texts[0] if texts else "")
    search = service.translator.search(
        route.model,
        nbest=asked.nbest,
        beam=asked.beam,
        length_penalty=asked.length_penalty,
        max_extra_tokens=asked.max_extra_tokens,
        prefix=asked.prefix,
        alignments=asked.alignments,
    )
    call.owner.characters += sum(map(len, texts))
    by_sentence = asked.split == "sentences"
    if asked.stream:
        lines = _stream_lines(service, texts, route.model, search, call.request, by_sentence=by_sentence)
        # The first line comes before the status is sent, so that a full queue is a 503.
        first = await anext(lines, b"")
        return StreamingResponse(_chain(first, lines), media_type=_NDJSON)
    async with watch_caller(call.request) as caller:
        translated = await service.translator.translate(
            texts, route.model, search, by_sentence=by_sentence, caller=caller
        )
    header = _header(route.model, route.detected)
    return json_response({**header, "translations": [_text_answer(text, search) for text in translated]})


@API.endpoint(
    "POST",
    "/words",
    "Words that may come next in a translation that has begun",
    takes=NextWordsRequest,
    answer=NextWordsAnswer,
    errors=TEXT_ERRORS,
)
async def words(call: Call[NextWordsRequest]) -> Response:
    """The next words that the model thinks likely, each with the best translation that has it."""
    asked, service = call.fields, call.service
    call.owner.spend(1)
    _check_text(asked.text)
    route = service.models.route(asked.source, asked.target, text=asked.text)
    beam = route.model.config.recipe.decoding.beam
    job = NextWordsJob(" ".join(asked.prefix.split()), service.limits.alternatives + 1, beam)
    async with watch_caller(call.request) as caller:
        return json_response(await service.translator.look(asked.text, job, route.model, caller=caller))


@API.endpoint(
    "POST",
    "/attention",
    "What the words of a translation looked at",
    takes=AttentionRequest,
    answer=AttentionAnswer,
    errors=TEXT_ERRORS,
)
async def attention(call: Call[AttentionRequest]) -> Response:
    """The weights of the cross-attention between the words of a sentence and of its translation."""
    asked, service = call.fields, call.service
    call.owner.spend(1)
    _check_text(asked.text)
    if not asked.translation.strip():
        raise invalid_request("the translation is blank", hint="give the translation of the text", where="translation")
    route = service.models.route(asked.source, asked.target, text=asked.text)
    job = AttentionJob(asked.translation.strip())
    async with watch_caller(call.request) as caller:
        found = await service.translator.look(asked.text, job, route.model, caller=caller)
    return Response(found["map"], media_type="application/json")


@API.endpoint("GET", "/models", "The models and the limits", takes=NoFields, answer=dict[str, Any], needs_key=False)
async def models(call: Call[NoFields]) -> Response:
    """The served models, and the limits of a request."""
    return json_response(_models_and_limits(call.service))


@API.endpoint(
    "POST",
    "/reload",
    "Load all models again from where they lie; asks for an operator's key",
    takes=NoFields,
    answer=dict[str, Any],
    errors=(403, 409, 429, 503),
)
async def reload(call: Call[NoFields]) -> Response:
    """The models after each was loaded again; 409 if one could not be, and the old one stays."""
    service = call.service
    if not call.owner.is_operator:
        hint = "give a key that --api-key-file marks with the word operator"
        if not service.keys.are_required:
            hint = "send the server SIGHUP, or start it with --api-key-file and a key marked with the word operator"
        raise RequestError("this takes an operator's key", hint=hint, status=403, code="no_operator")
    call.owner.spend(1)
    before = {model: model.digest for model in service.models}
    problems = await service.models.swap()
    found = [_model(model) | {"is_new": model.digest != digest} for model, digest in before.items()]
    answer = _models_and_limits(service) | {"models": found}
    for problem in problems:
        message = f"the old model stays: {problem.message}"
        where = problem.where or problem.setting
        refused = RequestError(message, hint=problem.hint, where=where, status=409, code="not_loaded")
        return json_response(answer | error_content(refused), status=refused.status)
    return json_response(answer)


def _models_and_limits(service: Service) -> dict[str, Any]:
    limits = service.limits
    names = ("characters", "texts", "sentences", "alternatives", "beam")
    return {
        "models": [_model(model) for model in service.models],
        "key_required": service.keys.are_required,
        "limits": {name: getattr(limits, name) for name in names},
    }


async def _stream_lines(
    service: Service, texts: list[str], model: ServedModel, search: SearchJob, request: Request, *, by_sentence: bool
) -> AsyncIterator[bytes]:
    """A line of JSON for each text, in order; if an error ends the stream, the last line is the error."""
    is_begun = False
    async with watch_caller(request) as caller:
        try:
            async for text in service.translator.stream(texts, model, search, by_sentence=by_sentence, caller=caller):
                yield json.dumps(_text_answer(text, search), ensure_ascii=False).encode() + b"\n"
                is_begun = True
        except ClientGone:
            return
        except RequestError as problem:
            if not is_begun:
                raise
            yield json.dumps(error_content(problem), ensure_ascii=False).encode() + b"\n"


def _header(model: ServedModel, detected: Detected | None) -> dict[str, Any]:
    detection = "given" if detected is None else "only" if detected.is_only else "detected"
    return {
        "source": model.pair[0],
        "target": model.pair[1],
        "detection": detection,
        "confidence": 1.0 if detected is None else round(detected.confidence, 4),
    }


def _text_answer(text: TranslatedText, search: SearchJob) -> dict[str, Any]:
    best, *others = [_candidate(candidate) for candidate in text.candidates]
    sentences = []
    for sentence in text.sentences:
        first, *rest = [_candidate(candidate) for candidate in sentence.candidates]
        alignment = sentence.alignment if search.alignments else None
        sentences.append({"source": sentence.source, **first, "alternatives": rest, "alignment": alignment})
    return {**best, "alternatives": others, "sentences": sentences}


def _candidate(candidate: Any) -> dict[str, Any]:
    return {"text": candidate.text, "score": round(candidate.score, 6), "log_prob": round(candidate.log_prob, 6)}


def _model(model: ServedModel) -> dict[str, Any]:
    source, target = model.pair
    return {
        "name": model.config.recipe.name,
        "source": {"code": source, "name": name_of(source)},
        "target": {"code": target, "name": name_of(target)},
        "layers": model.config.recipe.model.decoder_layers,
        "heads": model.config.recipe.model.heads,
        "updates": model.config.updates,
        "digest": model.digest,
        "is_ready": model.pool.num_ready > 0,
    }


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for line in rest:
        yield line


def _check_text(text: str) -> None:
    if not text.strip():
        raise invalid_request("the sentence is blank", hint="give the sentence that is translated", where="text")
