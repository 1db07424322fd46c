"""CTranslate2 as an engine: its search on a CPU, with our limits, our penalty and our batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from nmt_cli.artifacts.directory_kinds import check_is_model
from nmt_cli.artifacts.manifest import CONFIG, DAMAGED_HINT, verify_files
from nmt_cli.artifacts.model_directory import load_saved_config, load_tokenizer
from nmt_cli.decoding.ctranslate2.batches import MIN_WIDE_TOKENS, batches_for_workers, is_wide
from nmt_cli.decoding.ctranslate2.model import converted_model, import_ctranslate2
from nmt_cli.decoding.search.ensemble import NEVER_GENERATED
from nmt_cli.decoding.search.hypotheses import Details, Hypothesis, SourceSentence, length_penalty, max_output_tokens
from nmt_cli.devices import num_cpus
from nmt_cli.errors import ModelError, UsageError
from nmt_cli.recipe.schema import DecodingConfig

# CTranslate2 ends a search when PATIENCE * beam hypotheses have finished, even if a better one is still open. With 1
# this happened in 17 of 500 sentences, with 2 in none.
PATIENCE = 2
# With fewer extra tokens limits cut so many hypotheses that sentences are batched by their limits from the start.
_FEW_EXTRA_TOKENS = 5
_NEVER = frozenset(NEVER_GENERATED)
_TAKE_TORCH = "leave it out, or take `engine: torch`"
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
        self.min_wide_tokens = MIN_WIDE_TOKENS if precision == "int8" else 0
        ctranslate2 = import_ctranslate2()
        check_is_model(path)
        verify_files(path, error=ModelError, hint=DAMAGED_HINT, hashed=(CONFIG, "source.spm", "target.spm"))
        config = load_saved_config(path)
        self.languages = config.languages
        self.decoding = config.recipe.decoding
        self.source = load_tokenizer(path / "source.spm", num_pieces=config.vocabulary.source)
        self.target = load_tokenizer(path / "target.spm", num_pieces=config.vocabulary.target)
        self.max_positions = config.recipe.model.max_positions
        self.longest_source = config.longest_source
        self._ids = {piece: number for number, piece in enumerate(self.target.pieces(range(self.target.vocab_size)))}
        folder, self._temporary = converted_model(path, version=ctranslate2.__version__)
        compute_type = {"fp32": "float32", "int8": "int8"}[precision]
        threads = min(num_cpus(), torch.get_num_threads())
        self._translator = ctranslate2.Translator(
            str(folder), device="cpu", compute_type=compute_type, inter_threads=threads, intra_threads=1
        )

    def check(self, config: DecodingConfig) -> None:
        """Raise UsageError for sampling, and for a minimum length in beam search.

        The random numbers of CTranslate2 depend on the batch. In beam search, CTranslate2 distributes the probability
        of a forbidden end among the other pieces. This favours hypotheses that are likely to end.
        """
        if config.samples:
            raise UsageError(
                "the engine ctranslate2 does not sample: its random numbers would depend on the batch",
                setting="samples",
                hint=_TAKE_TORCH,
            )
        if config.min_tokens and config.beam > 1:
            raise UsageError(
                "the engine ctranslate2 has no minimum length in a beam search: what is likely to end would win in it",
                setting="min_tokens",
                hint="add `beam: 1` or `min_tokens: 0`, or take `engine: torch`",
            )

    def search(
        self, sources: Sequence[SourceSentence], *, config: DecodingConfig, nbest: int, details: Details
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, in input order; a source without pieces has the empty one."""
        sentences = [
            _Sentence(
                self.source.pieces(source.ids),
                self.target.pieces(source.prefix),
                max_output_tokens(source, config=config, max_positions=self.max_positions),
            )
            for source in sources
        ]
        searched = [sentence for sentence in sentences if sentence.pieces]
        # A batch has one limit, the largest of its sentences' limits. Sentences that their own limit would have cut are
        # searched again.
        are_limits_tight = config.max_extra_tokens < _FEW_EXTRA_TOKENS
        cut = self._search_sentences(searched, by_limit=are_limits_tight, config=config)
        self._search_sentences(cut, by_limit=True, config=config)
        # Sentences whose hypotheses have special pieces are searched again without these pieces.
        special = [sentence for sentence in searched if sentence.has_special]
        self._search_sentences(special, by_limit=True, config=config, without_special=True)
        # CTranslate2 renormalises the probabilities if pieces are suppressed or forced.
        is_inexact = config.min_tokens or details.piece_log_probs or any(sentence.prefix for sentence in sentences)
        self._score_again(searched if is_inexact else special, config=config)
        for sentence in searched:
            sentence.hypotheses = sentence.hypotheses[:nbest]
        if details.alignment:
            self._align(searched, config=config)
        return [sentence.hypotheses for sentence in sentences]

    def _batches(
        self, sentences: Sequence[_Sentence], *, by_limit: bool, config: DecodingConfig
    ) -> list[list[_Sentence]]:
        """Batches of sentences of similar length; if they are made `by_limit`, each batch has one limit."""
        batches: list[list[_Sentence]] = []
        groups: list[Sequence[_Sentence]] = [sentences]
        if by_limit:
            limits = sorted({sentence.limit for sentence in sentences})
            groups = [[sentence for sentence in sentences if sentence.limit == limit] for limit in limits]
        for group in groups:
            lengths = [len(sentence.pieces) + len(sentence.prefix) for sentence in group]
            for batch in self._batch_indices(lengths, [[sentence.pieces] for sentence in group], config=config):
                batches.append([group[place] for place in batch])
        return batches

    def _batch_indices(
        self, lengths: Sequence[int], sequences: Sequence[Sequence[list[str]]], *, config: DecodingConfig
    ) -> list[list[int]]:
        """Batches of sentences by their indices; in int8 all `sequences` of a batch have the same widths."""
        is_int8 = self.precision == "int8"
        widths = [tuple(is_wide(len(pieces)) for pieces in some if is_int8) for some in sequences]
        return batches_for_workers(lengths, widths=widths, config=config, workers=self._translator.num_translators)

    def _on_pairs(
        self, pairs: Sequence[tuple[_Sentence, Hypothesis]], work: Callable[..., list[Any]], *, config: DecodingConfig
    ) -> list[Any]:
        """The results of `work`, a method of CTranslate2, for each pair, in batches of similar length."""
        texts = [[sentence.pieces, self.target.pieces(hypothesis.ids)] for sentence, hypothesis in pairs]
        lengths = [max(len(source), len(target)) for source, target in texts]
        running: dict[int, Any] = {}
        for batch in self._batch_indices(lengths, texts, config=config):
            sources, targets = zip(*(texts[place] for place in batch), strict=True)
            waiting = work(
                list(sources), list(targets), max_input_length=0, max_batch_size=len(batch), asynchronous=True
            )
            running |= zip(batch, waiting, strict=True)
        return [running[place].result() for place in range(len(pairs))]

    def _search_sentences(
        self, sentences: Sequence[_Sentence], *, by_limit: bool, config: DecodingConfig, without_special: bool = False
    ) -> list[_Sentence]:
        """Search in batches; returns the sentences to search again, because their own limit would have cut them.

        Unless `without_special`, sentences with pieces that are never generated are marked as special.
        """
        cut = []
        batches = self._batches(sentences, by_limit=by_limit, config=config)
        for batch, results in self._translate(batches, config=config, without_special=without_special):
            longest = max(sentence.limit for sentence in batch)
            for sentence, result in zip(batch, results, strict=True):
                rows = [list(map(self._ids.__getitem__, pieces)) for pieces in result.hypotheses]
                if longest > sentence.limit and any(len(ids) >= sentence.limit for ids in rows):
                    cut.append(sentence)
                elif not without_special and not all(map(_NEVER.isdisjoint, rows)):
                    sentence.has_special = True
                else:
                    sentence.hypotheses = _ranked(rows, result.scores, limit=sentence.limit, config=config)
        return cut

    def _translate(
        self, batches: Sequence[list[_Sentence]], *, config: DecodingConfig, without_special: bool
    ) -> Iterator[tuple[list[_Sentence], list[Any]]]:
        """The results of each batch, searched up to its longest limit, with or `without_special` pieces.

        All batches are in CTranslate2's queue at once, so that no worker waits for another.
        """
        running = []
        for batch in batches:
            prefixes = [sentence.prefix for sentence in batch]
            longest = max(sentence.limit for sentence in batch)
            options: dict[str, Any] = {
                "beam_size": config.beam,
                # With patience it finishes more hypotheses than the beam, of which our penalty may prefer any.
                "num_hypotheses": PATIENCE * config.beam if config.beam > 1 else 1,
                "patience": PATIENCE if config.beam > 1 else 1,
                "length_penalty": length_exponent(config),
                "return_scores": True,
                "min_decoding_length": min(config.min_tokens, longest),
                "max_decoding_length": longest,
                "max_input_length": 0,
                "max_batch_size": len(batch),
                "asynchronous": True,
            }
            if any(prefixes):
                options["target_prefix"] = prefixes
            if without_special:
                options["suppress_sequences"] = [[piece] for piece in self.target.pieces(NEVER_GENERATED)]
            running.append(self._translator.translate_batch([sentence.pieces for sentence in batch], **options))
        for batch, results in zip(batches, running, strict=True):
            yield batch, [waiting.result() for waiting in results]

    def _score_again(self, sentences: Sequence[_Sentence], *, config: DecodingConfig) -> None:
        """Replace log-probabilities by the results of forced scoring, piece by piece, and rank the hypotheses again."""
        pairs = [(sentence, hypothesis) for sentence in sentences for hypothesis in sentence.hypotheses]
        scored = iter(self._on_pairs(pairs, self._translator.score_batch, config=config))
        for sentence in sentences:
            ranked = []
            for hypothesis in sentence.hypotheses:
                length = min(len(hypothesis.ids) + 1, sentence.limit)
                terms = list(map(float, next(scored).log_probs))[:length]
                score = sum(terms) / length_penalty(length, config=config)
                ranked.append(Hypothesis(hypothesis.ids, sum(terms), score, terms))
            sentence.hypotheses = sorted(ranked, key=lambda hypothesis: -hypothesis.score)

    def _align(self, sentences: Sequence[_Sentence], *, config: DecodingConfig) -> None:
        """Add the position of the source piece with the most attention, for each piece of each hypothesis.

        This takes a forced greedy pass, because CTranslate2's beam search returns the attention of another sentence of
        the batch for the first piece.
        """
        pairs = [
            (sentence, hypothesis) for sentence in sentences for hypothesis in sentence.hypotheses if hypothesis.ids
        ]
        longest = max((len(hypothesis.ids) for _, hypothesis in pairs), default=0)
        options = {"beam_size": 1, "return_attention": True, "max_decoding_length": 1 + longest}
        placed = iter(self._on_pairs(pairs, partial(self._translator.translate_batch, **options), config=config))
        for sentence in sentences:
            for rank, hypothesis in enumerate(sentence.hypotheses):
                weights = next(placed).attention[0][: len(hypothesis.ids)] if hypothesis.ids else []
                places = [max(range(len(row)), key=row.__getitem__) for row in weights]
                sentence.hypotheses[rank] = replace(hypothesis, alignment=places)


