"""What our API tells of single words of a translation: which others may stand there, and what they looked at."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from nmt_cli.serving.documentation import body_of
from nmt_cli.serving.jobs import Attend, Vary
from nmt_cli.serving.own import ERRORS
from nmt_cli.serving.reading import parse, read_fields, watching
from nmt_cli.serving.refusals import invalid
from nmt_cli.serving.service import Service


class WordsRequest(BaseModel):
    """A sentence, and the words before the one for which others are asked."""

    model_config = ConfigDict(extra="forbid")

    text: str
    prefix: Annotated[str, Field(description="what the translation begins with, in whole words")] = ""
    source: str | None = None
    target: str | None = None


class Word(BaseModel):
    """A word that may come next, and the best translation with it."""

    word: str
    text: str
    score: float
    log_prob: float


class WordsAnswer(BaseModel):
    """The words that may come next, that of the best translation first."""

    words: list[Word]


class AttentionRequest(BaseModel):
    """A sentence and its translation."""

    model_config = ConfigDict(extra="forbid")

    text: str
    translation: str
    source: str | None = None
    target: str | None = None


class AttentionAnswer(BaseModel):
    """What each target word looked at: weights by layer, head, row (target) and column (source); rows sum to 1."""

    part: Literal["cross"]
    rows: list[str]
    columns: list[str]
    weights: list[list[list[list[float]]]]


def routes(service: Service) -> APIRouter:
    """The paths about words."""
    router = APIRouter(prefix="/v1", tags=["nmt"])

    @router.post(
        "/words",
        responses={200: {"model": WordsAnswer}, **ERRORS},
        openapi_extra=body_of(WordsRequest, forms=False),
        summary="Words that may come next in a translation that has begun",
    )
    async def words(request: Request) -> JSONResponse:
        fields = await read_fields(request, service.limits, kind=WordsRequest)
        client = service.client(request, None, missing_status=401)
        asked = parse(WordsRequest, fields)
        client.spend(1)
        _check_text(asked.text)
        route = service.models.route(asked.source, asked.target, text=asked.text)
        beam = route.model.config.recipe.decoding.beam
        job = Vary(" ".join(asked.prefix.split()), service.limits.alternatives + 1, beam)
        async with watching(request) as asker:
            return JSONResponse(await service.translation.look(asked.text, job, route.model, asker=asker))

    @router.post(
        "/attention",
        responses={200: {"model": AttentionAnswer}, **ERRORS},
        openapi_extra=body_of(AttentionRequest, forms=False),
        summary="What the words of a translation looked at",
    )
    async def attention(request: Request) -> Response:
        fields = await read_fields(request, service.limits, kind=AttentionRequest)
        client = service.client(request, None, missing_status=401)
        asked = parse(AttentionRequest, fields)
        client.spend(1)
        _check_text(asked.text)
        if not asked.translation.strip():
            raise invalid("the translation is blank", hint="give the translation of the text", where="translation")
        route = service.models.route(asked.source, asked.target, text=asked.text)
        job = Attend(asked.translation.strip())
        async with watching(request) as asker:
            found = await service.translation.look(asked.text, job, route.model, asker=asker)
            return Response(found["map"], media_type="application/json")

    return router


def _check_text(text: str) -> None:
    if not text.strip():
        raise invalid("the sentence is blank", hint="give the sentence that is translated", where="text")
