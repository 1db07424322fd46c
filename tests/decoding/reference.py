"""Small models and sources for all tests of the search, and searches that are easy to believe.

These have no cache, no batches of like length and no early end, and are meant for float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, product
from typing import Any

import pytest
import torch

from nmt_cli.decoding.batching import Batches
from nmt_cli.decoding.search.hypotheses import EMPTY_HYPOTHESIS, Hypothesis, SourceSentence
from nmt_cli.decoding.search.searcher import Searcher
from nmt_cli.model.packing import pack
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig, ModelConfig

BOS, EOS, FIRST_WORD = 2, 3, 4
CPU = torch.device("cpu")
# Float32 sums of some ten log-probabilities of size 3 against float64.
TOLERANCE = 2e-5
Penalty = Callable[[int], float]


def decoding(**settings: Any) -> DecodingConfig:
    """Settings of a search for small models."""
    return DecodingConfig.model_validate({"max_extra_tokens": 6, **settings})


def random_model(seed: int, *, vocab: int, sharpness: float = 1.0, **settings: object) -> Transformer:
    """A small random model in evaluation mode; `sharpness` multiplies its logits."""
    torch.manual_seed(seed)
    config: dict[str, object] = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 16, "d_ff": 32, "heads": 2}
    config |= {"d_k": 8, "d_v": 6, "max_positions": 64, "embedding_multiple": 8, "tying": "none"}
    model = Transformer(ModelConfig.model_validate(config | settings), source_vocab=vocab, target_vocab=vocab).eval()
    with torch.no_grad():
        model.output_weight.mul_(sharpness)
    return model


def random_rows(seed: int, *, count: int, vocab: int, longest: int) -> list[list[int]]:
    """Source sentences of 1 to `longest` pieces."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(FIRST_WORD, vocab, (length,), generator=generator).tolist() for length in lengths]


def random_sources(seed: int, *, count: int, vocab: int, longest: int) -> list[SourceSentence]:
    """Source sentences of 1 to `longest` pieces, whose numbers are their keys."""
    rows = random_rows(seed, count=count, vocab=vocab, longest=longest)
    return [SourceSentence(row, key=str(number)) for number, row in enumerate(rows)]


def search(
    models: Sequence[Transformer],
    sources: Sequence[SourceSentence],
    *,
    config: DecodingConfig,
    nbest: int = 1,
    device: torch.device = CPU,
) -> list[list[Hypothesis]]:
    """Our own search of all sources at once: the best hypotheses of each, at most `nbest`, best first."""
    return Searcher(models, device=device).search(sources, config=config, nbest=nbest)


def search_in_batches(
    model: Transformer, rows: Sequence[Sequence[int]], *, config: DecodingConfig, nbest: int = 1
) -> list[list[Hypothesis]]:
    """Our own search of rows of pieces, in batches of similar length."""
    sources = [SourceSentence(row, key=str(number)) for number, row in enumerate(rows)]
    return in_batches(Searcher([model], device=CPU), sources, config=config, nbest=nbest)


def in_batches(
    searcher: Searcher, sources: Sequence[SourceSentence], *, config: DecodingConfig, nbest: int = 1
) -> list[list[Hypothesis]]:
    """What a searcher finds in batches of similar length."""
    search, lengths = partial(searcher.search, config=config, nbest=nbest), [source.length for source in sources]
    return Batches(CPU).map(search, sources, lengths, config=config, empty=[EMPTY_HYPOTHESIS])


def assert_same(
    ours: Sequence[Sequence[Hypothesis]], expected: Sequence[Sequence[Hypothesis]], *, tolerance: float = TOLERANCE
) -> None:
    """The same hypotheses in the same order; those expected may lack the log-probabilities of their pieces."""
    assert [[one.ids for one in ranked] for ranked in ours] == [[one.ids for one in ranked] for ranked in expected]
    for got, want in zip(chain(*ours), chain(*expected), strict=True):
        assert got.log_prob == pytest.approx(want.log_prob, abs=tolerance)
        assert got.score == pytest.approx(want.score, abs=tolerance)
        if want.piece_log_probs:
            assert got.piece_log_probs == pytest.approx(want.piece_log_probs, abs=tolerance)


def in_float64(model: Transformer) -> Transformer:
    return copy.deepcopy(model).double()


def gnmt(alpha: float) -> Penalty:
    return lambda length: math.pow((5 + length) / (5 + 1), alpha)


