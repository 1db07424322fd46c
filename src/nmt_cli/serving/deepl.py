"""DeepL's API, version 2: texts, languages and usage, as its official clients ask for them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, field_validator

from nmt_cli.serving.documentation import body_of, errors_of, query_of
from nmt_cli.serving.languages import name_of
from nmt_cli.serving.reading import parse, read_fields, watching
from nmt_cli.serving.refusals import invalid
from nmt_cli.serving.service import Service, refuse_markup

# There is no quota, but the clients want a number.
_NO_LIMIT = 1_000_000_000_000
# What demands another translation than the model's own.
_UNSUPPORTED = ("glossary_id", "glossary_ids", "style_id", "translation_memory_id", "custom_instructions")
_Unsupported = Annotated[Any, Field(description="refused: there is no such thing here")]


class TranslateRequest(BaseModel):
    """Texts to translate.

    DeepL's other settings are taken and have no effect: those that are wishes, such as context and model_type, and
    those about what is not done here, such as preserve_formatting and all that belongs to tag_handling.
    """

    text: Annotated[list[str], Field(min_length=1)]
    target_lang: Annotated[str, Field(description="EN, or EN-US for what is nearest to it")]
    source_lang: Annotated[str | None, Field(description="detected where it is missing")] = None
    split_sentences: Annotated[
        Literal["0", "1", "nonewlines"] | None,
        Field(description="0 leaves each line whole; nonewlines takes no line breaks"),
    ] = None
    formality: Annotated[
        Literal["default", "prefer_more", "prefer_less", "more", "less"] | None,
        Field(description="more and less are refused; prefer_more and prefer_less have no effect"),
    ] = None
    tag_handling: Annotated[str | None, Field(description="refused: text is plain")] = None
    glossary_id: _Unsupported = None
    glossary_ids: _Unsupported = None
    style_id: _Unsupported = None
    translation_memory_id: _Unsupported = None
    custom_instructions: _Unsupported = None

    @field_validator("text", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("split_sentences", mode="before")
    @classmethod
    def _a_number_is_its_digits(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class LanguagesRequest(BaseModel):
    """Which side's languages are asked for."""

    type: Literal["source", "target"] = "source"


class TranslatedAnswer(BaseModel):
    """A translation."""

    detected_source_language: str
    text: str
    billed_characters: int


class TranslateAnswer(BaseModel):
    """The translations, in order."""

    translations: list[TranslatedAnswer]


class Language(BaseModel):
    """A language."""

    language: str
    name: str
    supports_formality: bool


class Usage(BaseModel):
    """Characters translated since the server started."""

    character_count: int
    character_limit: int


class ErrorAnswer(BaseModel):
    """Why a request was refused."""

    message: str


def routes(service: Service) -> APIRouter:
    """The paths of DeepL."""
    router = APIRouter(prefix="/v2", tags=["DeepL"])
    errors = errors_of(ErrorAnswer, 400, 403, 408, 413, 429, 503, missing_key=403)

    @router.post(
        "/translate",
        responses={200: {"model": TranslateAnswer}, **errors},
        openapi_extra=body_of(TranslateRequest, forms=True),
        summary="Translate texts",
    )
    async def translate(request: Request) -> JSONResponse:
        fields = await read_fields(request, service.limits, kind=TranslateRequest)
        client = service.client(request, None, missing_status=403)
        asked = parse(TranslateRequest, fields)
        refuse_what_is_not_done(asked)
        async with watching(request) as asker:
            answered = await service.translate(
                asked.text,
                source=asked.source_lang,
                target=asked.target_lang,
                nbest=1,
                by_sentence=asked.split_sentences != "0",
                client=client,
                asker=asker,
            )
        translations = [
            {
                "detected_source_language": one.model.pair[0].upper(),
                "text": one.text.text,
                "billed_characters": len(text),
            }
            for text, one in zip(asked.text, answered, strict=True)
        ]
        return JSONResponse({"translations": translations})

    @router.get(
        "/languages",
        responses={200: {"model": list[Language]}, **errors},
        openapi_extra=query_of(LanguagesRequest),
        summary="The languages of the models",
    )
    async def languages(request: Request) -> JSONResponse:
        fields = await read_fields(request, service.limits, kind=LanguagesRequest)
        service.client(request, None, missing_status=403)
        is_target = parse(LanguagesRequest, fields).type == "target"
        codes = service.models.targets if is_target else service.models.sources
        more = {"supports_formality": False}
        return JSONResponse([{"language": code.upper(), "name": name_of(code), **more} for code in codes])

    @router.get("/usage", responses={200: {"model": Usage}, **errors}, summary="Characters translated with this key")
    async def usage(request: Request) -> JSONResponse:
        client = service.client(request, None, missing_status=403)
        return JSONResponse({"character_count": client.characters, "character_limit": _NO_LIMIT})

    return router


def refuse_what_is_not_done(asked: TranslateRequest) -> None:
    """Raise Refused where a setting asks for a translation that the model does not make."""
    refuse_markup(asked.tag_handling or None)
    for name in _UNSUPPORTED:
        if getattr(asked, name):
            raise invalid(f"{name} is not supported", hint=f"leave {name} out", where=name)
    if asked.formality in ("more", "less"):
        hint = f"take prefer_{asked.formality}, or leave formality out"
        raise invalid("'formality' is not supported for given 'target_lang'", hint=hint, where="formality")
    if asked.split_sentences == "nonewlines" and any(_num_lines(text) > 1 for text in asked.text):
        hint = "put each sentence on one line, or leave split_sentences out"
        raise invalid("a line break ends a sentence: nonewlines is not supported", hint=hint, where="split_sentences")


def _num_lines(text: str) -> int:
    """Lines of a text that are not blank."""
    return sum(bool(line.strip()) for line in text.splitlines())
