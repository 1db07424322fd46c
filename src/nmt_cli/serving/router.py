"""The choice of the model and the direction for a text, among all served models."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from nmt_cli.documents.marked_text import MarkedText
from nmt_cli.errors import NmtError, UsageError
from nmt_cli.languages import (
    IDENTIFIED_CHARACTERS,
    DetectedLanguage,
    detect_language,
    identify_language,
    identify_other,
    in_script_of,
    match_code,
)
from nmt_cli.recipe.directions import shown_codes
from nmt_cli.recipe.schema import LanguagePair, SplitSentences
from nmt_cli.serving.models import ServedModel
from nmt_cli.serving.request_errors import RequestError, invalid_request_error, shorten
from nmt_cli.tokenization.split_text import SplitText, has_letters

logger = logging.getLogger(__name__)

_LEAST_UNCHANGED = 0.9  # probability that a text is in the target's language already


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """The model for a text, its direction, and the language that was detected if none was given."""

    model: ServedModel
    pair: tuple[str, str]
    detected: DetectedLanguage | None

    @property
    def source(self) -> str:
        """The code of the text's language."""
        return self.pair[0] if self.detected is None else self.detected.code

    @property
    def target(self) -> str:
        """The code of the translation's language."""
        return self.pair[1]

    @property
    def languages(self) -> LanguagePair:
        """The direction."""
        return LanguagePair(source=self.pair[0], target=self.pair[1])

    @property
    def is_translated(self) -> bool:
        """False if the text is in the target's language already."""
        return self.source == self.pair[0]

    def split(self, block: MarkedText, *, when: SplitSentences) -> tuple[SplitText, list[int]]:
        """The text of a block as its model splits it; a text that is not translated has no sentences."""
        if not self.is_translated:
            return SplitText([], [block.text]), []
        return self.model.split(block, language=self.pair[0], when=when)


class ModelRouter:
    """All served models, and the choice of the model for a text."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = list(models)
        self._by_pair: dict[tuple[str, str], ServedModel] = {}
        self._targets_of: dict[str, list[str]] = {}
        self._sources_of: dict[str, list[str]] = {}
        # A model of unknown directions, such as M2M-100, serves the pairs that no other model serves.
        for model in sorted(models, key=lambda model: not model.config.languages.pairs):
            taken = [pair for pair in model.pairs if pair in self._by_pair]
            if taken and model.config.languages.pairs:
                message = f"{self._by_pair[taken[0]].path} and {model.path} both translate {'-'.join(taken[0])}"
                raise UsageError(message, setting="model", hint="give one model for each language pair")
            if taken:
                logger.info("%s: left to other models: %s", model.name, _shown(["-".join(pair) for pair in taken]))
            for source, target in model.pairs:
                if self._by_pair.setdefault((source, target), model) is model:
                    self._targets_of.setdefault(source, []).append(target)
                    self._sources_of.setdefault(target, []).append(source)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The directions of all models, in their order, but models of unknown directions last."""
        return list(self._by_pair)

    @property
    def sources(self) -> list[str]:
        """The codes of the source languages, in the order of the models."""
        return list(self._targets_of)

    @property
    def targets(self) -> list[str]:
        """The codes of the target languages, in the order of the models."""
        return list(self._sources_of)

    def targets_of(self, source: str) -> list[str]:
        """The target languages of a source language."""
        return self._targets_of[source]

    def sources_of(self, target: str) -> list[str]:
        """The source languages of a target; RequestError if nothing is translated into it."""
        return self._sources_of[_matching_code(target, self.targets, name="target")]

    @property
    def are_ready(self) -> bool:
        """Whether each model has a worker."""
        return all(model.pool.num_ready > 0 for model in self)

    def route(self, source: str | None, target: str | None, *, text: str) -> ModelRoute:
        """The model for a source and a target.

        Without a source (None or auto), the language of `text` is detected among the sources of the models to the
        target, and the target's own language. Without a target (None), there must be a single one.
        """
        detected = None
        if not is_source_given(source):
            sources, fitting = self.sources, self.targets
            if target is not None:
                _matching_code(target, self.targets, name="target")
                fitting = [code for code in self.targets if match_code(target, [code]) is not None]
                sources = [*dict.fromkeys(source for code in fitting for source in self._sources_of[code])]
            detected = _detect_source(text, sources, fitting)
            code = detected.code
            if code not in sources:
                if target is None and len(self.targets) > 1:
                    raise _missing_target_error(self.targets, detected)
                return self._route_of((self._sources_of[code][0], code), detected)
        else:
            code = _matching_code(source, self.sources, name="source")
        targets = self._targets_of[code]
        if target is None:
            if len(targets) > 1:
                raise _missing_target_error(targets, detected)
            return self._route_of((code, targets[0]), detected)
        _matching_code(target, self.targets, name="target")
        if (target_code := match_code(target, targets)) is None:
            return self._untrained_route(code, target)
        return self._route_of((code, target_code), detected)

    def _route_of(self, pair: tuple[str, str], detected: DetectedLanguage | None) -> ModelRoute:
        return ModelRoute(self._by_pair[pair], pair, detected)

    def _untrained_route(self, source: str, target: str) -> ModelRoute:
        """The first model that knows both languages, though not from its training; RequestError if there is none."""
        for model in self:
            pair = match_code(source, model.sources), match_code(target, model.targets)
            if pair[0] is not None and pair[1] is not None and pair[0] != pair[1]:
                return ModelRoute(model, (pair[0], pair[1]), None)
        hint = f"target: one of {_shown(self._targets_of[source])}"
        raise invalid_request_error(f"{source} to {shorten(target)} is not supported", hint=hint, where="target")

    def detect(self, text: str) -> DetectedLanguage:
        """The language of a text among the languages of all models, or any language if it clearly is in another one.

        The first source with a confidence of 0 stands for a text that does not say its language.
        """
        return (
            _detect(text, self.sources, self.targets)
            or identify_language(text)
            or DetectedLanguage(self.sources[0], 0.0)
        )

    async def load(self) -> None:
        """Load all models; NmtError if one cannot be loaded."""
        try:
            async with asyncio.TaskGroup() as group:  # on an error, it waits until all workers have ended
                for model in self:
                    group.create_task(model.load())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        await asyncio.to_thread(identify_language, "text")  # loads its own model

    async def reload(self) -> None:
        """Load the models that have changed, one after another; a model whose load fails stays as it is."""
        for model in self:
            (problem,) = await asyncio.gather(model.reload(), return_exceptions=True)
            if isinstance(problem, NmtError):
                logger.error("the old model stays: %s; %s", problem.message, problem.hint)
            elif isinstance(problem, Exception):
                logger.error("the old model stays: an unexpected error in nmt", exc_info=problem)
            elif problem is not None:
                raise problem

    async def close(self) -> None:
        """End all workers."""
        await asyncio.gather(*(model.pool.close() for model in self))


