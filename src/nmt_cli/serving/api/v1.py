"""Our own API: n-best lists, scores, alignments, search options, streamed texts, single words."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from nmt_cli.languages import DetectedLanguage, language_name
from nmt_cli.recipe.schema import SplitSentences
from nmt_cli.serving.api.endpoints import NUMBER, Call, JsonRoute, KeyedCall, NotBlank, json_response, open_call
from nmt_cli.serving.api.requests import watch_caller
from nmt_cli.serving.errors import BUSY, REFUSED, ClientGone, RequestError, invalid_request_error
from nmt_cli.serving.models import ModelRoute, ServedModel
from nmt_cli.serving.service import Service, off_the_loop
from nmt_cli.serving.texts import TextCandidate, TranslatedText
from nmt_cli.serving.worker_model import AttentionTask, NextWordsTask, SearchTask

_NDJSON = "application/x-ndjson"


class TranslateRequest(BaseModel):
    """Texts to translate with one model; settings that are left out are the model's own."""

    model_config = ConfigDict(extra="forbid")

    text: str | list[str]
    source: Annotated[str | None, Field(description="a language's code; auto or none: detected in the texts")] = None
    target: Annotated[str | None, Field(description="a language's code; may be left out if there is only one")] = None
    nbest: Annotated[int, Field(ge=1, description="translations of each text and sentence; else 1"), NUMBER] = 1
    beam: Annotated[int | None, Field(ge=1, description="width of the search; 1 is greedy"), NUMBER] = None
    length_penalty: Annotated[float | None, Field(ge=0, le=10, allow_inf_nan=False), NUMBER] = None
    max_extra_tokens: Annotated[int | None, Field(ge=0, description="at most the model's own"), NUMBER] = None
    prefix: Annotated[str, Field(description="what the translation of a single sentence begins with")] = ""
    split_sentences: Annotated[
        SplitSentences, Field(description="auto: as in nmt decode; never: a line is cut only if the model needs it")
    ] = "always"
    alignments: Annotated[bool, Field(strict=True, description="which source word each target word was made from")] = (
        False
    )
    stream: Annotated[bool, Field(strict=True, description="a line of JSON for each text as soon as it is done")] = (
        False
    )


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
    """The translations in order, the languages of the model, and how the source language was found."""

    source: str
    target: str
    detection: Literal["given", "detected", "undecided"]
    confidence: float
    translations: list[TranslatedTextV1]


class NextWordsRequest(BaseModel):
    """A sentence, and the beginning of its translation, for which the next words are asked."""

    model_config = ConfigDict(extra="forbid")

    text: NotBlank
    prefix: Annotated[str, Field(description="what the translation begins with, in whole words")] = ""
    source: str | None = None
    target: str | None = None


class NextWord(Candidate):
    """A word that may come next, and the best translation with it."""

    word: str


class NextWordsAnswer(BaseModel):
    """The words that may come next; the word of the best translation is first."""

    words: list[NextWord]


class AttentionRequest(BaseModel):
    """A sentence and its translation."""

    model_config = ConfigDict(extra="forbid")

    text: NotBlank
    translation: NotBlank
    source: str | None = None
    target: str | None = None


class AttentionAnswer(BaseModel):
    """The attention of each target word: weights by layer, head, row (target) and column (source). Rows sum to 1."""

    part: Literal["cross"]
    rows: list[str]
    columns: list[str]
    weights: list[list[list[list[float]]]]


class ServedLanguage(BaseModel):
    """A language by its code and its English name."""

    code: str
    name: str


class ServedModelAnswer(BaseModel):
    """A model: what it translates, what it was made of, and whether it has a worker."""

    name: str
    source: ServedLanguage
    target: ServedLanguage
    layers: Annotated[int, Field(description="of the decoder")]
    heads: int
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
_Keyed = Annotated[Call, Depends(KeyedCall(missing_status=401))]


@router.post("/v1/translate", response_model=TranslateAnswer, responses={200: {"content": {_NDJSON: {}}}})
async def translate(fields: TranslateRequest, call: _Keyed) -> Response:
    """Texts in one language, translated by one model, at once or as a stream of lines."""
    texts = [fields.text] if isinstance(fields.text, str) else fields.text
    call.service.check_texts(texts)
    call.service.check_texts([fields.prefix])
    with call.owner.charged(requests=max(1, len(texts)), characters=sum(map(len, texts))):
        return await _translate(fields, call, texts)


