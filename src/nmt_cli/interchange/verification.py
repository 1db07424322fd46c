"""The comparison of another program's copy of a model with ours, on the same lines.

There are three comparisons. First, each program gives log-probabilities to our translations, piece by piece, and to a
pair as long as the model has positions. Second, each program translates by greedy search. These two decide. Third, each
program translates with the model's own beam. Programs end a beam search in different ways, so a few lines may differ
there although the weights are the same.
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

from nmt_cli.artifacts.model_directory import LoadedModel
from nmt_cli.decoding.batching import BatchedSearch
from nmt_cli.decoding.search.hypotheses import SourceSentence, max_output_tokens
from nmt_cli.errors import ModelError
from nmt_cli.model.teacher_forcing import forced_log_probs, next_log_probs
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.pieces import SPACE_MARK
from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK

logger = logging.getLogger(__name__)

NUM_LINES = 100
# Nats per piece. In float32 two programs differ by about 1e-5, because they add in different orders. A wrong
# activation, a wrong position or an epsilon of 1e-3 makes a larger difference.
TOLERANCE = 1e-3
# Largest mean difference in a reduced precision, in nats per piece. int8 in a model of width 32 gives 0.1.
_REDUCED_TOLERANCE = 0.25
_MAX_LINE_PIECES = 64
_MAX_POSITIONS = 1024  # CTranslate2 cuts longer sources when it scores
_MAX_EXTRA_TOKENS = 16  # a translation of made-up lines may have no end
_CPU = torch.device("cpu")
_REPORT = "please report it, with the model's name or its configuration; nothing was written"


class OtherProgram(Protocol):
    """Another program's copy of a model; it takes and gives pieces as text, without BOS and EOS."""

    @property
    def name(self) -> str:
        """The name of the program."""

    def encode(self, lines: Sequence[str]) -> list[list[str]]:
        """The source pieces that the program makes of each line."""

    def log_probs(self, sources: Sequence[list[str]], targets: Sequence[list[str]]) -> list[list[float]]:
        """The log-probability of each target piece and of the EOS after the last piece."""

    def search(self, sources: Sequence[list[str]], *, config: DecodingConfig, longest: int) -> list[list[str]]:
        """The best hypothesis of each source, of at most `longest` pieces."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How closely two programs agree on some lines; differences are nats per piece."""

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
            f"{self.num_lines} lines: log-probabilities per piece differ by at most {self.largest_difference:.1e}, the"
            f" translation is the same for {self.same_greedy} by greedy search{beam if self.num_compared_beam else ''}"
        )


