"""Loss, perplexity and BLEU on the validation set: of each direction, and their means over the directions."""

from __future__ import annotations

import logging
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt_cli.artifacts.manifest import DAMAGED_HINT, WEIGHTS
from nmt_cli.artifacts.model_directory import AverageLosses, DirectionResult
from nmt_cli.artifacts.run import Run
from nmt_cli.artifacts.weights import load_weights, read_tensors, uninitialized_model
from nmt_cli.dataset.batches import make_batch
from nmt_cli.dataset.prepared_data import Array, PreparedData, TokenPairs, open_prepared
from nmt_cli.decoding.batching import Batches, plan_batches
from nmt_cli.decoding.search.cuda import searcher_for
from nmt_cli.decoding.search.hypotheses import EMPTY_HYPOTHESIS, SourceSentence, SymbolIds
from nmt_cli.devices import multiply_float32_fast
from nmt_cli.errors import DataError
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import LanguagePair, Recipe
from nmt_cli.scoring.forced_decoding import perplexity
from nmt_cli.scoring.metrics import ScoreReport, bleu
from nmt_cli.tokenization.tokenizer import Tokenizer
from nmt_cli.training.data_order import DataOrder
from nmt_cli.training.initial_weights import build_model
from nmt_cli.training.objective import plain_loss
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.stop_signal import StopAsked
from nmt_cli.training.update import Updater

S = TypeVar("S")
T = TypeVar("T")
logger = logging.getLogger(__name__)

_GPU_BATCH_FACTOR = 4  # more tokens per batch on a GPU: the time of a step hardly depends on its rows
_NUM_SAMPLES = 5
_MEAN_BATCH_TOKENS = 4096  # tokens of a side at once, if the loss of an average is measured
_MIN_FREE_SHARE = 1 / 8  # of a GPU's memory: if less is free, a validation gives back the memory of its search


@dataclass(frozen=True, slots=True)
class Sample:
    """A sentence of the validation set with its reference, and its translation in training.

    `direction` is None if there is only one.
    """

    source: str
    reference: str
    translation: str
    direction: str | None = None


@dataclass(frozen=True, slots=True)
class Validation:
    """The measurements of a validation. Losses are nats per target token, EOS included.

    `bleu` is None if the recipe does not ask for it. `samples` are a few translations, of the same sentences in each
    validation of a run. If there are several directions, `by_direction` has their measurements, such as those of en-de,
    and all others are means over the directions.
    """

    loss: float
    nll: float
    perplexity: float
    bleu: float | None
    signature: str | None
    seconds: float
    samples: tuple[Sample, ...]
    by_direction: Mapping[str, DirectionResult] = field(default_factory=dict)


