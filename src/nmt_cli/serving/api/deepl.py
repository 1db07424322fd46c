"""DeepL's API, version 2: texts, languages and usage, as its official clients ask for them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator
from starlette.responses import Response

from nmt_cli.languages import name_of
from nmt_cli.serving.api.endpoints import Api, Call, Endpoint, NoFields, json_response
from nmt_cli.serving.api.requests import refuse_markup, watch_caller
from nmt_cli.serving.errors import invalid_request

# There is no quota, but the clients want a number.
_NO_LIMIT = 1_000_000_000_000
# Settings that the model cannot follow. A request with one of them is refused.
_UNSUPPORTED = ("glossary_id", "glossary_ids", "style_id", "translation_memory_id", "custom_instructions")
_Unsupported = Annotated[Any, Field(description="refused: there is no such thing here")]


class DeepLTranslateRequest(BaseModel):
    """Texts to translate.

    DeepL's other settings are accepted and have no effect, for example context, model_type and preserve_formatting.
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


class DeepLLanguagesRequest(BaseModel):
    """Which side's languages are asked for."""

    type: Literal["source", "target"] = "source"


class DeepLTranslation(BaseModel):
    """A translation."""

    detected_source_language: str
    text: str
    billed_characters: int


class DeepLTranslateAnswer(BaseModel):
    """The translations, in order."""

    translations: list[DeepLTranslation]


class DeepLLanguage(BaseModel):
    """A language."""

    language: str
    name: str
    supports_formality: bool


class DeepLUsage(BaseModel):
    """Characters translated since the server started."""

    character_count: int
    character_limit: int


class DeepLError(BaseModel):
    """Why a request was refused."""

    message: str


async def translate(call: Call[DeepLTranslateRequest]) -> Response:
    """Each text translated by the model for its language."""
    asked = call.fields
    refuse_unsupported(asked)
    async with watch_caller(call.request) as caller:
        answered = await call.service.translate_each(
            asked.text,
            source=asked.source_lang,
            target=asked.target_lang,
            nbest=1,
            by_sentence=asked.split_sentences != "0",
            owner=call.owner,
            caller=caller,
        )
    translations = [
        {"detected_source_language": route.model.pair[0].upper(), "text": found.text, "billed_characters": len(text)}
        for text, (found, route) in zip(asked.text, answered, strict=True)
    ]
    return json_response({"translations": translations})


async def languages(call: Call[DeepLLanguagesRequest]) -> Response:
    """The languages of one side."""
    models = call.service.models
    codes = models.targets if call.fields.type == "target" else models.sources
    more = {"supports_formality": False}
    return json_response([{"language": code.upper(), "name": name_of(code), **more} for code in codes])


async def usage(call: Call[NoFields]) -> Response:
    """The characters, and a limit that nobody reaches."""
    return json_response({"character_count": call.owner.characters, "character_limit": _NO_LIMIT})


def refuse_unsupported(asked: DeepLTranslateRequest) -> None:
    """Raise RequestError if a setting asks for a translation that the model cannot make."""
    refuse_markup(asked.tag_handling or None)
    for name in _UNSUPPORTED:
        if getattr(asked, name):
            raise invalid_request(f"{name} is not supported", hint=f"leave {name} out", where=name)
    if asked.formality in ("more", "less"):
        hint = f"take prefer_{asked.formality}, or leave formality out"
        raise invalid_request("'formality' is not supported for given 'target_lang'", hint=hint, where="formality")
    if asked.split_sentences == "nonewlines" and any(_num_lines(text) > 1 for text in asked.text):
        message = "a line break ends a sentence: nonewlines is not supported"
        hint = "put each sentence on one line, or leave split_sentences out"
        raise invalid_request(message, hint=hint, where="split_sentences")


def _num_lines(text: str) -> int:
    """Lines of a text that are not blank."""
    return sum(bool(line.strip()) for line in text.splitlines())


API = Api(
    "DeepL",
    prefix="/v2",
    operation_prefix="deepl_",
    error=DeepLError,
    error_content=lambda problem: {"message": problem.sentence},
    missing_key_status=403,
    endpoints=[
        Endpoint(
            "POST",
            "/v2/translate",
            translate,
            DeepLTranslateRequest,
            DeepLTranslateAnswer,
            "Translate texts",
            forms=True,
        ),
        Endpoint(
            "GET", "/v2/languages", languages, DeepLLanguagesRequest, list[DeepLLanguage], "The languages of the models"
        ),
        Endpoint("GET", "/v2/usage", usage, NoFields, DeepLUsage, "Characters translated with this key"),
    ],
)
