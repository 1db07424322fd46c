"""What all APIs stand on: the models, the limits, the keys, the counters, and texts translated by language."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request

from nmt_cli.serving.keys import Client, Keys
from nmt_cli.serving.languages import Detected
from nmt_cli.serving.limits import Limits
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.models import Models, ServedModel
from nmt_cli.serving.refusals import Refused, invalid, shown
from nmt_cli.serving.translation import Asker, TranslatedText, Translation


@dataclass(frozen=True, slots=True)
class Answered:
    """A text's translation, by which model, and the language that was detected if none was given."""

    text: TranslatedText
    model: ServedModel
    detected: Detected | None


@dataclass(frozen=True, slots=True)
class Service:
    """A server's state."""

    models: Models
    limits: Limits
    keys: Keys
    metrics: Metrics
    translation: Translation

    def client(self, request: Request, key: str | None, *, missing_status: int) -> Client:
        """Who asks, by the key here or in a header; Refused where it is wrong, or missing where one is needed."""
        if not self.keys.are_required:
            return self.keys.anonymous
        key = key or _key_in_headers(request)
        if not key:
            hint = (
                "send one as Authorization: Bearer KEY, X-API-Key: KEY, Authorization: DeepL-Auth-Key KEY,"
                " or LibreTranslate's api_key"
            )
            raise Refused("this server needs an API key", hint=hint, status=missing_status, code="missing_key")
        client = self.keys.find(key)
        if client is None:
            raise Refused("Invalid API key", hint="give a key of this server", status=403, code="invalid_key")
        request.state.client = client.name
        return client

    async def translate(
        self,
        texts: Sequence[str],
        *,
        source: str | None,
        target: str | None,
        nbest: int,
        by_sentence: bool,
        client: Client,
        asker: Asker,
    ) -> list[Answered]:
        """The translation of each text, each by the model for its language."""
        self.translation.check(texts)
        client.spend(max(1, len(texts)))
        routes = [self.models.route(source, target, text=text) for text in texts]
        groups: dict[ServedModel, list[int]] = {}
        for place, route in enumerate(routes):
            groups.setdefault(route.model, []).append(place)
        found = await asyncio.gather(
            *(
                self.translation.translate(
                    [texts[place] for place in places],
                    model,
                    self.translation.search(model, nbest=nbest),
                    by_sentence=by_sentence,
                    asker=asker,
                )
                for model, places in groups.items()
            )
        )
        client.characters += sum(map(len, texts))
        translated = {
            place: text
            for places, group in zip(groups.values(), found, strict=True)
            for place, text in zip(places, group, strict=True)
        }
        return [Answered(translated[place], route.model, route.detected) for place, route in enumerate(routes)]


def refuse_markup(kind: str | None) -> None:
    """Raise Refused where the text is not plain."""
    if kind is not None and kind != "text":
        raise invalid(
            f"{shown(kind)} is not supported: tags would be translated as words",
            hint="send plain text, with the tags taken out",
            where="format",
        )


def _key_in_headers(request: Request) -> str | None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() in ("bearer", "deepl-auth-key"):
        return key.strip()
    return request.headers.get("x-api-key")