def is_source_given(source: str | None) -> TypeGuard[str]:
    """Whether a request names the source; if not (None or auto), it is detected."""
    return source is not None and source.strip().lower() not in ("auto", "")


def _detect_source(text: str, sources: Sequence[str], targets: Sequence[str]) -> DetectedLanguage:
    """The language of a text: one that is translated, or a target's own; RequestError for another one."""
    found = _detect(text, sources, targets)
    if found is None or found.code not in (*sources, *targets):
        raise _untranslated_error(found or identify_language(text), sources)
    return found


def _detect(text: str, sources: Sequence[str], targets: Sequence[str]) -> DetectedLanguage | None:
    """The language of a text: one of the models' languages, or another one if it clearly is in that.

    A text that does not say its language has the first source of its script, with a confidence of 0. None if the text
    is in another script.
    """
    text = text[:IDENTIFIED_CHARACTERS]
    codes = [*dict.fromkeys([*sources, *targets])]
    if other := identify_other(text, codes):
        return other
    detected = detect_language(text, among=codes)
    if detected is None or (detected.code not in sources and detected.confidence < _LEAST_UNCHANGED):
        fitting = in_script_of(text, sources)
        if detected is not None and fitting:
            detected = detect_language(text, among=sources)
        if detected is None and (fitting or not has_letters(text)):
            detected = DetectedLanguage([*fitting, *sources][0], 0.0)
    return detected


def _untranslated_error(found: DetectedLanguage | None, sources: Sequence[str]) -> RequestError:
    message = f"the text is in {found.code}, which is not translated" if found else "the text is in another script"
    return invalid_request_error(message, hint=f"source: one of {_shown(sources)}", where="source")


def _missing_target_error(targets: Sequence[str], detected: DetectedLanguage | None) -> RequestError:
    message, hint = "the target language is missing", f"give target: one of {_shown(targets)}"
    if detected is not None and detected.confidence:
        message += f", and the text was detected as {detected.code}"
        hint += "; or give source, if the text is in another language"
    return invalid_request_error(message, hint=hint, where="target")


def _matching_code(wanted: str, codes: Sequence[str], *, name: str) -> str:
    """The code that a language of a request names; RequestError if there is none."""
    code = match_code(wanted, codes)
    if code is None:
        message, hint = f"{shorten(wanted)} is not supported", f"{name}: one of {_shown(codes)}"
        raise invalid_request_error(message, hint=hint, where=name)
    return code


def _shown(codes: Sequence[str]) -> str:
    return shown_codes(codes, listed_by="/languages")
