"""Our own API: n-best lists, scores, alignments, the search's options, and long texts as they come."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from nmt_cli.serving.documentation import body_of, errors_of
from nmt_cli.serving.jobs import Search
from nmt_cli.serving.languages import Detected, name_of
from nmt_cli.serving.models import ServedModel
from nmt_cli.serving.reading import parse, read_fields, watching
from nmt_cli.serving.refusals import Refused
from nmt_cli.serving.service import Service
from nmt_cli.serving.translation import ClientGone, TranslatedText


class TranslateRequest(BaseModel):
    """Texts to translate with one model; what is left out is the model's own setting."""

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


class CandidateAnswer(BaseModel):
    """A translation, ln P over the length penalty, and ln P."""

    text: str
    score: float
    log_prob: float


class SentenceAnswer(CandidateAnswer):
    """A sentence's translation; `alignment` has pairs of places among whitespace-separated words, source and target."""

    source: str
    alternatives: list[CandidateAnswer]
    alignment: list[list[int]] | None = None


class TextAnswer(CandidateAnswer):
    """A text's translation, and that of its sentences."""

    alternatives: list[CandidateAnswer]
    sentences: list[SentenceAnswer]


class TranslateAnswer(BaseModel):
    """The translations in order, by which model, and how the source language was found."""

    source: str
    target: str
    detection: Literal["given", "detected", "only"]
    confidence: float
    translations: list[TextAnswer]


class Problem(BaseModel):
    """Why a request was refused, and what to do."""

    code: str
    message: str
    hint: str
    where: str | None


class ErrorAnswer(BaseModel):
    """A refused request."""

    error: Problem


_LINES = "application/x-ndjson"
# What every path of this API that takes text may refuse with.
ERRORS = errors_of(ErrorAnswer, 400, 401, 403, 408, 413, 429, 503, missing_key=401)


def routes(service: Service) -> APIRouter:
    """The paths of our own."""
    router = APIRouter(prefix="/v1", tags=["nmt"])
    _add_translate(router, service)

    @router.get("/models", summary="The models and the limits")
    async def models() -> JSONResponse:
        return JSONResponse(_about(service))

    @router.post(
        "/reload",
        responses=errors_of(ErrorAnswer, 401, 403, 409, 429, 503, missing_key=401),
        summary="Load all models again from where they lie; asks for an operator's key",
    )
    async def reload(request: Request) -> JSONResponse:
        client = service.client(request, None, missing_status=401)
        if not client.is_operator:
            hint = "give a key that --api-key-file marks with the word operator"
            if not service.keys.are_required:
                hint = "send the server SIGHUP, or start it with --api-key-file and a key marked with the word operator"
            raise Refused("this takes an operator's key", hint=hint, status=403, code="no_operator")
        client.spend(1)
        before = {model: model.digest for model in service.models}
        problems = await service.models.swap()
        models = [_model(model) | {"is_new": model.digest != digest} for model, digest in before.items()]
        answer = _about(service) | {"models": models}
        for problem in problems:
            message = f"the old model stays: {problem.message}"
            refused = Refused(message, hint=problem.hint, where=problem.where, status=409, code="not_loaded")
            return JSONResponse(answer | error_form(refused), status_code=refused.status)
        return JSONResponse(answer)

    return router


def _add_translate(router: APIRouter, service: Service) -> None:
    @router.post(
        "/translate",
        responses={200: {"model": TranslateAnswer, "content": {_LINES: {}}}, **ERRORS},
        openapi_extra=body_of(TranslateRequest, forms=False),
        summary="Translate texts",
    )
    async def translate(request: Request) -> Response:
        fields = await read_fields(request, service.limits, kind=TranslateRequest)
        client = service.client(request, None, missing_status=401)
        asked = parse(TranslateRequest, fields)
        texts = [asked.text] if isinstance(asked.text, str) else asked.text
        service.translation.check(texts)
        client.spend(max(1, len(texts)))
        route = service.models.route(asked.source, asked.target, text=texts[0] if texts else "")
        search = service.translation.search(
            route.model,
            nbest=asked.nbest,
            beam=asked.beam,
            length_penalty=asked.length_penalty,
            max_extra_tokens=asked.max_extra_tokens,
            prefix=asked.prefix,
            alignments=asked.alignments,
        )
        client.characters += sum(map(len, texts))
        by_sentence = asked.split == "sentences"
        if asked.stream:
            lines = _lines(service, texts, route.model, search, request, by_sentence=by_sentence)
            # The first line comes before the status is sent, so that a full queue is a 503.
            first = await anext(lines, b"")
            return StreamingResponse(_chain(first, lines), media_type=_LINES)
        async with watching(request) as asker:
            translated = await service.translation.translate(
                texts, route.model, search, by_sentence=by_sentence, asker=asker
            )
        header = _header(route.model, route.detected)
        return JSONResponse({**header, "translations": [_text_answer(text, search) for text in translated]})


def _about(service: Service) -> dict[str, Any]:
    limits = service.limits
    names = ("characters", "texts", "sentences", "alternatives", "beam")
    return {
        "models": [_model(model) for model in service.models],
        "key_required": service.keys.are_required,
        "limits": {name: getattr(limits, name) for name in names},
    }


async def _lines(
    service: Service, texts: list[str], model: ServedModel, search: Search, request: Request, *, by_sentence: bool
) -> AsyncIterator[bytes]:
    """A line of JSON for each text, in order; where it breaks off, the last one says why."""
    is_begun = False
    async with watching(request) as asker:
        try:
            async for text in service.translation.stream(texts, model, search, by_sentence=by_sentence, asker=asker):
                yield json.dumps(_text_answer(text, search), ensure_ascii=False).encode() + b"\n"
                is_begun = True
        except ClientGone:
            return
        except Refused as problem:
            if not is_begun:
                raise
            yield json.dumps(error_form(problem), ensure_ascii=False).encode() + b"\n"


def error_form(problem: Refused) -> dict[str, Any]:
    """A refusal as this API says it."""
    return {
        "error": {
            "code": problem.code,
            "message": problem.message,
            "hint": problem.hint,
            "where": problem.where,
        }
    }


def _header(model: ServedModel, detected: Detected | None) -> dict[str, Any]:
    detection = "given" if detected is None else "only" if detected.is_only else "detected"
    return {
        "source": model.pair[0],
        "target": model.pair[1],
        "detection": detection,
        "confidence": 1.0 if detected is None else round(detected.confidence, 4),
    }


def _text_answer(text: TranslatedText, search: Search) -> dict[str, Any]:
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
        "is_ready": model.crew.num_ready > 0,
    }


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for line in rest:
        yield line