@dataclass(slots=True)
class _Sentence:
    """A source and its prefix in pieces, the maximum number of tokens of its translation, and its best hypotheses."""

    pieces: list[str]
    prefix: list[str]
    limit: int
    hypotheses: list[Hypothesis] = field(default_factory=lambda: [Hypothesis([], 0.0, 0.0)])
    has_special: bool = False


def _ranked(
    rows: Sequence[list[int]], scores: Sequence[float], *, limit: int, config: DecodingConfig
) -> list[Hypothesis]:
    """CTranslate2's hypotheses with scores by our penalty, best first."""
    ranked = []
    for ids, normalised in zip(rows, scores, strict=True):
        length = max(1, min(len(ids) + 1, limit))
        log_prob = float(normalised) * length ** length_exponent(config)
        ranked.append(Hypothesis(ids, log_prob, log_prob / length_penalty(length, config=config)))
    return sorted(ranked, key=lambda hypothesis: -hypothesis.score)


def length_exponent(config: DecodingConfig) -> float:
    """The power of the length by which CTranslate2 ranks the hypotheses that it has finished.

    Our penalty, ((5 + length) / 6) to the same power, is similar. A tiny power is no penalty; 0 would end searches by
    another rule.
    """
    return max(config.length_penalty if config.length_penalty_form != "none" else 0.0, 1e-3)
