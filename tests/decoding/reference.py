"""Searches that are easy to believe: one sentence at a time, float64, no cache, no batch, no early end."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from nmt_cli.decoding.batching import begin_search
from nmt_cli.decoding.search.hypotheses import Hypothesis, SourceSentence
from nmt_cli.model.packing import pack
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig, ModelConfig

BOS, EOS, FIRST_WORD = 2, 3, 4
CPU = torch.device("cpu")
Penalty = Callable[[int], float]


@dataclass(frozen=True)
class Scored:
    """Pieces without EOS, natural log-probability, and log-probability over the penalty."""

    ids: tuple[int, ...]
    log_prob: float
    score: float


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


def search(
    models: Sequence[Transformer],
    sources: Sequence[SourceSentence],
    *,
    config: DecodingConfig,
    nbest: int,
    device: torch.device,
) -> list[list[Hypothesis]]:
    """Our own search of all sources at once: the best hypotheses of each, at most `nbest`, best first."""
    with torch.inference_mode():
        active = begin_search(models, dict(enumerate(sources)), config=config, nbest=nbest, device=device)
        active.run(down_to=0)
        found = active.read()
    return [found[number][:nbest] for number in range(len(sources))]


def in_float64(model: Transformer) -> Transformer:
    return copy.deepcopy(model).double()


def gnmt(alpha: float) -> Penalty:
    return lambda length: math.pow((5 + length) / (5 + 1), alpha)


def next_log_probs(model: Transformer, source: Sequence[int], prefixes: Sequence[Sequence[int]]) -> list[list[float]]:
    """ln P of every piece after each prefix, from whole forward passes over BOS and the prefix."""
    with torch.inference_mode():
        sources = pack([[*source, EOS]] * len(prefixes), device=CPU)
        targets = pack([[BOS, *prefix] for prefix in prefixes], device=CPU)
        hidden = model.decode(targets, model.encode(sources), sources)
        last = targets.cu_seqlens[1:].long() - 1
        rows: list[list[float]] = model.logits(hidden[last]).log_softmax(-1).tolist()
        return rows


def forced_log_prob(model: Transformer, source: Sequence[int], ids: Sequence[int], *, limit: int) -> float:
    """ln P of the pieces under teacher forcing, with that of EOS where there are fewer of them than `limit`."""
    gold = [*ids, EOS] if len(ids) < limit else list(ids)
    with torch.inference_mode():
        sources = pack([[*source, EOS]], device=CPU)
        targets = pack([[BOS, *gold[:-1]]], device=CPU)
        log_probs = model.logits(model.decode(targets, model.encode(sources), sources)).log_softmax(-1)
        return float(log_probs.gather(1, torch.tensor(gold)[:, None]).sum())


def all_translations(
    model: Transformer, source: Sequence[int], *, vocab: int, limit: int, penalty: Penalty
) -> list[Scored]:
    """Every translation there is, best first: each of fewer than `limit` pieces with EOS, each of `limit` without."""
    found = []
    for length in range(limit + 1):
        for ids in product(range(FIRST_WORD, vocab), repeat=length):
            log_prob = forced_log_prob(model, source, ids, limit=limit)
            found.append(Scored(ids, log_prob, log_prob / penalty(min(length + 1, limit))))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


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


def naive_beam_search(
    model: Transformer,
    source: Sequence[int],
    *,
    beam: int,
    limit: int,
    penalty: Penalty,
    ending_share: float = 1.0,
) -> list[Scored]:
    """Everything that beam search finishes, best first, searched up to the limit.

    Of the 2 * beam best candidates a step, those with EOS are finished and the `beam` best others go on;
    `ending_share` is that of the candidates among which an end counts.
    """
    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[Scored] = []
    for length in range(1, limit + 1):
        candidates = []
        rows = next_log_probs(model, source, [ids for _, ids in alive])
        for (log_prob, ids), row in zip(alive, rows, strict=True):
            candidates += [(log_prob + row[piece], (*ids, piece)) for piece in range(EOS, len(row))]
        candidates = sorted(candidates, reverse=True)[: 2 * beam]
        ending = candidates[: int(ending_share * len(candidates))]
        finished += [Scored(ids[:-1], total, total / penalty(length)) for total, ids in ending if ids[-1] == EOS]
        alive = [candidate for candidate in candidates if candidate[1][-1] != EOS][:beam]
    finished += [Scored(ids, total, total / penalty(limit)) for total, ids in alive]
    return sorted(finished, key=lambda hypothesis: -hypothesis.score)


def naive_beam_searches(
    model: Transformer, sources: Sequence[Sequence[int]], *, beam: int, limits: Sequence[int], penalty: Penalty
) -> list[list[Scored]]:
    """`naive_beam_search` of each source, all of them step by step, so that the model is asked for many at a time."""
    alive: list[list[tuple[float, tuple[int, ...]]]] = [[(0.0, ())] for _ in sources]
    finished: list[list[Scored]] = [[] for _ in sources]
    for length in range(1, max(limits) + 1):
        open_ones = [number for number, limit in enumerate(limits) if length <= limit]
        with torch.inference_mode():
            rows = pack([[*sources[number], EOS] for number in open_ones for _ in alive[number]], device=CPU)
            prefixes = pack([[BOS, *ids] for number in open_ones for _, ids in alive[number]], device=CPU)
            hidden = model.decode(prefixes, model.encode(rows), rows)[prefixes.cu_seqlens[1:].long() - 1]
            log_probs = model.logits(hidden).log_softmax(-1)
            log_probs[:, :EOS] = -math.inf
        # More than 2 * beam of one hypothesis cannot be among the 2 * beam best.
        best = iter(zip(*(column.tolist() for column in log_probs.topk(2 * beam)), strict=True))
        for number in open_ones:
            candidates = [
                (before + value, (*ids, piece))
                for before, ids in alive[number]
                for value, piece in zip(*next(best), strict=True)
            ]
            candidates = sorted(candidates, reverse=True)[: 2 * beam]
            ends = [(total, ids[:-1]) for total, ids in candidates if ids[-1] == EOS]
            alive[number] = [candidate for candidate in candidates if candidate[1][-1] != EOS][:beam]
            ends += alive[number] if length == limits[number] else []
            finished[number] += [Scored(ids, total, total / penalty(length)) for total, ids in ends]
    return [sorted(ended, key=lambda hypothesis: -hypothesis.score) for ended in finished]
