"""Our own engine: searches by models in PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from nmt_cli.artifacts import model_directory
from nmt_cli.artifacts.model_directory import LoadedModel
from nmt_cli.decoding.attention_maps import align
from nmt_cli.decoding.batching import Batches
from nmt_cli.decoding.search.cuda import searcher_for
from nmt_cli.decoding.search.hypotheses import EMPTY_HYPOTHESIS, Details, Hypothesis, SourceSentence
from nmt_cli.devices import cpu_multiplies_bf16
from nmt_cli.errors import ModelError
from nmt_cli.memory import keep_freed_memory, return_freed_memory
from nmt_cli.model.cpu_linear import pack_linear_layers
from nmt_cli.recipe.schema import DecodingConfig, TrainedLines

logger = logging.getLogger(__name__)

TorchPrecision = Literal["fp32", "bf16", "int8"]

# Freed memory of a CPU is returned after this many sentences. That keeps it constant, and costs under 1 % of the time.
_RETURN_EVERY = 8000


class TorchEngine:
    """One model, or several whose probabilities are averaged, in float32, bf16 or, on a CPU, 8-bit integers."""

    name = "torch"

    def __init__(self, loaded: Sequence[LoadedModel], *, device: torch.device, precision: TorchPrecision) -> None:
        """The first model gives the settings; all have the same vocabularies, and are on `device`."""
        self.loaded = loaded
        self.precision: str = precision
        self.device = str(device)
        self.source, self.target = loaded[0].source, loaded[0].target
        self.directions = loaded[0].config.languages
        self.decoding = loaded[0].config.recipe.decoding
        self._models = [loaded_model.model for loaded_model in loaded]
        self.max_positions = min(model.config.max_positions for model in self._models)
        self.trained_lines = TrainedLines.combined([loaded_model.config.trained_lines for loaded_model in loaded])
        self._device = device
        self._searcher = searcher_for(self._models, device=device)
        self._batches = Batches(device)
        self._searched = 0  # sentences since freed memory was returned

    @classmethod
    def load(cls, directories: Sequence[Path], *, device: torch.device, precision: TorchPrecision) -> TorchEngine:
        """Load model directories; the first one gives the settings.

        With int8 all operations but products with large matrices are in the faster of the CPU's other two precisions.
        ModelError if a directory is no model or damaged, or if languages or vocabularies differ.
        """
        is_bf16 = precision == "bf16" or (precision == "int8" and cpu_multiplies_bf16())
        dtype = torch.bfloat16 if is_bf16 else torch.float32
        loaded = [model_directory.load_model(path, device=device, dtype=dtype) for path in directories]
        for path, other in zip(directories[1:], loaded[1:], strict=True):
            _check_compatible(other, loaded[0], path=path, first_path=directories[0])
        if device.type == "cpu":
            keep_freed_memory()
            is_int8 = precision == "int8"
            has_int8 = [pack_linear_layers(loaded_model.model, is_int8=is_int8) for loaded_model in loaded]
            if is_int8 and not any(has_int8):
                precision = "bf16" if is_bf16 else "fp32"
                logger.info("the model's matrices are too small to gain from int8: all is in %s", precision)
        return cls(loaded, device=device, precision=precision)

    def search(
        self, sources: Sequence[SourceSentence], *, config: DecodingConfig, nbest: int, details: Details
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, in input order; a source without pieces has the empty one."""
        search = partial(self._searcher.search, config=config, nbest=nbest)
        lengths = [source.length for source in sources]
        nbest_lists = self._batches.map(search, sources, lengths, config=config, empty=[EMPTY_HYPOTHESIS])
        if details.alignment:
            nbest_lists = self.align(sources, nbest_lists, config=config)
        self._searched += len(sources)
        if self._searched >= _RETURN_EVERY and self._device.type == "cpu":
            self._searched = 0
            return_freed_memory()
        return nbest_lists

    def align(
        self, sources: Sequence[SourceSentence], nbest_lists: Sequence[Sequence[Hypothesis]], *, config: DecodingConfig
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each source with their alignments."""
        pairs = [
            (source, hypothesis.ids)
            for source, ranked in zip(sources, nbest_lists, strict=True)
            for hypothesis in ranked
        ]

        def align_batch(batch: list[tuple[SourceSentence, list[int]]]) -> list[list[tuple[int, int]]]:
            batch_sources, batch_targets = zip(*batch, strict=True)
            return align(self._models, batch_sources, batch_targets, device=self._device)

        lengths = [len(source.ids) + len(target) if source.ids else 0 for source, target in pairs]
        no_alignment: list[tuple[int, int]] = []
        alignments = iter(self._batches.map(align_batch, pairs, lengths, config=config, empty=no_alignment))
        return [[replace(hypothesis, alignment=next(alignments)) for hypothesis in ranked] for ranked in nbest_lists]


def _check_compatible(other: LoadedModel, first: LoadedModel, *, path: Path, first_path: Path) -> None:
    """Raise ModelError unless both models have the same languages and the same vocabularies."""
    directions, first_directions = other.config.languages, first.config.languages
    if directions != first_directions:
        raise ModelError(
            f"{path} translates {directions}, {first_path} {first_directions}: models that translate together need the "
            "same languages",
            where=str(path),
            hint="give models of the same languages, or translate with one of them",
        )
    for side in ("source", "target"):
        tokenizer, first_tokenizer = getattr(other, side), getattr(first, side)
        if tokenizer.pieces(range(tokenizer.vocab_size)) != first_tokenizer.pieces(range(first_tokenizer.vocab_size)):
            raise ModelError(
                f"{path} has other {side} pieces than {first_path}: models that translate together need one vocabulary",
                where=str(path),
                hint="train them on the same prepared data, or translate with one of them",
            )