def next_log_probs(model: Transformer, source: Sequence[int], prefixes: Sequence[Sequence[int]]) -> list[list[float]]:
    """The log-probability of every piece after each prefix, from whole forward passes over BOS and the prefix."""
    with torch.inference_mode():
        sources = pack([[*source, EOS]] * len(prefixes), device=CPU)
        targets = pack([[BOS, *prefix] for prefix in prefixes], device=CPU)
        hidden = model.decode(targets, model.encode(sources), sources)
        last = targets.cu_seqlens[1:].long() - 1
        rows: list[list[float]] = model.logits(hidden[last]).log_softmax(-1).tolist()
        return rows


def forced_log_prob(model: Transformer, source: Sequence[int], ids: Sequence[int], *, limit: int) -> float:
    """The log-probability of the pieces under teacher forcing, and of EOS if there are fewer of them than `limit`."""
    gold = [*ids, EOS] if len(ids) < limit else list(ids)
    with torch.inference_mode():
        sources = pack([[*source, EOS]], device=CPU)
        targets = pack([[BOS, *gold[:-1]]], device=CPU)
        log_probs = model.logits(model.decode(targets, model.encode(sources), sources)).log_softmax(-1)
        return float(log_probs.gather(1, torch.tensor(gold)[:, None]).sum())


def all_translations(model: Transformer, source: Sequence[int], *, vocab: int, limit: int) -> list[Hypothesis]:
    """Every translation there is: each of fewer than `limit` pieces with EOS, each of `limit` without."""
    found = []
    for length in range(limit + 1):
        for ids in product(range(FIRST_WORD, vocab), repeat=length):
            log_prob = forced_log_prob(model, source, ids, limit=limit)
            found.append(Hypothesis(list(ids), log_prob, log_prob))
    return found


def greedy_translation(model: Transformer, source: Sequence[int], *, limit: int) -> list[int]:
    """The most probable word or EOS, again and again."""
    ids: list[int] = []
    while len(ids) < limit:
        (row,) = next_log_probs(model, source, [ids])
        best = max(range(EOS, len(row)), key=row.__getitem__)
        if best == EOS:
            break
        ids.append(best)
    return ids


def naive_beam_searches(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    *,
    beam: int,
    limits: Sequence[int],
    penalty: Penalty,
    ending_share: float = 1.0,
) -> list[list[Hypothesis]]:
    """Everything that beam search finishes for each source, best first, searched up to its limit.

    Of the 2 * beam best candidates a step, those with EOS are finished and the `beam` best others go on;
    `ending_share` is that of the candidates among which an end counts. The model is asked for all sources at a time.
    """
    alive: list[list[tuple[float, tuple[int, ...]]]] = [[(0.0, ())] for _ in sources]
    finished: list[list[Hypothesis]] = [[] for _ in sources]
    for length in range(1, max(limits) + 1):
        open_ones = [number for number, limit in enumerate(limits) if length <= limit]
        with torch.inference_mode():
            rows = pack([[*sources[number], EOS] for number in open_ones for _ in alive[number]], device=CPU)
            prefixes = pack([[BOS, *ids] for number in open_ones for _, ids in alive[number]], device=CPU)
            hidden = model.decode(prefixes, model.encode(rows), rows)[prefixes.cu_seqlens[1:].long() - 1]
            log_probs = model.logits(hidden).log_softmax(-1)
            log_probs[:, :EOS] = -torch.inf
        # More than 2 * beam of one hypothesis cannot be among the 2 * beam best.
        best = iter(zip(*(column.tolist() for column in log_probs.topk(2 * beam)), strict=True))
        for number in open_ones:
            candidates = [
                (before + value, (*ids, piece))
                for before, ids in alive[number]
                for value, piece in zip(*next(best), strict=True)
            ]
            candidates = sorted(candidates, reverse=True)[: 2 * beam]
            ending = candidates[: int(ending_share * len(candidates))]
            ends = [(total, ids[:-1]) for total, ids in ending if ids[-1] == EOS]
            alive[number] = [candidate for candidate in candidates if candidate[1][-1] != EOS][:beam]
            ends += alive[number] if length == limits[number] else []
            finished[number] += [Hypothesis(list(ids), total, total / penalty(length)) for total, ids in ends]
    return [sorted(ended, key=lambda hypothesis: -hypothesis.score) for ended in finished]
