"""The API of LibreTranslate: its paths, fields and codes, so that its clients work here.

https://github.com/LibreTranslate/LibreTranslate, the protocol only.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from starlette.responses import Response

from nmt_cli.languages import Detected, name_of
from nmt_cli.serving.api.endpoints import TEXT_ERRORS, Api, Call, NoFields, json_response
from nmt_cli.serving.api.requests import refuse_markup, watch_caller
from nmt_cli.serving.errors import RequestError, invalid_request
from nmt_cli.serving.routing import RoutedTranslation, Service


class LibreTranslateRequest(BaseModel):
    """Text to translate; a list of texts in JSON only."""

    q: str | list[str]
    source: Annotated[str, Field(description="a language's code, or auto")]
    target: Annotated[str, Field(description="a language's code")]
    format: Annotated[Literal["text", "html"], Field(description="text; html is refused")] = "text"
    alternatives: Annotated[int, Field(ge=0, description="further translations of each text")] = 0
    api_key: str | None = None


class LibreDetectRequest(BaseModel):
    """Text whose language is asked for."""

    q: str
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


class LibreLanguage(BaseModel):
    """A language, and the languages that it is translated into."""

    code: str
    name: str
    targets: list[str]


class LibreError(BaseModel):
    """Why a request was refused."""

    error: str


def error_content(problem: RequestError) -> dict[str, Any]:
    """A refusal as LibreTranslate says it."""
    return {"error": f"{problem.message} ({problem.hint})" if problem.hint else problem.message}


API = Api("LibreTranslate", prefix="", error=LibreError, error_content=error_content, missing_key_status=400)


@API.endpoint(
    "POST",
    "/translate",
    "Translate text",
    takes=LibreTranslateRequest,
    forms=True,
    answer=LibreTranslateAnswer,
    errors=TEXT_ERRORS,
)
async def translate(call: Call[LibreTranslateRequest]) -> Response:
    """A text, or each of a list of texts, translated by the model for its language."""
    asked, limits = call.fields, call.service.limits
    refuse_markup(asked.format)
    if asked.q == []:
        raise invalid_request("Invalid request: missing q parameter", hint="q is the text to translate", where="q")
    if asked.alternatives > limits.alternatives:
        hint = f"ask for at most {limits.alternatives}"
        raise invalid_request(f"{asked.alternatives} alternatives are too many", hint=hint, where="alternatives")
    is_form = not call.request.headers.get("content-type", "").startswith("application/json")
    texts = [asked.q] if isinstance(asked.q, str) else asked.q
    if is_form:
        texts = ["\n".join(text.splitlines()) if "\r" in text else text for text in texts]
    async with watch_caller(call.request) as caller:
        answered = await call.service.translate(
            texts,
            source=asked.source,
            target=asked.target,
            nbest=1 + asked.alternatives,
            by_sentence=True,
            client=call.owner,
            caller=caller,
        )
    return json_response(_answer(answered, is_list=isinstance(asked.q, list), alternatives=asked.alternatives))


@API.endpoint(
    "POST",
    "/detect",
    "Detect the language of a text, among those of the models",
    takes=LibreDetectRequest,
    forms=True,
    answer=list[LibreDetectedLanguage],
    errors=TEXT_ERRORS,
)
async def detect(call: Call[LibreDetectRequest]) -> Response:
    """The most likely language."""
    asked = call.fields
    if not asked.q:
        raise invalid_request("Invalid request: missing q parameter", hint="q is the text", where="q")
    call.service.translator.check([asked.q])
    call.owner.spend(1)
    return json_response([_detected(call.service.models.detect(asked.q))])


@API.endpoint(
    "GET", "/languages", "The languages of the models", takes=NoFields, answer=list[LibreLanguage], needs_key=False
)
async def languages(call: Call[NoFields]) -> Response:
    """Each language, and the languages that it is translated into."""
    models = call.service.models
    codes = dict.fromkeys([*models.sources, *models.targets])
    return json_response([{"code": code, "name": name_of(code), "targets": models.targets_of(code)} for code in codes])


@API.endpoint(
    "GET", "/frontend/settings", "What a page needs to know", takes=NoFields, answer=dict[str, Any], needs_key=False
)
async def settings(call: Call[NoFields]) -> Response:
    """Limits, keys, and the languages to begin with."""
    return json_response(_settings(call.service))


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


def _answer(answered: list[RoutedTranslation], *, is_list: bool, alternatives: int) -> dict[str, Any]:
    fields: dict[str, list[Any]] = {"translatedText": [one.text.text for one in answered]}
    if any(one.detected for one in answered):
        fields["detectedLanguage"] = [_detected(one.detected) for one in answered if one.detected]
    if alternatives:
        fields["alternatives"] = [[other.text for other in one.text.candidates[1:]] for one in answered]
    return fields if is_list else {name: values[0] for name, values in fields.items()}


def _detected(detected: Detected) -> dict[str, Any]:
    return {"confidence": round(100 * detected.confidence, 1), "language": detected.code}
