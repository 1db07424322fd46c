"""DeepL's API: texts, languages and usage, as its official clients ask for them; rules and memories are empty lists."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator
from pydantic.json_schema import SkipJsonSchema

from nmt_cli.decoding.terms import TermList
from nmt_cli.documents.markup_tokens import MARKUP, MarkupRules
from nmt_cli.languages import language_name
from nmt_cli.serving.api.endpoints import Call, FormRoute, json_response, keyed_call
from nmt_cli.serving.api.requests import watch_caller
from nmt_cli.serving.request_errors import BUSY, REFUSED, RequestError, invalid_request_error
from nmt_cli.serving.request_limits import SearchOptions

# There is no quota, but the clients want a number.
_NO_LIMIT = 1_000_000_000_000
# Settings that the model cannot follow. A request with one of them is refused.
_UNSUPPORTED = ("style_id", "translation_memory_id", "custom_instructions")
# The only service of the server. It can detect each language that it translates from.
_TEXTS, _DETECTION = "translate_text", "auto_detection"
_RESOURCE = f"{_TEXTS}; other services have no languages here"


def _read_names(value: Any) -> Any:
    """A list of names; in a form, they stand in a text with commas."""
    texts = [value] if isinstance(value, str) else value
    if not (isinstance(texts, list) and all(isinstance(text, str) for text in texts)):
        return value
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def _read_flag(value: Any) -> Any:
    """A flag, which a form sends as a number."""
    return {"0": False, "1": True, "false": False, "true": True}.get(value, value) if isinstance(value, str) else value


_NAMES = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}
# No enum: clients send "" for plain text, and generators of clients would make a name of it.
_TAG_HANDLING = {
    "pattern": "^(html|xml)?$",
    "type": "string",
    "description": "html, xml: tags stay on their words; else plain text",
}
_Names = Annotated[list[str], BeforeValidator(_read_names), WithJsonSchema(_NAMES)]


class DeepLOptions(BaseModel):
    """The languages and options of a translation.

    DeepL's other settings are accepted and have no effect, for example context and preserve_formatting.
    """

    model_config = ConfigDict(extra="allow")

    target_lang: Annotated[str, Field(description="EN, or EN-US for what is nearest to it")]
    source_lang: Annotated[str | None, Field(description="detected if it is missing; a glossary needs it")] = None
    formality: Annotated[
        Literal["default", "prefer_more", "prefer_less"] | SkipJsonSchema[Literal["more", "less"]] | None,
        Field(description="more and less are refused, and the others have no effect"),
    ] = None
    glossary_id: str | None = None
    glossary_ids: Annotated[_Names, Field(description="of two translations of a term, the first counts")] = []


class DeepLTranslateRequest(DeepLOptions):
    """Texts to translate."""

    text: Annotated[list[str], Field(min_length=1)]
    split_sentences: Annotated[
        Literal["0", "1", "nonewlines"] | None,
        Field(description="0 leaves each line whole; nonewlines is for plain text of one line"),
    ] = None
    model_type: Annotated[str | None, Field(description="has no effect, since there is one model")] = None
    tag_handling: Annotated[Literal["html", "xml", ""] | None, WithJsonSchema(_TAG_HANDLING)] = None
    ignore_tags: Annotated[_Names, Field(description="elements whose text stays as it is")] = []
    splitting_tags: Annotated[_Names, Field(description="elements that are texts of their own")] = []
    non_splitting_tags: Annotated[_Names, Field(description="elements that stand inside of a sentence")] = []
    outline_detection: Annotated[
        bool,
        Field(strict=True, description="false: only splitting_tags divide a text in xml, not its structure"),
        BeforeValidator(_read_flag),
    ] = True

    @property
    def markup_rules(self) -> MarkupRules | None:
        """How the tags of the texts are read; None for plain text."""
        rules = MARKUP.get(self.tag_handling or "")
        if rules is None:
            return None
        if self.tag_handling == "xml" and not self.outline_detection:
            rules = replace(rules, blocks=frozenset(), splitting=frozenset())
        ignored, splitting, inline = (
            frozenset(map(str.lower, tags) if self.tag_handling == "html" else tags)
            for tags in (self.ignore_tags, self.splitting_tags, self.non_splitting_tags)
        )
        return replace(rules, kept=rules.kept | ignored, splitting=rules.splitting | splitting, inline=inline)

    @field_validator("text", mode="before")
    @classmethod
    def _wrap_single_text(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("split_sentences", mode="before")
    @classmethod
    def _number_to_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class DeepLSide(BaseModel):
    """The side whose languages are asked for."""

    side: Annotated[Literal["source", "target"], Field(alias="type")] = "source"


class DeepLResource(BaseModel):
    """The service whose languages are asked for."""

    resource: Annotated[str, Field(description=_RESOURCE)]


class DeepLTranslation(BaseModel):
    """A translation."""

    detected_source_language: str
    text: str
    billed_characters: int
    model_type_used: Annotated[str | None, Field(description="if the request has a model_type")] = None


class DeepLTranslateAnswer(BaseModel):
    """The translations, in order."""

    translations: list[DeepLTranslation]


class DeepLLanguage(BaseModel):
    """A language."""

    language: str
    name: str
    supports_formality: bool


class DeepLLanguageV3(BaseModel):
    """A language, and on which side it can stand."""

    lang: str
    name: str
    usable_as_source: bool
    usable_as_target: bool
    features: dict[str, dict[str, str]]


class DeepLUsage(BaseModel):
    """Characters translated since the server started."""

    character_count: int
    character_limit: int


class DeepLError(BaseModel):
    """Why a request was refused."""

    message: str


def deepl_router() -> APIRouter:
    """A router of DeepL's paths."""
    refusal, busy = {"model": DeepLError, "description": REFUSED}, {"model": DeepLError, "description": BUSY}
    return APIRouter(
        route_class=FormRoute,
        tags=["DeepL"],
        generate_unique_id_function=lambda route: f"deepl_{route.name}",
        responses={"4XX": refusal, 503: busy},
    )