def verify(loaded: LoadedModel, program: OtherProgram, lines: Sequence[str], *, is_reduced: bool) -> Agreement:
    """The agreement of `program` with our float32 model `loaded`, on the CPU, over `lines`.

    Raises ModelError if pieces, log-probabilities or greedy translations differ by more than float32 explains. For
    a reduced precision (`is_reduced`), only the mean difference of the log-probabilities must be small.
    """
    logger.info("comparing with %s on %d lines", program.name, len(lines))
    rows = loaded.source.encode(lines)
    sources = [loaded.source.pieces(row) for row in rows]
    for line, our_pieces, their_pieces in zip(lines, sources, program.encode(lines), strict=True):
        if our_pieces != their_pieces:
            raise _disagreement_error(program, f"makes other pieces of the line {line!r}: {' '.join(their_pieces)}")
    # First comparison: log-probabilities of our greedy translations.
    decoding = loaded.config.recipe.decoding
    max_extra_tokens = min(decoding.max_extra_tokens, _MAX_EXTRA_TOKENS)
    config = DecodingConfig(  # what both programs can do: all other settings stay off
        beam=decoding.beam,
        length_penalty=decoding.length_penalty,
        length_penalty_form="length",
        max_extra_tokens=max_extra_tokens,
    )
    greedy = _OurSearch(loaded, rows, config=config.model_copy(update={"beam": 1}))
    differences = _differences(loaded, program, rows, greedy.hypotheses)
    if not is_reduced:
        full_row, full_target = _pair_of_full_length(loaded, rows, greedy.hypotheses)
        differences = torch.cat([differences, _differences(loaded, program, [full_row], [full_target])])
    largest, mean = float(differences.max()), float(differences.mean())
    is_close = mean <= _REDUCED_TOLERANCE if is_reduced else largest <= TOLERANCE
    if not is_close:  # or if they are NaN
        difference = f"log-probabilities per piece differ by {mean:.2g} in the mean and by {largest:.2g} at most"
        if is_reduced:
            hint = "export in another precision, such as `precision: float32`"
            raise ModelError(f"{program.name} changes the model too much: {difference}", hint=hint)
        raise _disagreement_error(program, f"gives other scores: {difference}")
    # Second comparison: greedy translations. Pieces of equal probability may differ.
    theirs = program.search(sources, config=greedy.config, longest=greedy.longest)
    different = greedy.find_different(theirs)
    for index in sorted(different):
        if not is_reduced and not _is_tie(loaded, rows[index], greedy.hypotheses[index], theirs[index]):
            translation = " ".join(theirs[index])
            raise _disagreement_error(program, f"translates the line {lines[index]!r} otherwise: {translation}")
    # Third comparison, only counted: translations with the model's own beam.
    beam = _OurSearch(loaded, rows, config=config)
    theirs = program.search(sources, config=config, longest=beam.longest)
    compared = beam.find_finished(theirs)
    same_greedy, same_beam = len(lines) - len(different), len(compared - beam.find_different(theirs))
    return Agreement(len(lines), largest, mean, same_greedy, same_beam, len(compared), config.beam)


