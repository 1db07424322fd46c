"""CTranslate2 as an engine: its search on a CPU, with our limits, our penalty and our batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from nmt_cli.artifacts.directory_kinds import check_is_model
from nmt_cli.artifacts.manifest import CONFIG, DAMAGED_HINT, verify_files
from nmt_cli.artifacts.model_directory import load_saved_config, load_tokenizer
from nmt_cli.decoding.attention_maps import aligned_pieces
from nmt_cli.decoding.batching import plan_for_workers
from nmt_cli.decoding.ctranslate2.model import converted_model, import_ctranslate2, unsupported_setting
from nmt_cli.decoding.search.ensemble import NEVER_GENERATED
from nmt_cli.decoding.search.hypotheses import (
    EMPTY_HYPOTHESIS,
    Details,
    Hypothesis,
    SourceSentence,
    SymbolIds,
    length_penalty,
    max_output_tokens,
    not_finite_error,
)
from nmt_cli.decoding.search.repetition import NGRAM_WITHOUT_LOOPS
from nmt_cli.devices import num_cpus
from nmt_cli.recipe.schema import DecodingConfig

# CTranslate2 ends a search when PATIENCE * beam hypotheses have finished, even if a better one is still open. With 1
# this happened in 17 of 500 sentences, with 2 in none.
PATIENCE = 2
# Source tokens times beam beyond which CTranslate2 gets slower on a CPU (docs/design/cpu-search.md#batches).
_MAX_TOKENS = 4096
# Larger batches are not faster, and smaller ones are not made for idle workers.
_MAX_SENTENCES, _MIN_SENTENCES = 64, 16
# The cost of a step, in sentences: 10 to 16 (docs/design/cpu-search.md#batches).
_STEP_COST = 16
# Attention to fewer columns, with EOS and padding, is rounded differently, which may change a translation in int8.
# So shorter sentences are not searched together with longer ones.
_MIN_WIDE_TOKENS = 16
CTranslate2Precision = Literal["fp32", "int8"]


class CTranslate2Engine:
    """One model on the CPU, in float32 or int8, with a worker of one thread per CPU.

    Its n-best lists are ranked again with our penalty. Its search does not always finish the same hypotheses as ours,
    so a few translations differ; log-probabilities of the same translation agree.
    """

    name = "ctranslate2"
    device = "cpu"

    def __init__(self, path: Path, *, precision: CTranslate2Precision) -> None:
        """Open a model directory, converted at first use into a hidden folder beside it, or a temporary one.

        UsageError if CTranslate2 is not installed; ModelError if it does not support the model.
        """
        self.precision: str = precision
        self._min_wide_tokens = _MIN_WIDE_TOKENS if precision == "int8" else 0
        ctranslate2 = import_ctranslate2()
        check_is_model(path)
        verify_files(path, hint=DAMAGED_HINT, names_to_hash=(CONFIG, "source.spm", "target.spm"))
        config = load_saved_config(path)
        self.directions = config.languages
        self.decoding = config.recipe.decoding
        self.source = load_tokenizer(path / "source.spm", num_pieces=config.vocabulary.source)
        self.target = load_tokenizer(path / "target.spm", num_pieces=config.vocabulary.target)
        self.max_positions = config.recipe.model.max_positions
        self.trained_lines = config.trained_lines
        self._is_guided = config.guided_layer is not None
        self._ids = {piece: number for number, piece in enumerate(self.target.pieces(range(self.target.vocab_size)))}
        compute_type = {"fp32": "float32", "int8": "int8"}[precision]
        threads = min(num_cpus(), torch.get_num_threads())
        with converted_model(path, version=ctranslate2.__version__) as folder:
            self._translator = ctranslate2.Translator(
                str(folder), device="cpu", compute_type=compute_type, inter_threads=threads, intra_threads=1
            )

    def search(
        self, sources: Sequence[SourceSentence], *, config: DecodingConfig, nbest: int, details: Details
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, in input order; a source without pieces has the empty one.

        The passes build on each other: a search within the limits; a second search of sentences with pieces that are
        never generated; exact log-probabilities, which rank anew; and, of the best that are left, what `details` asks.
        UsageError if CTranslate2 does not support these settings.
        """
        if (error := unsupported_setting(config)) is not None:
            raise error
        sentences = [
            _Sentence(
                self.source.pieces([*source.symbols.source, *source.ids] if source.ids else []),
                self.target.pieces([*source.symbols.target, *source.prefix]),
                source.symbols,
                max_output_tokens(source, config=config, max_positions=self.max_positions),
            )
            for source in sources
        ]
        searched = [sentence for sentence in sentences if sentence.pieces]
        self._search_within_limits(searched, config=config)
        special = [sentence for sentence in searched if sentence.has_special_pieces]
        self._search_groups(_group_by_limit(special), config=config, suppressed=NEVER_GENERATED)
        # CTranslate2 renormalises the probabilities if pieces are suppressed or forced.
        is_watched = config.no_repeat_ngram or config.stop_loops
        is_inexact = config.min_tokens or is_watched or any(sentence.forced for sentence in sentences)
        self._score_again(searched if is_inexact else special, config=config)
        for sentence in searched:
            sentence.hypotheses = sentence.hypotheses[:nbest]
        if details.piece_log_probs:
            self._score_again([s for s in searched if not s.hypotheses[0].piece_log_probs], config=config)
        nbest_lists = [sentence.hypotheses for sentence in sentences]
        return self.align(sources, nbest_lists, config=config) if details.alignment else nbest_lists

    def _search_within_limits(self, sentences: Sequence[_Sentence], *, config: DecodingConfig) -> None:
        """Search each sentence up to its own limit.

        CTranslate2 takes one limit per batch, the largest of its sentences. Few hypotheses grow beyond the limit of
        their own sentence. Only these sentences are searched again, with sentences of the same limit.
        """
        self._search_groups([sentences], config=config, suppressed=())
        too_long = [sentence for sentence in sentences if sentence.exceeds_limit]
        self._search_groups(_group_by_limit(too_long), config=config, suppressed=())

    def _search_groups(
        self, groups: Sequence[Sequence[_Sentence]], *, config: DecodingConfig, suppressed: Sequence[int]
    ) -> None:
        """Search without the `suppressed` ids, in batches of sentences of one group.

        All batches are in CTranslate2's queue at once, so that no worker waits for another.
        """
        batches = [batch for group in groups for batch in self._batches(group, config=config)]
        pending = [self._submit(batch, config=config, suppressed=suppressed) for batch in batches]
        for batch, futures in zip(batches, pending, strict=True):
            for sentence, future in zip(batch, futures, strict=True):
                sentence.hypotheses = self._rank(future.result(), sentence, config=config)

    def _submit(self, batch: Sequence[_Sentence], *, config: DecodingConfig, suppressed: Sequence[int]) -> list[Any]:
        """Put a batch into CTranslate2's queue, and note its limit; returns a future result for each sentence."""
        longest = max(sentence.limit for sentence in batch)
        for sentence in batch:
            sentence.batch_limit = longest
        num_symbols = len(batch[0].symbols.target)
        ngrams = (config.no_repeat_ngram, NGRAM_WITHOUT_LOOPS if config.stop_loops else 0)
        options: dict[str, Any] = {
            "beam_size": config.beam,
            # With patience it finishes more hypotheses than the beam, of which our penalty may prefer any.
            "num_hypotheses": PATIENCE * config.beam if config.beam > 1 else 1,
            "patience": PATIENCE if config.beam > 1 else 1,
            "length_penalty": length_exponent(config),
            "return_scores": True,
            "no_repeat_ngram_size": min(filter(None, ngrams), default=0),
            "min_decoding_length": min(config.min_tokens, longest) + num_symbols,
            "max_decoding_length": longest + num_symbols,
            "max_input_length": 0,
            "max_batch_size": len(batch),
            "asynchronous": True,
        }
        prefixes = [sentence.forced for sentence in batch]
        if any(prefixes):
            options["target_prefix"] = prefixes
        if suppressed:
            options["suppress_sequences"] = [[piece] for piece in self.target.pieces(suppressed)]
        futures: list[Any] = self._translator.translate_batch([sentence.pieces for sentence in batch], **options)
        return futures

    def _rank(self, result: Any, sentence: _Sentence, *, config: DecodingConfig) -> list[Hypothesis]:
        """CTranslate2's hypotheses with scores by our penalty, best first; ModelError if a score is NaN."""
        if any(map(math.isnan, result.scores)):
            raise not_finite_error()
        hypotheses = []
        for pieces, score in zip(result.hypotheses, result.scores, strict=True):
            ids = [self._ids[piece] for piece in pieces[len(sentence.symbols.target) :]]
            length = min(len(ids) + 1, sentence.limit)
            log_prob = float(score) * length ** length_exponent(config)
            hypotheses.append(Hypothesis(ids, log_prob, log_prob / length_penalty(length, config=config)))
        return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)

    def _batches(self, sentences: Sequence[_Sentence], *, config: DecodingConfig) -> list[list[_Sentence]]:
        """Batches of sentences of similar length."""
        lengths = [len(sentence.pieces) + len(sentence.forced) for sentence in sentences]
        batches = self._plan(lengths, [[len(sentence.pieces)] for sentence in sentences], config=config)
        return [[sentences[index] for index in batch] for batch in batches]

    def _plan(
        self, lengths: Sequence[int], attended: Sequence[Sequence[int]], *, config: DecodingConfig
    ) -> list[list[int]]:
        """Batches of sentences of similar length by their indices.

        `attended` are the numbers of pieces that attention has for columns, of one side or of both. In int8, a batch
        has at least `_min_wide_tokens` columns in all of its sentences or in none of them.
        """
        groups: dict[tuple[bool, ...], list[int]] = {}
        for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
            is_wide = tuple(pieces + 1 >= self._min_wide_tokens for pieces in attended[index])  # EOS is a token
            groups.setdefault(is_wide, []).append(index)
        max_tokens = min(config.batch_tokens, _MAX_TOKENS) // config.beam
        batches = []
        for _, group in sorted(groups.items(), reverse=True):
            planned = plan_for_workers(
                # Short sentences count as longer, so that no batch has more than `_MAX_SENTENCES`.
                [max(lengths[index], max_tokens // _MAX_SENTENCES - 1) for index in group],
                max_tokens=max_tokens,
                workers=self._translator.num_translators,
                step_cost=_STEP_COST,
                min_sentences=_MIN_SENTENCES,
            )
            batches += [[group[place] for place in batch] for batch in planned]
        return batches

    def _run_on_pairs(
        self, method: Callable[..., list[Any]], pairs: Sequence[tuple[list[str], list[int]]], *, config: DecodingConfig
    ) -> Iterator[Any]:
        """The result of a method of CTranslate2 for each pair, computed in batches of similar length.

        The method takes sources and targets: `score_batch` scores these, and `translate_batch` is forced to begin so.
        """
        texts = [[source, self.target.pieces(ids)] for source, ids in pairs]
        sizes = [[len(source), len(target)] for source, target in texts]
        futures: dict[int, Any] = {}
        for batch in self._plan(list(map(max, sizes)), sizes, config=config):
            sources, targets = zip(*(texts[index] for index in batch), strict=True)
            futures_of_batch = method(
                list(sources), list(targets), max_input_length=0, max_batch_size=len(batch), asynchronous=True
            )
            futures |= zip(batch, futures_of_batch, strict=True)
        return (futures[index].result() for index in range(len(pairs)))

    def _score_again(self, sentences: Sequence[_Sentence], *, config: DecodingConfig) -> None:
        """Replace log-probabilities by results of forced decoding, piece by piece, and rank the hypotheses again."""
        pairs = [
            (sentence.pieces, [*sentence.symbols.target, *hypothesis.ids])
            for sentence in sentences
            for hypothesis in sentence.hypotheses
        ]
        results = self._run_on_pairs(self._translator.score_batch, pairs, config=config)
        for sentence in sentences:
            rescored = []
            for hypothesis in sentence.hypotheses:
                length = min(len(hypothesis.ids) + 1, sentence.limit)
                log_probs = list(map(float, next(results).log_probs))[len(sentence.symbols.target) :][:length]
                num_given = len(sentence.forced) - len(sentence.symbols.target)
                score = sum(log_probs[num_given:]) / length_penalty(length, config=config)
                rescored.append(Hypothesis(hypothesis.ids, sum(log_probs), score, log_probs))
            sentence.hypotheses = sorted(rescored, key=lambda hypothesis: -hypothesis.score)

    def align(
        self, sources: Sequence[SourceSentence], nbest_lists: Sequence[Sequence[Hypothesis]], *, config: DecodingConfig
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each source with their alignments.

        This takes a forced greedy pass, because CTranslate2's beam search returns the attention of another sentence of
        the batch for the first piece.
        """
        pairs = [
            (self.source.pieces([*source.symbols.source, *source.ids]), [*source.symbols.target, *hypothesis.ids])
            for source, ranked in zip(sources, nbest_lists, strict=True)
            for hypothesis in ranked
            if hypothesis.ids
        ]
        longest = max((len(ids) for _, ids in pairs), default=0)
        method = partial(
            self._translator.translate_batch,
            beam_size=1,
            return_attention=True,
            return_end_token=True,  # with the attention of the step that reads the last piece
            max_decoding_length=1 + longest,
        )
        results = self._run_on_pairs(method, pairs, config=config)

        def aligned(source: SourceSentence, hypothesis: Hypothesis) -> Hypothesis:
            if not hypothesis.ids:
                return hypothesis
            # A guided head aligns a piece where it is read.
            first_row = len(source.symbols.target) + int(self._is_guided)
            weights = torch.tensor(next(results).attention[0])[first_row:][: len(hypothesis.ids)]
            weights = weights[:, len(source.symbols.source) :]
            return replace(hypothesis, alignment=aligned_pieces(weights, is_guided=self._is_guided))

        return [
            [aligned(source, hypothesis) for hypothesis in ranked]
            for source, ranked in zip(sources, nbest_lists, strict=True)
        ]


@dataclass(slots=True)
class _Sentence:
    """A source in pieces with its symbols, the limit of tokens of its translation, and its best hypotheses.

    `forced` are the pieces that its translation begins with, with the symbols of the target.
    """

    pieces: list[str]
    forced: list[str]
    symbols: SymbolIds
    limit: int
    # The limit of the batch in which it was searched.
    batch_limit: int = 0
    hypotheses: list[Hypothesis] = field(default_factory=lambda: [EMPTY_HYPOTHESIS])

    @property
    def exceeds_limit(self) -> bool:
        """Whether a hypothesis grew to the sentence's own limit or beyond it, in a batch with a larger limit."""
        longest = max(len(hypothesis.ids) for hypothesis in self.hypotheses)
        return self.batch_limit > self.limit and longest >= self.limit

    @property
    def has_special_pieces(self) -> bool:
        """Whether a hypothesis has a piece that our search never generates."""
        return any(not set(NEVER_GENERATED).isdisjoint(hypothesis.ids) for hypothesis in self.hypotheses)


def _group_by_limit(sentences: Sequence[_Sentence]) -> list[list[_Sentence]]:
    """The sentences in groups of one limit: CTranslate2 takes one for each batch."""
    limits = sorted({sentence.limit for sentence in sentences})
    return [[sentence for sentence in sentences if sentence.limit == limit] for limit in limits]


def length_exponent(config: DecodingConfig) -> float:
    """The power of the length by which CTranslate2 ranks the hypotheses that it has finished.

    Our penalty, ((5 + length) / 6) to the same power, is similar. A tiny power is no penalty; 0 would end searches by
    another rule.
    """
    return max(config.length_exponent, 1e-3)
