"""The search of sentences that are batched together, by torch's operators on any device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nmt_cli.decoding.search.beam import BeamSearch
from nmt_cli.decoding.search.ensemble import Ensemble
from nmt_cli.decoding.search.greedy_and_sampling import GreedyOrSamplingSearch
from nmt_cli.decoding.search.hypotheses import Hypothesis, SourceSentence, max_output_tokens
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig


class Searcher:
    """Searches by one model or by several, which are in evaluation mode, on `device`, and have one vocabulary."""

    def __init__(self, models: Sequence[Transformer], *, device: torch.device) -> None:
        self._models = models
        self._device = device
        self._max_positions = min(model.config.max_positions for model in models)

    def search(
        self, sources: Sequence[SourceSentence], *, config: DecodingConfig, nbest: int
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, at most `nbest`, best first; beam 1 is greedy search.

        A hypothesis that reaches its sentence's limit is cut there and competes without EOS. Among equal scores the
        hypothesis that was found first is better, then the one with the smaller piece id.
        """
        limits = self._limits(sources, config=config)
        with torch.inference_mode():
            ensemble = Ensemble(self._models, sources, config=config, device=self._device)
            if config.samples == 0 and config.beam > 1:
                return BeamSearch(ensemble, limits=limits, config=config, nbest=nbest, device=self._device).run()
            keys = [source.key for source in sources]
            found = GreedyOrSamplingSearch(ensemble, limits=limits, keys=keys, config=config, device=self._device).run()
        return [hypotheses[:nbest] for hypotheses in found]

    def free_memory(self) -> None:
        """Give back what is kept for later searches: nothing here."""

    def _limits(self, sources: Sequence[SourceSentence], *, config: DecodingConfig) -> list[int]:
        """The maximum number of output tokens of each source."""
        return [max_output_tokens(source, config=config, max_positions=self._max_positions) for source in sources]
