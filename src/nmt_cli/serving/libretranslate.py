"""The API of LibreTranslate: its paths, fields and codes, so that its clients work here.

https://github.com/LibreTranslate/LibreTranslate, the protocol only.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from nmt_cli.serving.documentation import body_of, errors_of
from nmt_cli.serving.languages import Detected, name_of
from nmt_cli.serving.reading import parse, read_fields, watching
from nmt_cli.serving.refusals import invalid
from nmt_cli.serving.service import Answered, Service, refuse_markup


class TranslateRequest(BaseModel):
    """Text to translate; a list of texts in JSON only."""

    q: str | list[str]
    source: Annotated[str, Field(description="a language's code, or auto")]
    target: Annotated[str, Field(description="a language's code")]
    format: Annotated[Literal["text", "html"], Field(description="text; html is refused")] = "text"
    alternatives: Annotated[int, Field(ge=0, description="further translations of each text")] = 0
    api_key: str | None = None


class DetectRequest(BaseModel):
    """Text whose language is asked for."""

    q: str
    api_key: str | None = None


class DetectedLanguage(BaseModel):
    """A language, and how sure it is, in per cent."""

    confidence: float
    language: str


class TranslateAnswer(BaseModel):
    """The translation, or a list of them for a list of texts; so with what else there is."""

    translatedText: str | list[str]
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None
    alternatives: list[str] | list[list[str]] | None = None


class Language(BaseModel):
    """A language and those that it is translated into."""

    code: str
    name: str
    targets: list[str]


class ErrorAnswer(BaseModel):
    """Why a request was refused."""

    error: str


_ERRORS = errors_of(ErrorAnswer, 400, 403, 408, 413, 429, 503, missing_key=400)


def routes(service: Service) -> APIRouter:
    """The paths of LibreTranslate."""
    router = APIRouter(tags=["LibreTranslate"])
    _add_translate(router, service)
    _add_detect(router, service)

    @router.get("/languages", responses={200: {"model": list[Language]}}, summary="The languages of the models")
    async def languages() -> JSONResponse:
        codes = dict.fromkeys([*service.models.sources, *service.models.targets])
        return JSONResponse(
            [{"code": code, "name": name_of(code), "targets": service.models.targets_of(code)} for code in codes]
        )

    @router.get("/frontend/settings", summary="What a page needs to know")
    async def settings() -> JSONResponse:
        return JSONResponse(_settings(service))

    return router


def _add_translate(router: APIRouter, service: Service) -> None:
    @router.post(
        "/translate",
        responses={200: {"model": TranslateAnswer}, **_ERRORS},
        openapi_extra=body_of(TranslateRequest, forms=True),
        summary="Translate text",
    )
    async def translate(request: Request) -> JSONResponse:
        fields = await read_fields(request, service.limits, kind=TranslateRequest)
        client = service.client(request, _text(fields.get("api_key")), missing_status=400)
        asked = parse(TranslateRequest, fields)
        refuse_markup(asked.format)
        if asked.q == []:
            raise invalid("Invalid request: missing q parameter", hint="q is the text to translate", where="q")
        if asked.alternatives > service.limits.alternatives:
            hint = f"ask for at most {service.limits.alternatives}"
            raise invalid(f"{asked.alternatives} alternatives are too many", hint=hint, where="alternatives")
        is_form = not request.headers.get("content-type", "").startswith("application/json")
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        if is_form:
            texts = ["\n".join(text.splitlines()) if "\r" in text else text for text in texts]
        async with watching(request) as asker:
            answered = await service.translate(
                texts,
                source=asked.source,
                target=asked.target,
                nbest=1 + asked.alternatives,
                by_sentence=True,
                client=client,
                asker=asker,
            )
        return JSONResponse(_answer(answered, is_list=isinstance(asked.q, list), alternatives=asked.alternatives))


def _add_detect(router: APIRouter, service: Service) -> None:
    @router.post(
        "/detect",
        responses={200: {"model": list[DetectedLanguage]}, **_ERRORS},
        openapi_extra=body_of(DetectRequest, forms=True),
        summary="Detect the language of a text, among those of the models",
    )
    async def detect(request: Request) -> JSONResponse:
        fields = await read_fields(request, service.limits, kind=DetectRequest)
        client = service.client(request, _text(fields.get("api_key")), missing_status=400)
        asked = parse(DetectRequest, fields)
        if not asked.q:
            raise invalid("Invalid request: missing q parameter", hint="q is the text", where="q")
        service.translation.check([asked.q])
        client.spend(1)
        return JSONResponse([_detected(service.models.detect(asked.q))])


def _settings(service: Service) -> dict[str, Any]:
    source = service.models.sources[0]
    target = service.models.targets_of(source)[0]
    return {
        "apiKeys": service.keys.are_required,
        "keyRequired": service.keys.are_required,
        "charLimit": service.limits.characters,
        "frontendTimeout": 500,
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "language": {
            "source": {"code": source, "name": name_of(source)},
            "target": {"code": target, "name": name_of(target)},
        },
    }


def _answer(answered: list[Answered], *, is_list: bool, alternatives: int) -> dict[str, Any]:
    fields: dict[str, list[Any]] = {"translatedText": [one.text.text for one in answered]}
    if any(one.detected for one in answered):
        fields["detectedLanguage"] = [_detected(one.detected) for one in answered if one.detected]
    if alternatives:
        fields["alternatives"] = [[other.text for other in one.text.candidates[1:]] for one in answered]
    return fields if is_list else {name: values[0] for name, values in fields.items()}


def _detected(detected: Detected) -> dict[str, Any]:
    return {"confidence": round(100 * detected.confidence, 1), "language": detected.code}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
