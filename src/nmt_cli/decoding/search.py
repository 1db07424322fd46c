"""Search over a batch of sources: greedy, beam, or draws, by one model or several, with cached keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from nmt_cli.decoding.beam import Beam
from nmt_cli.decoding.chains import Chains, Draws, Greedy
from nmt_cli.decoding.hypotheses import Hypothesis
from nmt_cli.decoding.penalties import output_limit
from nmt_cli.decoding.running import Search
from nmt_cli.decoding.scorer import Scorer
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import EOS


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be translated: pieces without EOS, pieces that the translation begins with, and a name for draws."""

    row: Sequence[int]
    prefix: Sequence[int] = field(default=())
    key: str = ""


def search(
    models: Sequence[Transformer],
    sources: Sequence[Source],
    *,
    config: DecodingConfig,
    nbest: int,
    device: torch.device,
) -> list[list[Hypothesis]]:
    """For each source its best hypotheses by score, at most `nbest`, best first; beam 1 is greedy search.

    With `config.samples` they are the best of so many draws instead. All sources are searched at once; the models are
    in evaluation mode, on `device`, and have one vocabulary. A hypothesis that reaches its sentence's limit is cut
    there and takes part without EOS. Of equal scores the one found first is better, then the one with the smaller
    piece id.
    """
    with torch.inference_mode():
        one = begin(models, dict(enumerate(sources)), config=config, nbest=nbest, device=device)
        one.run(down_to=0)
        found = one.read()
    return [found[number][:nbest] for number in range(len(sources))]


def begin(
    models: Sequence[Transformer],
    sources: Mapping[int, Source],
    *,
    config: DecodingConfig,
    nbest: int,
    device: torch.device,
) -> Search:
    """The search of `search` before its first step, of sources by their numbers."""
    chosen = list(sources.values())
    check(models, chosen, config=config, nbest=nbest)
    scorer = Scorer(
        models,
        [source.row for source in chosen],
        prefixes=[source.prefix for source in chosen],
        min_tokens=config.min_tokens,
        device=device,
    )
    limits = {number: limit_of(source, models, config=config) for number, source in sources.items()}
    if config.samples == 0 and config.beam > 1:
        return Beam(scorer, limits=limits, config=config, nbest=nbest, device=device)
    keys = {number: source.key for number, source in sources.items()}
    choose = Draws(keys, config=config) if config.samples else Greedy()
    return Chains(scorer, choose=choose, limits=limits, config=config, device=device)


def check(models: Sequence[Transformer], sources: Sequence[Source], *, config: DecodingConfig, nbest: int) -> None:
    """Raise ValueError where a caller asks for what no search can give."""
    if any(model.training for model in models):
        raise ValueError("search needs model.eval(): dropout would change the translations")
    if not 1 <= nbest <= config.num_candidates:
        raise ValueError(f"nbest must be from 1 to the beam of {config.num_candidates}, not {nbest}")
    if any(source.row and source.row[-1] == EOS for source in sources):
        raise ValueError("search adds EOS itself: give the rows without it")


def limit_of(source: Source, models: Sequence[Transformer], *, config: DecodingConfig) -> int:
    """The most tokens that the source's translation gets; one more than its prefix has, at least."""
    max_positions = min(model.config.max_positions for model in models)
    limit = output_limit(len(source.row), config=config, max_positions=max_positions)
    return min(max(limit, len(source.prefix) + 1), max_positions)
