"""Our own engine: searches by models in PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from nmt_cli.artifacts import model_directory
from nmt_cli.artifacts.model_directory import LoadedModel
from nmt_cli.decoding.attention import align
from nmt_cli.decoding.batching import BatchedSearch
from nmt_cli.decoding.search.cuda import CudaSearch
from nmt_cli.decoding.search.hypotheses import Details, Hypothesis, SourceSentence
from nmt_cli.devices import cpu_multiplies_bf16
from nmt_cli.errors import ModelError
from nmt_cli.memory import keep_freed_memory, return_freed_memory
from nmt_cli.model.cpu_linear import pack_linear_layers
from nmt_cli.model.cuda_graphs import CudaGraphs
from nmt_cli.recipe.schema import DecodingConfig

logger = logging.getLogger(__name__)

TorchPrecision = Literal["fp32", "bf16", "int8"]

# Freed memory of a CPU is returned after this many sentences. That keeps it constant, and costs under 1 % of the time.
_RETURN_EVERY = 8000


class TorchEngine:
    """One model, or several whose probabilities are averaged, in float32, bf16 or, on a CPU, 8-bit integers."""

    name = "torch"
    min_wide_tokens = 0

    def __init__(self, loaded: Sequence[LoadedModel], *, device: torch.device, precision: TorchPrecision) -> None:
        """The first model gives the settings; all have the same vocabularies, and are on `device`."""
        self.loaded = loaded
        self.precision: str = precision
        self.device = str(device)
        self.source, self.target = loaded[0].source, loaded[0].target
        self.languages = loaded[0].config.languages
        self.decoding = loaded[0].config.recipe.decoding
        self.max_positions = min(one.model.config.max_positions for one in loaded)
        known = (one.config.longest_source for one in loaded)
        self.longest_source = min((longest for longest in known if longest is not None), default=None)
        self._models = [one.model for one in loaded]
        self._device = device
        # On a GPU, the time to record a step is saved again within a batch or two.
        is_gpu = device.type == "cuda"
        cuda_search = CudaSearch(self._models, device=device, recorder=CudaGraphs(device)) if is_gpu else None
        self._batches = BatchedSearch(self._models, device=device, cuda_search=cuda_search)
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
        for path, one in zip(directories[1:], loaded[1:], strict=True):
            _check_fits(one, loaded[0], path=path, first_path=directories[0])
        if device.type == "cpu":
            keep_freed_memory()
            has_int8 = [pack_linear_layers(one.model, is_int8=precision == "int8") for one in loaded]
            if precision == "int8" and not any(has_int8):
                precision = "bf16" if is_bf16 else "fp32"
                logger.info("the model's matrices are too small to gain from int8: all is in %s", precision)
        return cls(loaded, device=device, precision=precision)

    def check_supported(self, config: DecodingConfig) -> None:
        """This engine supports all settings."""

    def search(
        self, sources: Sequence[SourceSentence], *, config: DecodingConfig, nbest: int, details: Details
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, in input order; a source without pieces has the empty one."""
        found = self._batches.search(sources, config=config, nbest=nbest)
        found = self._aligned(sources, found, config=config) if details.alignment else found
        self._searched += len(sources)
        if self._searched >= _RETURN_EVERY and self._device.type == "cpu":
            self._searched = 0
            return_freed_memory()
        return found

    def _aligned(
        self, sources: Sequence[SourceSentence], found: list[list[Hypothesis]], *, config: DecodingConfig
    ) -> list[list[Hypothesis]]:
        pairs = [(source.ids, one) for source, ranked in zip(sources, found, strict=True) for one in ranked]

        def align_batch(batch: list[int]) -> list[list[int]]:
            rows, targets = [pairs[index][0] for index in batch], [pairs[index][1].ids for index in batch]
            return align(self._models, rows, targets, device=self._device)

        lengths = [len(row) + len(one.ids) if row else 0 for row, one in pairs]
        no_alignment: list[int] = []
        aligned = iter(self._batches.map(align_batch, lengths, config=config, empty=no_alignment))
        return [[replace(one, alignment=next(aligned)) for one in ranked] for ranked in found]


def _check_fits(other: LoadedModel, first: LoadedModel, *, path: Path, first_path: Path) -> None:
    """Raise ModelError unless both models have the same languages and the same vocabularies."""
    pair, first_pair = (f"{one.config.languages.source}-{one.config.languages.target}" for one in (other, first))
    if pair != first_pair:
        raise ModelError(
            f"{path} translates {pair}, {first_path} {first_pair}: models that translate together need one pair",
            where=str(path),
            hint="give models of the same languages, or translate with one of them",
        )
    for side in ("source", "target"):
        pieces = [(tokenizer := getattr(one, side)).pieces(range(tokenizer.vocab_size)) for one in (first, other)]
        if pieces[0] != pieces[1]:
            raise ModelError(
                f"{path} has other {side} pieces than {first_path}: models that translate together need one vocabulary",
                where=str(path),
                hint="train them on the same prepared data, or translate with one of them",
            )
