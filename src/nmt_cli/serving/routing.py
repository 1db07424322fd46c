"""The model for each text, by its languages; the language is detected if the client does not give it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nmt_cli.errors import NmtError, UsageError
from nmt_cli.languages import Detected, Detector, match_code
from nmt_cli.serving.errors import RequestError, invalid_request, shortened
from nmt_cli.serving.keys import ApiKeys, KeyOwner
from nmt_cli.serving.metrics import ServerMetrics
from nmt_cli.serving.models import ServedModel
from nmt_cli.serving.settings import RequestLimits
from nmt_cli.serving.texts import Caller, TextTranslator, TranslatedText

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Route:
    """The model for a request, and the language that was detected if none was given."""

    model: ServedModel
    detected: Detected | None


@dataclass(frozen=True, slots=True)
class RoutedTranslation:
    """A text's translation, by which model, and the language that was detected if none was given."""

    text: TranslatedText
    model: ServedModel
    detected: Detected | None


@dataclass(frozen=True, slots=True)
class Service:
    """The state of a server, which all APIs share."""

    models: ModelRouter
    limits: RequestLimits
    keys: ApiKeys
    metrics: ServerMetrics
    translator: TextTranslator

    async def translate(
        self,
        texts: Sequence[str],
        *,
        source: str | None,
        target: str | None,
        nbest: int,
        by_sentence: bool,
        client: KeyOwner,
        caller: Caller,
    ) -> list[RoutedTranslation]:
        """The translation of each text, each by the model for its language."""
        self.translator.check(texts)
        client.spend(max(1, len(texts)))
        routes = [self.models.route(source, target, text=text) for text in texts]
        groups: dict[ServedModel, list[int]] = {}
        for place, route in enumerate(routes):
            groups.setdefault(route.model, []).append(place)
        calls = [
            self.translator.translate(
                [texts[place] for place in places],
                model,
                self.translator.search(model, nbest=nbest),
                by_sentence=by_sentence,
                caller=caller,
            )
            for model, places in groups.items()
        ]
        # Almost always there is one, which needs no task of its own.
        found = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        client.characters += sum(map(len, texts))
        translated = {
            place: text
            for places, group in zip(groups.values(), found, strict=True)
            for place, text in zip(places, group, strict=True)
        }
        return [RoutedTranslation(translated[place], route.model, route.detected) for place, route in enumerate(routes)]


class ModelRouter:
    """All served models, by source and target."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._by_pair: dict[tuple[str, str], ServedModel] = {}
        for model in models:
            if model.pair in self._by_pair:
                raise UsageError(
                    f"{self._by_pair[model.pair].given} and {model.given} both translate {model.name}",
                    setting="model",
                    hint="give one model for each language pair",
                )
            self._by_pair[model.pair] = model
        self.detector = Detector(tuple(self.sources))

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_pair.values())

    @property
    def sources(self) -> list[str]:
        """The codes of the source languages, in the order of the models."""
        return list(dict.fromkeys(source for source, _ in self._by_pair))

    @property
    def targets(self) -> list[str]:
        """The codes of the target languages, in the order of the models."""
        return list(dict.fromkeys(target for _, target in self._by_pair))

    def targets_of(self, source: str) -> list[str]:
        """The target languages of a source language; empty if it is only a target."""
        return [target for one, target in self._by_pair if one == source]

    @property
    def are_ready(self) -> bool:
        """Whether each model has a worker."""
        return all(model.pool.num_ready > 0 for model in self._by_pair.values())

    def route(self, source: str | None, target: str | None, *, text: str) -> Route:
        """The model for a source and a target.

        Without a source (None or auto), the language of `text` is detected among the sources of the models to the
        target. Without a target (None), there must be a single one.
        """
        if source is None or source.strip().lower() in ("auto", ""):
            detected = self.detect(text, target=target)
            code = detected.code
        else:
            detected = None
            code = _matching_code(source, self.sources, what="source")
        targets = self.targets_of(code)
        if target is None and len(targets) == 1:
            return Route(self._by_pair[code, targets[0]], detected)
        if target is None:
            raise _missing_target(targets, detected)
        _matching_code(target, self.targets, what="target")
        chosen = match_code(target, targets)
        if chosen is None:
            hint = f"give source and target of one of the models: {', '.join(model.name for model in self)}"
            raise invalid_request(f"{code} to {shortened(target)} is not supported", hint=hint, where="target")
        return Route(self._by_pair[code, chosen], detected)

    def detect(self, text: str, *, target: str | None = None) -> Detected:
        """The language of a text, among the sources or among the sources of a target."""
        if target is None:
            return self._detect(text, among=self.sources)
        _matching_code(target, self.targets, what="target")
        among = [source for source in self.sources if match_code(target, self.targets_of(source)) is not None]
        return self._detect(text, among=among)

    def _detect(self, text: str, *, among: Sequence[str]) -> Detected:
        detected = self.detector.detect(text, among=among)
        if detected is None:
            hint = f"give the source language: one of {', '.join(among)}"
            raise invalid_request("these languages cannot be told apart by their text", hint=hint, where="source")
        return detected

    async def load(self) -> None:
        """Load all models; NmtError if one cannot be loaded."""
        await asyncio.gather(
            asyncio.to_thread(self.detector.prepare), *(model.load() for model in self._by_pair.values())
        )

    async def swap(self) -> list[NmtError]:
        """Load each model again, and return the errors; a model whose load fails stays as it is."""
        logger.info("loading the models again")
        outcomes = await asyncio.gather(*(model.swap() for model in self._by_pair.values()), return_exceptions=True)
        problems = [outcome for outcome in outcomes if isinstance(outcome, NmtError)]
        for problem in problems:
            logger.error("the old model stays: %s; %s", problem.message, problem.hint)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, NmtError):
                raise outcome
        return problems

    async def close(self) -> None:
        """End all workers."""
        await asyncio.gather(*(model.pool.close() for model in self._by_pair.values()))


def _missing_target(targets: Sequence[str], detected: Detected | None) -> RequestError:
    """The error if a source has several targets and the client names none."""
    message, hint = "the target language is missing", f"give target: one of {', '.join(targets)}"
    if detected is not None and not detected.is_only:
        message += f", and the text was detected as {detected.code}"
        hint += "; or give source, if the text is in another language"
    return invalid_request(message, hint=hint, where="target")


def _matching_code(wanted: str, codes: Sequence[str], *, what: str) -> str:
    code = match_code(wanted, codes)
    if code is None:
        raise invalid_request(
            f"{shortened(wanted)} is not supported", hint=f"{what}: one of {', '.join(codes)}", where=what
        )
    return code