async def _translate(fields: TranslateRequest, call: Call, texts: list[str]) -> Response:
    service = call.service
    route = await off_the_loop(
        texts, partial(service.models.route, fields.source, fields.target, text="\n".join(texts))
    )
    search = partial(
        service.search_task,
        nbest=fields.nbest,
        beam=fields.beam,
        length_penalty=fields.length_penalty,
        max_extra_tokens=fields.max_extra_tokens,
        prefix=fields.prefix,
        alignments=fields.alignments,
    )
    routes = [route] * len(texts)
    if fields.stream:
        lines = _stream_lines(fields, call, texts, routes, search)
        # Awaited before the status is sent, so that a full queue is a 503.
        first_line = await anext(lines, b"")
        return StreamingResponse(_prepend(first_line, lines), media_type=_NDJSON)
    with watch_caller(call.request) as caller:
        translated = await service.translate(
            texts, routes, search, split_sentences=fields.split_sentences, caller=caller
        )
    answer = {
        "source": route.source,
        "target": route.model.pair[1],
        "detection": _detection_kind(route.detected),
        "confidence": 1.0 if route.detected is None else round(route.detected.confidence, 4),
        "translations": [_text_answer(text, fields) for text in translated],
    }
    return json_response(answer)


@router.post("/v1/words", response_model=NextWordsAnswer)
async def next_words(fields: NextWordsRequest, call: _Keyed) -> Response:
    """The next words that the model thinks likely, each with the best translation that has it."""
    call.service.check_texts([fields.text, fields.prefix])
    with call.owner.charged(requests=1, characters=0):
        model = await _model_for_sentence(fields, call.service)
        num_words, beam = call.service.limits.alternatives + 1, model.config.recipe.decoding.beam
        task = NextWordsTask(" ".join(fields.prefix.split()), num_words, beam)
        with watch_caller(call.request) as caller:
            return json_response(await call.service.ask_about_words(fields.text, task, model, caller=caller))


@router.post("/v1/attention", response_model=AttentionAnswer)
async def attention(fields: AttentionRequest, call: _Keyed) -> Response:
    """The weights of the cross-attention between the words of a sentence and of its translation."""
    task = AttentionTask(fields.translation.strip())
    call.service.check_texts([fields.text, fields.translation])
    with call.owner.charged(requests=1, characters=0):
        model = await _model_for_sentence(fields, call.service)
        if not task.target:
            hint = "give the translation of the text"
            raise invalid_request_error("the translation is blank", hint=hint, where="translation")
        with watch_caller(call.request) as caller:
            answer = await call.service.ask_about_words(fields.text, task, model, caller=caller)
    return Response(answer["map"], media_type="application/json")


@router.get("/v1/models", response_model=ModelsAnswer)
async def models(call: Annotated[Call, Depends(open_call)]) -> Response:
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
    source, target = model.pair
    return {
        "name": model.config.recipe.name,
        "source": {"code": source, "name": language_name(source)},
        "target": {"code": target, "name": language_name(target)},
        "layers": model.config.recipe.model.decoder_layers,
        "heads": model.config.recipe.model.heads,
        "updates": model.config.updates,
        "digest": model.digest,
        "is_ready": model.pool.num_ready > 0,
    }


async def _model_for_sentence(fields: NextWordsRequest | AttentionRequest, service: Service) -> ServedModel:
    """The model for the sentence of a request; RequestError if the sentence is blank."""
    if not fields.text.strip():
        raise invalid_request_error("the sentence is blank", hint="give the sentence that is translated", where="text")
    find_route = partial(service.models.route, fields.source, fields.target, text=fields.text)
    return (await off_the_loop([fields.text], find_route)).model


async def _stream_lines(
    fields: TranslateRequest,
    call: Call,
    texts: list[str],
    routes: list[ModelRoute],
    search: Callable[[ServedModel], SearchTask],
) -> AsyncIterator[bytes]:
    """A line of JSON for each text, in order; if an error ends the stream, the last line is the error."""
    is_begun = False
    with watch_caller(call.request) as caller:
        try:
            stream = call.service.stream(texts, routes, search, split_sentences=fields.split_sentences, caller=caller)
            async for text in stream:
                yield json.dumps(_text_answer(text, fields), ensure_ascii=False).encode() + b"\n"
                is_begun = True
        except ClientGone:
            return
        except RequestError as error:
            if not is_begun:
                raise
            yield json.dumps(error_content(error), ensure_ascii=False).encode() + b"\n"


async def _prepend(first_line: bytes, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first_line
    async for line in lines:
        yield line


def _text_answer(text: TranslatedText, fields: TranslateRequest) -> dict[str, Any]:
    sentences = [
        {
            "source": sentence.source,
            **_best_and_alternatives(sentence.candidates),
            "alignment": sentence.alignment if fields.alignments else None,
        }
        for sentence in text.sentences
    ]
    return {**_best_and_alternatives(text.candidates), "sentences": sentences}


def _best_and_alternatives(candidates: Sequence[TextCandidate]) -> dict[str, Any]:
    best, *alternatives = [
        {"text": candidate.text, "score": round(candidate.score, 6), "log_prob": round(candidate.log_prob, 6)}
        for candidate in candidates
    ]
    return {**best, "alternatives": alternatives}