class Validator:
    """Measures the loss of a model in training on the validation set, and its BLEU.

    Each rank takes a share of the batches, and all ranks get the results of all: the same for any number of ranks.
    On a CPU a bf16 model's float32 copy translates. On a GPU the steps of the search are recorded. Later validations
    replay them, because weights change in place.
    """

    def __init__(self, recipe: Recipe, data: PreparedData, updater: Updater, order: DataOrder, *, ranks: Ranks) -> None:
        self._recipe, self._updater, self._order, self._ranks = recipe, updater, order, ranks
        device = self._device = ranks.device
        self._translating_model = _translating_model(recipe, data, updater, device=device)
        self._searcher = searcher_for([self._translating_model], device=device)
        self._pairs, self._held_out = data.split("valid"), _held_out(data, max_positions=recipe.model.max_positions)
        self._has_directions = len(data.manifest.languages.pairs) > 1
        self._tokenizer = Tokenizer.load(data.target_tokenizer_file)
        self._source_texts, self._references = data.texts("valid")
        self._sources = _source_sentences(data, self._held_out, max_positions=recipe.model.max_positions)
        measured = [text.languages for text in self._held_out]
        if missing := [str(pair) for pair in data.manifest.languages.pairs if pair not in measured]:
            logger.warning("there is no validation text of %s: no figure is of it", ", ".join(missing))

    def measure(self, *, max_sentences: int | None, beat: Callable[[], None]) -> Validation:
        """Validate the current weights, or their average, on the first `max_sentences` pairs of each direction.

        With None, the loss is of all pairs, and BLEU is of the first `validation.max_sentences` of each direction.
        `beat` is called after each batch. If it raises StopAsked on a rank, the validation ends with that on all ranks.
        """
        start = time.perf_counter()
        limit = max_sentences or self._recipe.validation.max_sentences
        with self._updater.evaluated():
            losses = self._measure_losses(beat, max_sentences=max_sentences)
            loss, nll = _mean([smoothed for smoothed, _ in losses]), _mean([nll for _, nll in losses])
            is_scored = self._recipe.validation.bleu and math.isfinite(loss)
            reports, samples = self._measure_bleu(beat, limit=limit) if is_scored else ([], [])
        scores: Sequence[float | None] = [report.value for report in reports] or [None] * len(losses)
        return Validation(
            loss,
            nll,
            perplexity(nll),
            bleu=_mean([report.value for report in reports]) if reports else None,
            signature=", ".join(dict.fromkeys(report.signature for report in reports)) or None,
            seconds=time.perf_counter() - start,
            samples=tuple(samples),
            by_direction={
                str(text.languages): DirectionResult(loss=smoothed, bleu=score)
                for text, (smoothed, _), score in zip(self._held_out, losses, scores, strict=True)
                if self._has_directions
            },
        )

    def _measure_losses(self, beat: Callable[[], None], *, max_sentences: int | None) -> list[tuple[float, float]]:
        """The smoothed loss and the NLL per target token of each direction."""
        smoothing, model = self._recipe.training.label_smoothing, self._updater.model
        losses = partial(_losses, model, self._pairs, smoothing=smoothing, device=self._device, beat=beat)
        usable = [text.usable[:max_sentences] for text in self._held_out]
        losses_of = partial(self._shared, losses)
        return _losses_per_token(usable, self._pairs, max_tokens=self._order.max_tokens, losses_of=losses_of)

    def _measure_bleu(self, beat: Callable[[], None], *, limit: int | None) -> tuple[list[ScoreReport], list[Sample]]:
        """BLEU of each direction, by the tokens of its target language, and samples of all of them."""
        scored = [text.pairs[:limit] for text in self._held_out]
        indices = [*chain(*scored)]
        found = self._tokenizer.decode(self._search([self._sources[index] for index in indices], beat))
        translations = dict(zip(indices, found, strict=True))
        reports, samples = list[ScoreReport](), list[Sample]()
        for text, own in zip(self._held_out, scored, strict=True):
            references = [self._references[index] for index in own]
            own_translations = [translations[index] for index in own]
            reports.append(bleu(own_translations, references, target_language=text.languages.target))
            direction = str(text.languages) if self._has_directions else None
            lengths, number = [len(self._sources[index].ids) for index in own], _NUM_SAMPLES // len(scored) or 1
            for place in _spread_by_length(lengths, number=number):
                texts = self._source_texts[own[place]], references[place], own_translations[place]
                samples.append(Sample(*texts, direction))
        return reports, samples

    def _search(self, sources: Sequence[SourceSentence], beat: Callable[[], None]) -> list[list[int]]:
        """The ids of the best hypothesis for each source."""
        config = self._recipe.decoding
        if self._device.type == "cuda":
            config = config.model_copy(update={"batch_tokens": _GPU_BATCH_FACTOR * config.batch_tokens})
        batches = plan_batches([len(source.ids) for source in sources], max_tokens=config.batch_tokens // config.beam)
        device_batches, search = Batches(self._device), partial(self._searcher.search, config=config, nbest=1)

        def translate(batches: Sequence[list[int]]) -> list[list[list[int]]]:
            found = []
            for indices in batches:
                batch = [sources[index] for index in indices]
                lengths = [source.length for source in batch]
                hypotheses = device_batches.map(search, batch, lengths, config=config, empty=[EMPTY_HYPOTHESIS])
                found.append([best.ids for (best,) in hypotheses])
                beat()
            return found

        translations: list[list[int]] = [[] for _ in sources]
        for batch, found in zip(batches, self._shared(translate, batches), strict=True):
            for index, ids in zip(batch, found, strict=True):
                translations[index] = ids
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            if free < _MIN_FREE_SHARE * total:
                # The search itself stays: torch has 32 streams, and a new recorder might get the loader's.
                self._searcher.free_memory()
                torch.cuda.empty_cache()
        return translations

    def _shared(self, work: Callable[[Sequence[S]], list[T]], items: Sequence[S]) -> list[T]:
        """The results of the work on each item: each rank does its share, and all ranks get the whole."""
        size = self._ranks.size
        try:
            own: list[T] | None = work(items[self._ranks.rank :: size])
        except StopAsked:
            own = None
        parts = [part for part in self._ranks.gather(own) if part is not None]
        if len(parts) < size:
            raise StopAsked
        return [parts[number % size][number // size] for number in range(len(items))]


def measure_average(run: Run, weights: Mapping[str, Tensor], *, single: Path) -> AverageLosses:
    """The validation losses of an average of checkpoints of a run, and of the model or checkpoint in `single`.

    The CPU measures them, because a training may have the GPU. DataError if the run's data is not there, or is other
    data.
    """
    record, device = run.record, torch.device("cpu")
    data = open_prepared(Path(record.data))
    if data.manifest.fingerprint != record.data_summary.get("fingerprint"):
        hint = f"prepare the run's corpus again: nmt prepare CORPUS -o {shlex.quote(record.data)} --overwrite"
        raise DataError(f"{data.directory} holds other data than the run's", where=str(data.directory), hint=hint)
    model = uninitialized_model(run.recipe.model, source_vocab=record.source_vocab, target_vocab=record.target_vocab)
    multiply_float32_fast(device)
    pairs, texts = data.split("valid"), _held_out(data, max_positions=run.recipe.model.max_positions)
    smoothing, usable = run.recipe.training.label_smoothing, [text.usable for text in texts]

    def loss_of(values: Mapping[str, Tensor]) -> float:
        load_weights(model, values, where=str(single), hint=DAMAGED_HINT)
        losses_of = partial(_losses, model, pairs, smoothing=smoothing, device=device, beat=lambda: None)
        losses = _losses_per_token(usable, pairs, max_tokens=_MEAN_BATCH_TOKENS, losses_of=losses_of)
        return _mean([smoothed for smoothed, _ in losses])

    return AverageLosses(loss=loss_of(weights), single_loss=loss_of(read_tensors(single / WEIGHTS, hint=DAMAGED_HINT)))


@dataclass(frozen=True, slots=True)
class _HeldOut:
    """The validation text of a direction: the indices of its pairs, and of those that the model takes."""

    languages: LanguagePair
    pairs: range
    usable: Array


def _held_out(data: PreparedData, *, max_positions: int) -> list[_HeldOut]:
    """The validation text of each direction that has pairs which the model takes; DataError if none has."""
    pairs, manifest = data.split("valid"), data.manifest
    lengths = np.maximum(pairs.src.lengths, pairs.tgt.lengths)
    texts = [
        _HeldOut(languages, own, own.start + np.flatnonzero(lengths[own.start : own.stop] <= max_positions))
        for languages, own in zip(manifest.languages.pairs, manifest.splits["valid"].ranges, strict=True)
    ]
    texts = [text for text in texts if len(text.usable)]
    if not texts:
        raise DataError(
            f"no validation pair is left: all {len(pairs):,} are longer than model.max_positions, {max_positions}",
            where=str(data.directory),
            hint=f"--set model.max_positions={lengths.max()}, or prepare with shorter validation text",
        )
    return texts


def _source_sentences(
    data: PreparedData, texts: Sequence[_HeldOut], *, max_positions: int
) -> dict[int, SourceSentence]:
    """The sources of the validation set by the indices of their pairs, cut to what the model takes."""
    sources, languages = data.split("valid").src, data.manifest.languages
    source_tokenizer, target_tokenizer = map(Tokenizer.load, (data.source_tokenizer_file, data.target_tokenizer_file))
    control_ids, sentences = {*source_tokenizer.control_ids}, dict[int, SourceSentence]()
    for text in texts:
        target = target_tokenizer.symbol_ids(languages.direction(text.languages).target_symbols)
        for index in text.pairs:
            ids = sources.ids(index, index + 1)[:-1].tolist()  # without EOS
            source = tuple(takewhile(control_ids.__contains__, ids))
            pieces = ids[len(source) : max_positions - 1]
            sentences[index] = SourceSentence(pieces, key=str(index), symbols=SymbolIds(source, target))
    return sentences


@torch.no_grad()
def _losses(
    model: Transformer,
    pairs: TokenPairs,
    batches: Sequence[Array],
    *,
    smoothing: float,
    device: torch.device,
    beat: Callable[[], None],
) -> list[tuple[float, float]]:
    """The sums of the smoothed loss and of the NLL over the target tokens of each batch."""
    model.eval()
    sums = []
    for indices in batches:
        batch = make_batch(pairs.rows(indices), pairs, device=device, shape=None, pinned=False)
        sums.append(plain_loss(model, smoothing, batch).stacked())
        beat()
    return [(smoothed, nll) for smoothed, nll in torch.stack(sums).tolist()] if sums else []


def _losses_per_token(
    usable: Sequence[Array],
    pairs: TokenPairs,
    *,
    max_tokens: int,
    losses_of: Callable[[Sequence[Array]], list[tuple[float, float]]],
) -> list[tuple[float, float]]:
    """The smoothed loss and the NLL per target token of the pairs of each direction.

    `losses_of` finds the sums of batches, of about `max_tokens` tokens.
    """
    lengths = pairs.tgt.lengths
    batches = [_batches_by_length(own, lengths, max_tokens=max_tokens) for own in usable]
    sums, means = iter(losses_of([*chain(*batches)])), []
    for own, of_direction in zip(usable, batches, strict=True):
        losses, num_tokens = [*islice(sums, len(of_direction))], int(lengths[own].sum())
        smoothed, nll = (sum(values) / num_tokens for values in zip(*losses, strict=True))
        means.append((smoothed, nll))
    return means


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _translating_model(recipe: Recipe, data: PreparedData, updater: Updater, *, device: torch.device) -> Transformer:
    """The model to translate with: on a CPU in float32, like `nmt decode`, with the master weights themselves."""
    if updater.model.output_weight.dtype == torch.float32 or device.type == "cuda":
        return updater.model
    copy = build_model(recipe, data)
    masters = updater.weights.named(updater.weights.values)
    for name, parameter in copy.named_parameters():
        parameter.data = masters[name]
    return copy.eval()


def _spread_by_length(lengths: Sequence[int], *, number: int) -> list[int]:
    """The indices of a few sentences, from short to long: the middle of each of `number` parts, in order of length."""
    ordered = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    middles = [len(ordered) * (2 * part + 1) // (2 * number) for part in range(number)]
    return list(dict.fromkeys(ordered[middle] for middle in middles))


def _batches_by_length(pairs: Array, lengths: NDArray[np.int32], *, max_tokens: int) -> list[Array]:
    """The pairs in the order of their lengths, divided into batches of about `max_tokens` tokens."""
    ordered = pairs[np.argsort(lengths[pairs], kind="stable")]
    batch_of_pair = np.cumsum(lengths[ordered], dtype=np.int64) // max_tokens
    return [ordered[batch_of_pair == batch] for batch in np.unique(batch_of_pair)]
