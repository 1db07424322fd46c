"""The comparison of another program's copy of a model with ours, on the same lines.

Both must make the same pieces of each line, and give the same log-probabilities to our translations, piece by piece.
The lines of a model of several directions are translated into one language after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import torch
from torch import Tensor

from nmt_cli.artifacts.model_directory import LoadedModel
from nmt_cli.decoding.search.hypotheses import SourceSentence, SymbolIds
from nmt_cli.decoding.search.searcher import Searcher
from nmt_cli.errors import ModelError
from nmt_cli.model.teacher_forcing import forced_log_probs
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
_MAX_EXTRA_TOKENS = 16  # a translation of made-up lines may have no end
_CPU = torch.device("cpu")
_REPORT = "please report it, with the model's name or its configuration; nothing was written"


class OtherProgram(Protocol):
    """Another program's copy of a model; it takes and gives pieces as text, without BOS and EOS, but with symbols."""

    @property
    def name(self) -> str:
        """The name of the program."""

    def encode(self, lines: Sequence[str]) -> list[list[str]]:
        """The source pieces that the program makes of each line, without symbols."""

    def log_probs(self, sources: Sequence[list[str]], targets: Sequence[list[str]]) -> list[list[float]]:
        """The log-probability of each target piece and of the EOS after the last piece."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How closely two programs agree on some lines; differences are nats per piece."""

    num_lines: int
    largest_difference: float
    mean_difference: float

    def __str__(self) -> str:
        return f"{self.num_lines} lines: log-probabilities per piece differ by at most {self.largest_difference:.1e}"


def verify(loaded: LoadedModel, program: OtherProgram, lines: Sequence[str], *, is_reduced: bool) -> Agreement:
    """The agreement of `program` with our float32 model `loaded`, on the CPU, over `lines`.

    Raises ModelError if pieces or log-probabilities differ by more than float32 explains. For a reduced precision
    (`is_reduced`), only the mean difference of the log-probabilities must be small.
    """
    logger.info("comparing with %s on %d lines", program.name, len(lines))
    rows = loaded.source.encode(lines)
    for line, row, their_pieces in zip(lines, rows, program.encode(lines), strict=True):
        if loaded.source.pieces(row) != their_pieces:
            raise _disagreement_error(program, f"makes other pieces of the line {line!r}: {' '.join(their_pieces)}")
    sources = _with_symbols(loaded, rows)
    differences = _differences(loaded, program, sources, _greedy_translations(loaded, sources))
    largest, mean = float(differences.max()), float(differences.mean())
    is_close = mean <= _REDUCED_TOLERANCE if is_reduced else largest <= TOLERANCE
    if not is_close:  # or if they are NaN
        difference = f"log-probabilities per piece differ by {mean:.2g} in the mean and by {largest:.2g} at most"
        if is_reduced:
            hint = "export in another precision, such as `precision: float32`"
            raise ModelError(f"{program.name} changes the model too much: {difference}", hint=hint)
        raise _disagreement_error(program, f"gives other scores: {difference}")
    return Agreement(len(lines), largest, mean)


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


def _with_symbols(loaded: LoadedModel, rows: Sequence[Sequence[int]]) -> list[SourceSentence]:
    """The sources, each in a direction; the directions are spread evenly over all of the model."""
    directions = loaded.config.languages
    pairs = directions.offered
    chosen = [pairs[index * len(pairs) // len(rows)] for index in range(len(rows))]
    symbols = [SymbolIds.of(directions.direction(pair), source=loaded.source, target=loaded.target) for pair in chosen]
    return [SourceSentence(row, symbols=of_row) for row, of_row in zip(rows, symbols, strict=True)]


def _greedy_translations(loaded: LoadedModel, sources: Sequence[SourceSentence]) -> list[list[int]]:
    """Our translation of each source, with room for EOS among the positions of every program."""
    longest = loaded.model.config.max_positions - 1 - loaded.config.languages.num_target_symbols
    max_extra_tokens = min(loaded.config.recipe.decoding.max_extra_tokens, _MAX_EXTRA_TOKENS)
    config = DecodingConfig(beam=1, max_extra_tokens=max_extra_tokens)  # all other settings stay off
    searcher = Searcher([loaded.model], device=_CPU)
    best = searcher.search(sources, config=config, nbest=1)
    return [list(ranked[0].ids[:longest]) for ranked in best]


def _differences(
    loaded: LoadedModel, program: OtherProgram, sources: Sequence[SourceSentence], targets: Sequence[list[int]]
) -> Tensor:
    """The absolute difference of the log-probabilities of each piece and each end of `targets`, one after the other."""
    gold = [[*source.symbols.target, *ids] for source, ids in zip(sources, targets, strict=True)]
    ours = forced_log_probs(
        loaded.model, [source.encoder_ids for source in sources], [[*ids, EOS] for ids in gold], bos=BOS, device=_CPU
    )
    theirs = program.log_probs(
        [loaded.source.pieces(source.encoder_ids[:-1]) for source in sources],
        [loaded.target.pieces(ids) for ids in gold],
    )
    num_symbols = loaded.config.languages.num_target_symbols  # which are given, not predicted
    ours, theirs = ([row[num_symbols:] for row in side] for side in (ours, theirs))
    for our_row, their_row in zip(ours, theirs, strict=True):
        if len(our_row) != len(their_row):
            raise _disagreement_error(program, f"scores {len(their_row)} pieces where there are {len(our_row)}")
    our_values, their_values = (torch.tensor([value for row in side for value in row]) for side in (ours, theirs))
    return (our_values - their_values).abs()


def _disagreement_error(program: OtherProgram, difference: str) -> ModelError:
    return ModelError(f"{program.name} is not the same model as ours: it {difference}", hint=_REPORT)