router = deepl_router()
KeyedDeepLCall = Annotated[Call, Depends(keyed_call(missing_status=403, key_field="auth_key"))]
"""A call of DeepL's API."""


def error_content(error: RequestError) -> dict[str, Any]:
    """A refusal as DeepL says it."""
    return {"message": error.message_with_hint}


@router.post("/v2/translate", response_model=DeepLTranslateAnswer)
async def translate(fields: DeepLTranslateRequest, call: KeyedDeepLCall) -> Response:
    """Each text translated by the model for its language.

    The fields may also be sent as a form, or in the query string.
    """
    check_supported(fields)
    rules = fields.markup_rules
    if fields.split_sentences == "nonewlines" and rules is None and any(_num_lines(text) > 1 for text in fields.text):
        message = "a line break of plain text ends a sentence: nonewlines is not supported"
        hint = "put each sentence on one line, or leave split_sentences out"
        raise invalid_request_error(message, hint=hint, where="split_sentences")
    terms = await find_terms(fields, call)
    sent_texts = await call.service.read_texts(fields.text, rules)
    with watch_caller(call.request) as caller:
        routed_translations = await call.service.translate_each(
            sent_texts,
            SearchOptions(split_sentences="never" if fields.split_sentences == "0" else "always"),
            source=fields.source_lang,
            target=fields.target_lang,
            terms=terms,
            owner=call.owner,
            caller=caller,
        )
    model_type = {}
    if fields.model_type:
        is_latency_optimized = fields.model_type == "latency_optimized"
        model_type["model_type_used"] = "latency_optimized" if is_latency_optimized else "quality_optimized"
    translations = [
        {
            "detected_source_language": route.source.upper(),
            "text": translated.text,
            "billed_characters": len(text.plain),
            **model_type,
        }
        for text, (translated, route) in zip(sent_texts, routed_translations, strict=True)
    ]
    return json_response({"translations": translations})


@router.get("/v2/languages", response_model=list[DeepLLanguage])
async def languages(fields: Annotated[DeepLSide, Query()], call: KeyedDeepLCall) -> Response:
    """The languages of one side."""
    models = call.service.models
    codes = models.targets if fields.side == "target" else models.sources
    return json_response(
        [{"language": code.upper(), "name": language_name(code), "supports_formality": False} for code in codes]
    )


@router.get("/v3/languages", response_model=list[DeepLLanguageV3])
async def languages_v3(fields: Annotated[DeepLResource, Query()], call: KeyedDeepLCall) -> Response:
    """The languages of both sides, for texts."""
    if fields.resource != _TEXTS:
        return json_response([])
    sources, targets = call.service.models.sources, call.service.models.targets
    return json_response(
        [
            {
                "lang": code,
                "name": language_name(code),
                "usable_as_source": code in sources,
                "usable_as_target": code in targets,
                "features": {_DETECTION: {"status": "stable"}} if code in sources else {},
            }
            for code in dict.fromkeys([*sources, *targets])
        ]
    )


@router.get("/v2/usage", response_model=DeepLUsage)
async def usage(call: KeyedDeepLCall) -> Response:
    """The characters, and a limit that nobody reaches."""
    return json_response({"character_count": call.owner.characters, "character_limit": _NO_LIMIT})


def check_supported(fields: DeepLOptions) -> None:
    """Raise RequestError if a setting asks for a translation that the model cannot make."""
    for name in _UNSUPPORTED:
        if (fields.model_extra or {}).get(name):
            raise invalid_request_error(f"{name} is not supported", hint=f"leave {name} out", where=name)
    if fields.formality in ("more", "less"):
        hint = f"take prefer_{fields.formality}, or leave formality out"
        raise invalid_request_error(
            "'formality' is not supported for given 'target_lang'", hint=hint, where="formality"
        )


async def find_terms(fields: DeepLOptions, call: Call) -> TermList | None:
    """The terms of the glossaries of a request for its languages; None if it has no glossary."""
    ids = fields.glossary_ids or ([fields.glossary_id] if fields.glossary_id else [])
    if not ids:
        return None
    if not fields.source_lang:
        message = "Use of a glossary requires the source_lang parameter to be specified"
        raise invalid_request_error(message, hint="give the language of the text", where="source_lang")
    pair = call.service.models.route(fields.source_lang, fields.target_lang, text="").pair
    return await asyncio.to_thread(call.service.glossaries.terms, ids, pair, call.owner)


def _num_lines(text: str) -> int:
    """Lines of a text that are not blank."""
    return sum(bool(line.strip()) for line in text.splitlines())


@router.get("/v3/style_rules", response_model=dict[str, list[str]], name="v3_style_rules")
async def style_rules(call: KeyedDeepLCall) -> Response:
    """An empty list."""
    return json_response({"style_rules": []})


@router.get("/v3/translation_memories", response_model=dict[str, list[str]], name="v3_translation_memories")
async def translation_memories(call: KeyedDeepLCall) -> Response:
    """An empty list."""
    return json_response({"translation_memories": []})
