"""Whether another program computes with a model's weights what we compute: the same lines on both sides.

Three comparisons, of which the first two decide. Each program gives log-probabilities to our translations, piece by
piece, and to a pair as long as the model has positions; each translates by greedy search; each translates by the
model's own beam. How a beam search ends differs between programs, so that a few lines may come out otherwise there with
weights that are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from random import Random
from typing import Protocol

import torch
from torch import Tensor

from nmt_cli.bundle.directory import LoadedModel
from nmt_cli.decoding.batches import plan_batches, search_batches
from nmt_cli.decoding.penalties import output_limit
from nmt_cli.errors import ModelError
from nmt_cli.model.packing import pack
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK, Tokenizer

logger = logging.getLogger(__name__)

NUM_LINES = 100
# Nats a piece. In float32 two programs are about 1e-5 apart, by the order of their sums; a wrong activation, position
# or epsilon of 1e-3 is beyond it.
TOLERANCE = 1e-3
# The mean over pieces for reduced precisions, of which int8 in a model of width 32 came to 0.1 at most.
_REDUCED_TOLERANCE = 0.25
_LONGEST_LINE = 64
_MOST_POSITIONS = 1024  # CTranslate2 cuts longer sources that it scores
_MOST_EXTRA_TOKENS = 16  # a translation of made-up lines may have no end
_BATCH_TOKENS = 2048
_REPORT = "please report it, with the model's config.yaml; nothing was written"


class Engine(Protocol):
    """Another program's copy of a model, which is asked in pieces as text, without BOS and EOS."""

    @property
    def name(self) -> str:
        """What the program is called."""

    def encode(self, lines: Sequence[str]) -> list[list[str]]:
        """The source pieces that it makes of each line."""

    def log_probs(self, sources: Sequence[list[str]], targets: Sequence[list[str]]) -> list[list[float]]:
        """ln P of each target piece and of EOS after the last."""

    def search(self, sources: Sequence[list[str]], *, config: DecodingConfig, longest: int) -> list[list[str]]:
        """The best hypothesis of each source, of at most `longest` pieces."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two programs agree on some lines: nats a piece, and lines that come out the same."""

    num_lines: int
    largest_difference: float
    mean_difference: float
    same_greedy: int
    same_beam: int
    num_compared_beam: int
    beam: int

    def __str__(self) -> str:
        beam = f", and for {self.same_beam} of {self.num_compared_beam} with a beam of {self.beam}"
        return (
            f"{self.num_lines} lines: ln P of a piece differs by at most {self.largest_difference:.1e}, the translation"
            f" is the same for {self.same_greedy} by greedy search{beam if self.num_compared_beam else ''}"
        )


def verify(loaded: LoadedModel, engine: Engine, lines: Sequence[str], *, is_reduced: bool) -> Agreement:
    """The agreement of `engine` with our float32 model `loaded`, on the CPU, over `lines`.

    Raises ModelError where pieces, log-probabilities or greedy translations differ by more than float32 explains;
    `is_reduced`, for a reduced precision, where the mean log-probability is far off.
    """
    logger.info("comparing with %s on %d lines", engine.name, len(lines))
    rows = loaded.source.encode(lines)
    sources = [loaded.source.pieces(row) for row in rows]
    for line, ours, other in zip(lines, sources, engine.encode(lines), strict=True):
        if ours != other:
            raise _refusal(engine, f"makes other pieces of the line {line!r}: {' '.join(other)}")
    decoding = loaded.config.recipe.decoding
    extra = min(decoding.max_extra_tokens, _MOST_EXTRA_TOKENS)
    config = decoding.model_copy(update={"length_penalty_form": "length", "max_extra_tokens": extra})
    greedy = _Search(loaded, rows, config=config.model_copy(update={"beam": 1}))
    differences = _differences(loaded, engine, rows, sources, greedy.found)
    if not is_reduced:
        long_row, long_target = _longest_pair(loaded, rows, greedy.found)
        long_source = loaded.source.pieces(long_row)
        differences = torch.cat([differences, _differences(loaded, engine, [long_row], [long_source], [long_target])])
    largest, mean = float(differences.max()), float(differences.mean())
    if not mean <= (_REDUCED_TOLERANCE if is_reduced else TOLERANCE) or not (is_reduced or largest <= TOLERANCE):
        what = f"ln P of a piece differs by {mean:.2g} in the mean and by {largest:.2g} at most"
        raise _refusal(engine, f"gives other scores: {what}")
    theirs = engine.search(sources, config=greedy.config, longest=greedy.longest)
    parted = greedy.parted(theirs)
    if not is_reduced:
        for index in parted:
            if not _is_tie(loaded, rows[index], greedy.found[index], theirs[index]):
                raise _refusal(engine, f"translates the line {lines[index]!r} otherwise: {' '.join(theirs[index])}")
    beam = _Search(loaded, rows, config=config)
    by_beam = engine.search(sources, config=config, longest=beam.longest)
    compared = beam.comparable(by_beam)
    same = len(compared - set(beam.parted(by_beam)))
    return Agreement(len(lines), largest, mean, len(lines) - len(parted), same, len(compared), config.beam)