def usable_lines(lines: Sequence[str], loaded: LoadedModel) -> list[str]:
    """Up to a hundred of `lines`, spread evenly over the lines that are not blank, long or special to a tokenizer."""
    stripped = dict.fromkeys(line.strip() for line in lines)
    usable = [line for line in stripped if line and not any(mark in line for mark in (SPACE_MARK, "<", ">"))]
    longest = min(_MAX_LINE_PIECES, loaded.model.config.max_positions // 2)
    pairs = zip(usable, loaded.source.encode(usable), strict=True)
    usable = [line for line, row in pairs if UNK not in row and 0 < len(row) <= longest]
    num_lines = min(NUM_LINES, len(usable))
    return [usable[index * len(usable) // num_lines] for index in range(num_lines)]


def random_lines(loaded: LoadedModel) -> list[str]:
    """A hundred lines of 2 to 25 random pieces of the source vocabulary; the same model gives the same lines.

    Raises ModelError if the tokenizer makes none of the vocabulary's pieces.
    """
    tokenizer = loaded.source
    special = {PAD, UNK, BOS, EOS, *tokenizer.byte_ids}
    ids = [piece for piece in range(tokenizer.vocab_size) if piece not in special]
    texts = [piece.replace(SPACE_MARK, " ") for piece in tokenizer.pieces(ids)]
    # A vocabulary of two languages has pieces that the source tokenizer never makes.
    texts = [text for piece, text, row in zip(ids, texts, tokenizer.encode(texts), strict=True) if piece in row]
    # Lengths of 2 to 25 pieces. Four times as many lines as needed, because some are not usable.
    random = Random(1)
    lines = ["".join(random.choices(texts, k=2 + number % 24)) for number in range(4 * NUM_LINES if texts else 0)]
    usable = usable_lines(lines, loaded)
    if not usable:
        message = "no line of text can be spelt in the model's source pieces"
        raise ModelError(
            message, where="source.spm", hint="check that the tokenizer and the vocabulary belong together"
        )
    return usable


class _OurSearch:
    """Our own search over all sources, and its comparison with another program's."""

    def __init__(self, loaded: LoadedModel, rows: Sequence[Sequence[int]], *, config: DecodingConfig) -> None:
        self.config = config
        self._target = loaded.target
        positions = loaded.model.config.max_positions
        sources = [SourceSentence(row) for row in rows]
        limits = (max_output_tokens(source, config=config, max_positions=positions) for source in sources)
        self._limits = [min(limit, positions - 1) for limit in limits]  # so that EOS has a position in every program
        self.longest = max(self._limits)  # the largest number of pieces that any source may get
        search = BatchedSearch([loaded.model], device=_CPU, cuda_search=None)
        best = search.search(sources, config=config, nbest=1)
        self.hypotheses = [ranked[0].ids for ranked in best]

    def find_different(self, theirs: Sequence[list[str]]) -> set[int]:
        """The indices of the hypotheses of another program that differ from ours in a piece before our limit.

        The limit of a greedy search never changes the pieces before it. The limit of a beam search may.
        """
        triples = enumerate(zip(self.hypotheses, theirs, self._limits, strict=True))
        return {index for index, (ids, pieces, limit) in triples if self._target.pieces(ids[:limit]) != pieces[:limit]}

    def find_finished(self, theirs: Sequence[list[str]]) -> set[int]:
        """The indices of the hypotheses that ended before the limit in both programs.

        Programs cut long hypotheses differently, so the others are not compared.
        """
        triples = enumerate(zip(self.hypotheses, theirs, self._limits, strict=True))
        return {index for index, (ids, pieces, limit) in triples if max(len(ids), len(pieces)) < limit}


def _differences(
    loaded: LoadedModel, program: OtherProgram, rows: Sequence[list[int]], targets: Sequence[list[int]]
) -> Tensor:
    """The absolute difference of the log-probabilities of each piece and each end of `targets`, one after the other."""
    longest = loaded.model.config.max_positions - 1  # the end takes one more position
    targets = [ids[:longest] for ids in targets]
    sources, gold = ([[*ids, EOS] for ids in side] for side in (rows, targets))
    ours = forced_log_probs(loaded.model, sources, gold, bos=BOS, device=_CPU)
    theirs = program.log_probs(
        [loaded.source.pieces(ids) for ids in rows], [loaded.target.pieces(ids) for ids in targets]
    )
    for our_row, their_row in zip(ours, theirs, strict=True):
        if len(our_row) != len(their_row):
            raise _disagreement_error(program, f"scores {len(their_row)} pieces where there are {len(our_row)}")
    our_values, their_values = (torch.tensor([value for row in side for value in row]) for side in (ours, theirs))
    return (our_values - their_values).abs()


def _pair_of_full_length(
    loaded: LoadedModel, rows: Sequence[list[int]], targets: Sequence[list[int]]
) -> tuple[list[int], list[int]]:
    """A source and a target with a piece at each position of the model, made of the given pieces over and over."""
    longest = min(loaded.model.config.max_positions, _MAX_POSITIONS) - 1
    pieces = [piece for ids in targets for piece in ids] or [loaded.target.vocab_size - 1]
    source = chain.from_iterable(cycle(rows))
    return list(islice(source, longest)), list(islice(cycle(pieces), longest))


def _is_tie(loaded: LoadedModel, row: list[int], ours: Sequence[int], theirs: Sequence[str]) -> bool:
    """True if two greedy translations first differ in pieces that our model finds about equally likely."""
    pieces = loaded.target.pieces(range(loaded.target.vocab_size))
    our_ids, their_ids = [*ours, EOS], [*(pieces.index(piece) for piece in theirs), EOS]
    pairs = enumerate(zip(our_ids, their_ids, strict=False))
    position = next((position for position, (our_id, their_id) in pairs if our_id != their_id), 0)
    log_probs = next_log_probs(loaded.model, [*row, EOS], [BOS, *ours[:position]], device=_CPU)
    return abs(float(log_probs[our_ids[position]] - log_probs[their_ids[position]])) <= TOLERANCE


def _disagreement_error(program: OtherProgram, difference: str) -> ModelError:
    return ModelError(f"{program.name} is not the same model as ours: it {difference}", hint=_REPORT)
