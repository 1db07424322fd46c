"""CTranslate2 as an engine: its search on a CPU, our limits and our penalty."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from nmt_cli.bundle.config import CONFIG, DAMAGED, load_config
from nmt_cli.bundle.kinds import require_model
from nmt_cli.bundle.manifest import verify
from nmt_cli.decoding.ctranslate2_batches import WIDE, is_wide, plan
from nmt_cli.decoding.ctranslate2_copy import converted
from nmt_cli.decoding.ctranslate2_model import library
from nmt_cli.decoding.engine import Details, EngineName
from nmt_cli.decoding.hypotheses import Hypothesis
from nmt_cli.decoding.penalties import length_penalty, output_limit
from nmt_cli.decoding.scorer import NEVER_GENERATED
from nmt_cli.decoding.search import Source
from nmt_cli.devices import num_cpus
from nmt_cli.errors import ModelError, UsageError
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import Tokenizer

# CTranslate2 ends a search after so many times the beam of finished hypotheses, while the best may be yet to come:
# with 1 that was so for 17 of 500 sentences, with 2 for none.
PATIENCE = 2
# Below so many extra tokens, limits cut so many that sentences of one limit are best searched together at once.
_TIGHT = 5
_NEVER = frozenset(NEVER_GENERATED)
_TAKE_TORCH = "leave it out, or take --engine torch"
Product = Literal["fp32", "int8"]


class CTranslate2Engine:
    """One model on the CPU, in float32 or int8, with a worker of one thread for each CPU.

    Its n-best lists are ranked anew with our penalty. What it has finished first is not always what our search has, so
    that now and then a translation is another one; log-probabilities of the same translation agree.
    """

    name: EngineName = "ctranslate2"
    device = "cpu"

    def __init__(self, path: Path, *, precision: Product) -> None:
        """Of a model directory, converted at first use into a hidden folder beside it, or into a temporary one.

        UsageError where CTranslate2 is not installed; ModelError for a model that it cannot express.
        """
        self.precision: str = precision
        self.narrow = WIDE if precision == "int8" else 0
        ctranslate2 = library()
        require_model(path)
        verify(path, error=ModelError, hint=DAMAGED, hashed=(CONFIG, "source.spm", "target.spm"))
        config = load_config(path)
        self.decoding = config.recipe.decoding
        self.source, self.target = Tokenizer.load(path / "source.spm"), Tokenizer.load(path / "target.spm")
        self.max_positions = config.recipe.model.max_positions
        self.longest_source = config.longest_source
        self._ids = {piece: number for number, piece in enumerate(self.target.pieces(range(self.target.vocab_size)))}
        folder, self._temporary = converted(path, version=ctranslate2.__version__)
        compute_type = {"fp32": "float32", "int8": "int8"}[precision]
        threads = min(num_cpus(), torch.get_num_threads())
        self._translator = ctranslate2.Translator(
            str(folder), device="cpu", compute_type=compute_type, inter_threads=threads, intra_threads=1
        )

    def check(self, config: DecodingConfig) -> None:
        """Raise UsageError for draws, whose random numbers hang on how lines are batched, and for a minimum in a beam.

        There CTranslate2 shares out the probability of an end that is forbidden among the pieces that could follow, so
        that a hypothesis gains by being likely to end.
        """
        if config.samples:
            raise UsageError(
                "the engine ctranslate2 draws no samples: its random numbers would depend on the batch",
                where="--samples",
                hint=_TAKE_TORCH,
            )
        if config.min_tokens and config.beam > 1:
            raise UsageError(
                "the engine ctranslate2 has no minimum length in a beam search: what is likely to end would win in it",
                where="--min-tokens",
                hint="add --beam 1 or --min-tokens 0, or take --engine torch",
            )

    def search(
        self, sources: Sequence[Source], *, config: DecodingConfig, nbest: int, details: Details
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, in input order; of one without pieces the empty one."""
        asked = [
            _Asked(
                self.source.pieces(source.row),
                self.target.pieces(source.prefix),
                self._limit(source, config=config),
            )
            for source in sources
        ]
        found: list[list[Hypothesis]] = [[Hypothesis([], 0.0, 0.0)] for _ in sources]
        searched = [index for index, one in enumerate(asked) if one.pieces]

        def alone(indices: list[int]) -> list[list[int]]:
            """Batches of sentences with one limit each."""
            limits = sorted({asked[index].limit for index in indices})
            same = [[index for index in indices if asked[index].limit == limit] for limit in limits]
            return [batch for chosen in same for batch in self._planned(chosen, asked, config=config)]

        is_tight = config.max_extra_tokens < _TIGHT
        planned = alone(searched) if is_tight else self._planned(searched, asked, config=config)
        cut, special = self._find(asked, planned, found, config=config)
        _, more = self._find(asked, alone(cut), found, config=config)
        strictly = sorted(special + more)
        self._find(asked, alone(strictly), found, config=config, is_strict=True)
        if not (config.min_tokens or details.piece_log_probs or any(one.prefix for one in asked)):
            # What is suppressed, or forced, has the probabilities of the rest renormalised.
            inexact = strictly
        else:
            inexact = searched
        self._score(inexact, asked, found, config=config)
        found = [ranked[:nbest] for ranked in found]
        if details.alignment:
            self._align(searched, asked, found, config=config)
        return found

    def _limit(self, source: Source, *, config: DecodingConfig) -> int:
        limit = output_limit(len(source.row), config=config, max_positions=self.max_positions)
        return min(max(limit, len(source.prefix) + 1), self.max_positions)

    def _planned(self, indices: Sequence[int], asked: Sequence[_Asked], *, config: DecodingConfig) -> list[list[int]]:
        """Batches of sentences of similar length."""
        sequences = [[asked[index].pieces] for index in indices]
        batches = self._plan([asked[index].length for index in indices], sequences, config=config)
        return [[indices[place] for place in batch] for batch in batches]

    def _plan(
        self, lengths: Sequence[int], sequences: Sequence[Sequence[list[str]]], *, config: DecodingConfig
    ) -> list[list[int]]:
        """Places of what is computed together, of which all `sequences` are of the same widths in int8."""
        is_int8 = self.precision == "int8"
        widths = [tuple(is_wide(len(pieces)) for pieces in some if is_int8) for some in sequences]
        return plan(lengths, widths=widths, config=config, workers=self._translator.num_translators)

    def _on_pairs(
        self, pairs: Sequence[tuple[_Asked, Hypothesis]], work: Callable[..., list[Any]], *, config: DecodingConfig
    ) -> list[Any]:
        """What `work` of CTranslate2 gives for the pieces of each source and hypothesis, in batches of like lengths."""
        texts = [[one.pieces, self.target.pieces(hypothesis.ids)] for one, hypothesis in pairs]
        lengths = [max(len(source), len(target)) for source, target in texts]
        running: dict[int, Any] = {}
        for batch in self._plan(lengths, texts, config=config):
            sources, targets = zip(*(texts[place] for place in batch), strict=True)
            waiting = work(
                list(sources), list(targets), max_input_length=0, max_batch_size=len(batch), asynchronous=True
            )
            running |= zip(batch, waiting, strict=True)
        return [running[place].result() for place in range(len(pairs))]

    def _find(
        self,
        asked: Sequence[_Asked],
        batches: Sequence[list[int]],
        found: list[list[Hypothesis]],
        *,
        config: DecodingConfig,
        is_strict: bool = False,
    ) -> tuple[list[int], list[int]]:
        """Put into `found` what each sentence of the batches gets; which are to be searched again instead.

        First those that their own limit would have cut, then those with pieces that are never generated.
        """
        cut, special = [], []
        for batch, results in self._translate(asked, batches, config=config, is_strict=is_strict):
            longest = max(asked[index].limit for index in batch)
            for index, result in zip(batch, results, strict=True):
                limit = asked[index].limit
                rows = [list(map(self._ids.__getitem__, pieces)) for pieces in result.hypotheses]
                if longest > limit and any(len(ids) >= limit for ids in rows):
                    cut.append(index)
                elif not is_strict and not all(map(_NEVER.isdisjoint, rows)):
                    special.append(index)
                else:
                    found[index] = _ranked(rows, result.scores, limit=limit, config=config)
        return cut, special

    def _translate(
        self, asked: Sequence[_Asked], batches: Sequence[list[int]], *, config: DecodingConfig, is_strict: bool = False
    ) -> Iterator[tuple[list[int], list[Any]]]:
        """The results of each batch, searched up to the longest limit in it; `is_strict` suppresses special pieces.

        All batches are in CTranslate2's queue at once, so that no worker waits for another.
        """
        running = []
        for batch in batches:
            prefixes = [asked[index].prefix for index in batch]
            longest = max(asked[index].limit for index in batch)
            options: dict[str, Any] = {
                "beam_size": config.beam,
                # With patience it finishes more hypotheses than the beam, of which our penalty may prefer any.
                "num_hypotheses": PATIENCE * config.beam if config.beam > 1 else 1,
                "patience": PATIENCE if config.beam > 1 else 1,
                "length_penalty": exponent(config),
                "return_scores": True,
                "min_decoding_length": min(config.min_tokens, longest),
                "max_decoding_length": longest,
                "max_input_length": 0,
                "max_batch_size": len(batch),
                "asynchronous": True,
            }
            if any(prefixes):
                options["target_prefix"] = prefixes
            if is_strict:
                options["suppress_sequences"] = [[piece] for piece in self.target.pieces(NEVER_GENERATED)]
            running.append(self._translator.translate_batch([asked[index].pieces for index in batch], **options))
        for batch, results in zip(batches, running, strict=True):
            yield batch, [waiting.result() for waiting in results]

    def _score(
        self, indices: Sequence[int], asked: Sequence[_Asked], found: list[list[Hypothesis]], *, config: DecodingConfig
    ) -> None:
        """Give hypotheses the ln P of each piece by forced scoring, and rank them by it."""
        pairs = [(asked[index], hypothesis) for index in indices for hypothesis in found[index]]
        scored = iter(self._on_pairs(pairs, self._translator.score_batch, config=config))
        for index in indices:
            ranked = []
            for hypothesis in found[index]:
                length = min(len(hypothesis.ids) + 1, asked[index].limit)
                terms = list(map(float, next(scored).log_probs))[:length]
                score = sum(terms) / length_penalty(length, config=config)
                ranked.append(Hypothesis(hypothesis.ids, sum(terms), score, terms))
            found[index] = sorted(ranked, key=lambda one: -one.score)

    def _align(
        self, indices: Sequence[int], asked: Sequence[_Asked], found: list[list[Hypothesis]], *, config: DecodingConfig
    ) -> None:
        """Give hypotheses the place of the source piece with the most attention, for each of their pieces.

        By a forced greedy pass: what its beam search returns for the first piece is another sentence's of the batch.
        """
        pairs = [(asked[index], hypothesis) for index in indices for hypothesis in found[index] if hypothesis.ids]
        longest = max((len(hypothesis.ids) for _, hypothesis in pairs), default=0)
        options = {"beam_size": 1, "return_attention": True, "max_decoding_length": 1 + longest}
        placed = iter(self._on_pairs(pairs, partial(self._translator.translate_batch, **options), config=config))
        aligned: dict[int, list[Hypothesis]] = {index: [] for index in indices}
        for index in indices:
            for hypothesis in found[index]:
                weights = next(placed).attention[0][: len(hypothesis.ids)] if hypothesis.ids else []
                places = [max(range(len(row)), key=row.__getitem__) for row in weights]
                aligned[index].append(replace(hypothesis, alignment=places))
        for index in indices:
            found[index] = aligned[index]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A source and its prefix in pieces, and the most tokens that its translation gets."""

    pieces: list[str]
    prefix: list[str]
    limit: int

    @property
    def length(self) -> int:
        """All pieces that are given."""
        return len(self.pieces) + len(self.prefix)


def _ranked(
    rows: Sequence[list[int]], scores: Sequence[float], *, limit: int, config: DecodingConfig
) -> list[Hypothesis]:
    """CTranslate2's hypotheses and their scores by our penalty, best first."""
    ranked = []
    for ids, normalised in zip(rows, scores, strict=True):
        length = max(1, min(len(ids) + 1, limit))
        log_prob = float(normalised) * length ** exponent(config)
        ranked.append(Hypothesis(ids, log_prob, log_prob / length_penalty(length, config=config)))
    return sorted(ranked, key=lambda one: -one.score)


def exponent(config: DecodingConfig) -> float:
    """The power of the length by which CTranslate2 shall choose which of what it has finished it returns.

    Ours of ((5 + length) / 6) to the same power is near it, and near 1 is no penalty; 0 would be another way to end.
    """
    return max(config.length_penalty if config.length_penalty_form != "none" else 0.0, 1e-3)