def usable_lines(lines: Sequence[str], loaded: LoadedModel) -> list[str]:
    """Up to a hundred of `lines`, spread evenly over those that are neither blank, long nor special to a tokenizer."""
    stripped = dict.fromkeys(line.strip() for line in lines)
    usable = [line for line in stripped if line and not any(mark in line for mark in ("\u2581", "<", ">"))]
    usable = [line for line, row in zip(usable, loaded.source.encode(usable), strict=True) if _fits(row, loaded)]
    every = max(1, len(usable) // NUM_LINES)
    return usable[::every][:NUM_LINES]


def made_up_lines(loaded: LoadedModel) -> list[str]:
    """A hundred lines of 2 to 25 random pieces of the source vocabulary, the same for the same model.

    ModelError where the tokenizer makes none of the vocabulary's pieces.
    """
    tokenizer = loaded.source
    special = {PAD, UNK, BOS, EOS, *tokenizer.byte_ids}
    ids = [piece for piece in range(tokenizer.vocab_size) if piece not in special]
    texts = [piece.replace("\u2581", " ") for piece in tokenizer.pieces(ids)]
    # Of a vocabulary of two languages the tokenizer of one makes a part.
    made = [text for piece, text, row in zip(ids, texts, tokenizer.encode(texts), strict=True) if piece in row]
    drawn = Random(1)
    lines = ["".join(drawn.choices(made, k=2 + number % 24)) for number in range(4 * NUM_LINES if made else 0)]
    usable = usable_lines(lines, loaded)
    if not usable:
        raise ModelError(
            "no line of text can be spelt in the model's source pieces",
            where="source.spm",
            hint="check that the tokenizer and the vocabulary belong together",
        )
    return usable


class _Search:
    """Our own search over all sources, and what of it can be compared with another's."""

    def __init__(self, loaded: LoadedModel, rows: Sequence[Sequence[int]], *, config: DecodingConfig) -> None:
        self.config = config
        self._target = loaded.target
        positions = loaded.model.config.max_positions
        limits = (output_limit(len(row), config=config, max_positions=positions) for row in rows)
        self._limits = [min(limit, positions - 1) for limit in limits]  # what every program has a place for
        best = search_batches(loaded.model, rows, config=config, nbest=1, device=torch.device("cpu"))
        self.found = [hypotheses[0].ids for hypotheses in best]

    @property
    def longest(self) -> int:
        """The most pieces that any source may get."""
        return max(self._limits)

    def parted(self, theirs: Sequence[list[str]]) -> list[int]:
        """Which hypotheses of another's search are not ours, up to our limit.

        Of a greedy search the limit cuts nothing that could still change what is before it.
        """
        triples = enumerate(zip(self.found, theirs, self._limits, strict=True))
        return [index for index, (ids, pieces, limit) in triples if self._target.pieces(ids[:limit]) != pieces[:limit]]

    def comparable(self, theirs: Sequence[list[str]]) -> set[int]:
        """Which hypotheses of a beam search ended on both sides: what is cut, and where, is each program's own."""
        triples = enumerate(zip(self.found, theirs, self._limits, strict=True))
        return {index for index, (ids, pieces, limit) in triples if max(len(ids), len(pieces)) < limit}


def _differences(
    loaded: LoadedModel,
    engine: Engine,
    rows: Sequence[list[int]],
    sources: Sequence[list[str]],
    targets: Sequence[list[int]],
) -> Tensor:
    """|ours - theirs| of ln P for each piece and each end of `targets`, one after the other."""
    longest = loaded.model.config.max_positions - 1  # after which there is a place for the end
    targets = [ids[:longest] for ids in targets]
    ours = force(loaded, rows, targets)
    theirs = engine.log_probs(sources, [loaded.target.pieces(ids) for ids in targets])
    for mine, other in zip(ours, theirs, strict=True):
        if len(mine) != len(other):
            raise _refusal(engine, f"scores {len(other)} pieces where there are {len(mine)}")
    values = (torch.tensor([value for row in side for value in row]) for side in (ours, theirs))
    first, second = values
    return (first - second).abs()


def _longest_pair(
    loaded: LoadedModel, rows: Sequence[list[int]], targets: Sequence[list[int]]
) -> tuple[list[int], list[int]]:
    """Source and target with a piece at each position that the model has, made of those there are, again and again."""
    longest = min(loaded.model.config.max_positions, _MOST_POSITIONS) - 1
    pieces = [piece for ids in targets for piece in ids] or [loaded.target.vocab_size - 1]
    source = chain.from_iterable(cycle(rows))
    return list(islice(source, longest)), list(islice(cycle(pieces), longest))


def force(loaded: LoadedModel, rows: Sequence[list[int]], targets: Sequence[list[int]]) -> list[list[float]]:
    """Our ln P of each target piece, and of EOS after the last, given the source."""
    scored: list[list[float]] = [[] for _ in rows]
    lengths = [len(row) + len(target) + 1 for row, target in zip(rows, targets, strict=True)]
    for batch in plan_batches(lengths, max_tokens=_BATCH_TOKENS):
        log_probs = _forced(loaded, [rows[index] for index in batch], [targets[index] for index in batch])
        ends = [len(targets[index]) + 1 for index in batch]
        for index, distribution in zip(batch, log_probs.split(ends), strict=True):
            gold = torch.tensor([*targets[index], EOS])
            scored[index] = distribution.gather(1, gold[:, None])[:, 0].tolist()
    return scored


@torch.inference_mode()
def _forced(loaded: LoadedModel, rows: Sequence[list[int]], targets: Sequence[list[int]]) -> Tensor:
    """ln P of every piece after BOS and after each target piece, all targets end to end, [N, V]."""
    model, device = loaded.model, torch.device("cpu")
    source = pack([[*row, EOS] for row in rows], device=device)
    target = pack([[BOS, *row] for row in targets], device=device)
    log_probs: Tensor = model.logits(model.decode(target, model.encode(source), source)).log_softmax(-1)
    return log_probs


def _is_tie(loaded: LoadedModel, row: list[int], ours: Sequence[int], theirs: Sequence[str]) -> bool:
    """Whether the first pieces in which two greedy translations differ are as good as equally likely for us."""
    pieces = [*loaded.target.pieces(ours), ""]
    others = [*theirs, ""]
    same = next((place for place, pair in enumerate(zip(pieces, others, strict=False)) if pair[0] != pair[1]), 0)
    distribution = _forced(loaded, [row], [list(ours[:same])])[-1]
    first = distribution[ours[same]] if same < len(ours) else distribution[EOS]
    second = distribution[_id_of(loaded.target, others[same])] if same < len(theirs) else distribution[EOS]
    return abs(float(first - second)) <= TOLERANCE


def _id_of(tokenizer: Tokenizer, piece: str) -> int:
    return tokenizer.pieces(range(tokenizer.vocab_size)).index(piece)


def _fits(row: Sequence[int], loaded: LoadedModel) -> bool:
    longest = min(_LONGEST_LINE, loaded.model.config.max_positions // 2)
    return UNK not in row and 0 < len(row) <= longest


def _refusal(engine: Engine, what: str) -> ModelError:
    return ModelError(f"{engine.name} is not the same model as ours: it {what}", hint=_REPORT)
