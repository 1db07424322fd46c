"""Log-probabilities of the next token of each open hypothesis, by one model or by several together.

Shapes: B sentences, W hypotheses per sentence, R = B * W rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nmt_cli.decoding.search.hypotheses import SourceSentence
from nmt_cli.decoding.search.repetition import Repetition
from nmt_cli.model.packing import pack
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK

# UNK is no word: with byte pieces nothing needs it, and without them it is meaningless. The other probabilities are not
# renormalised, so that they agree with forced decoding.
NEVER_GENERATED = (PAD, UNK, BOS)
assert (*NEVER_GENERATED, EOS) == tuple(range(EOS + 1)), "they are the first columns"
# A CPU computes this many rows of logits at a time, to save memory.
_LOGIT_ROWS_PER_BLOCK = 256
# A CPU encodes this many source tokens at a time, to save memory: that of attention grows with the square of the length
# (docs/design/cpu-search.md#batches).
_ENCODER_BATCH_TOKENS = 2048


class Ensemble:
    """One or more models that decode a batch of sources step by step.

    The probability of a token is the mean over the models. Translations begin with their prefixes, do not end before
    `min_tokens` pieces, and repeat only what `config` allows. Log-probabilities are float32 in any precision.

    A piece of a prefix is certain: all hypotheses have it, and over a length penalty an unlikely prefix would favour
    the longest of them. `prefix_log_probs` has its real log-probability.
    """

    def __init__(
        self,
        models: Sequence[Transformer],
        sources: Sequence[SourceSentence],
        *,
        config: DecodingConfig,
        device: torch.device,
    ) -> None:
        sentences = [source.encoder_ids for source in sources]
        whole = pack(sentences, device=device)
        batches = _encoder_batches(sentences) if device.type == "cpu" else [sentences]
        packed = [whole] if len(batches) == 1 else [pack(batch, device=device) for batch in batches]
        self._models = models
        self._caches = [
            model.new_cache(torch.cat([model.encode(batch) for batch in packed]), whole) for model in models
        ]
        self._config = config
        # [B, n]: what the decoder reads before the first token of a hypothesis.
        self._starts = torch.tensor([source.start_ids for source in sources], device=device)
        self.length = 0  # of all hypotheses, in tokens
        # [B, width]: the forced piece at each position, or -1 if any token may follow.
        width = max(len(source.prefix) for source in sources)
        forced = [[*source.prefix, *[-1] * (width - len(source.prefix))] for source in sources]
        self._forced_pieces = torch.tensor(forced, dtype=torch.long, device=device)
        self._sentences = torch.arange(len(sources), device=device)
        # [sources, width]
        self._forced_log_probs = torch.zeros(self._forced_pieces.shape, device=device)
        self._prefix_lengths = [len(source.prefix) for source in sources]
        is_watched = config.no_repeat_ngram or config.stop_loops
        self._repetition = Repetition(sources, config=config, device=device) if is_watched else None

    def start(self) -> Tensor:
        """The id [B] that a hypothesis of each sentence begins with; the models read those before it."""
        *first_columns, ids = self._starts.unbind(dim=1)
        for column in first_columns:
            for model, cache in zip(self._models, self._caches, strict=True):
                model.step(column, cache)
        return ids

    def next_log_probs(self, ids: Tensor) -> Tensor:
        """Advance by ids [R]: natural log-probabilities [R, V] of the next token; -inf for tokens that may not follow.

        With this token hypotheses have `length` tokens.
        """
        by_model = [
            _log_probs(model, model.step(ids, cache)) for model, cache in zip(self._models, self._caches, strict=True)
        ]
        log_probs = by_model[0]
        if len(by_model) > 1:
            log_probs = torch.stack(by_model).logsumexp(dim=0) - math.log(len(by_model))
        self.length += 1
        if self._repetition is not None:
            self._repetition.append(ids)
        if self.length <= self._forced_pieces.size(1):
            return self._force_prefixes(log_probs)
        return self._forbid_tokens(log_probs)

    def select(self, *, rows: Tensor, sentences: Tensor | None) -> None:
        """Continue with `rows` [R'] of the current rows, and with `sentences` [B'] if some have left."""
        for cache in self._caches:
            cache.select(rows=rows, sentences=sentences)
        if sentences is not None:
            self._forced_pieces, self._sentences = self._forced_pieces[sentences], self._sentences[sentences]
        if self._repetition is not None:
            self._repetition.select(rows=rows, sentences=sentences)

    def prefix_log_probs(self) -> list[list[float]]:
        """The log-probabilities of the pieces of each source's prefix."""
        rows = self._forced_log_probs.tolist()
        return [row[:length] for row, length in zip(rows, self._prefix_lengths, strict=True)]

    def _forbid_tokens(self, log_probs: Tensor) -> Tensor:
        """Give -inf, in place, to special pieces, to repetition and, if hypotheses are too short, to EOS."""
        log_probs[:, :EOS] = -torch.inf
        if self.length <= self._config.min_tokens:
            log_probs[:, EOS] = -torch.inf
        if self._repetition is not None:
            self._repetition.forbid(log_probs)
        return log_probs

    def _force_prefixes(self, log_probs: Tensor) -> Tensor:
        """Give 0 to the forced piece and -inf to all others, in place, if a sentence has one at this position."""
        rows_per_sentence = len(log_probs) // len(self._forced_pieces)
        forced = self._forced_pieces[:, self.length - 1, None].repeat_interleave(rows_per_sentence, dim=0)
        is_forced = forced >= 0
        # In a row without a forced piece, the column is 0, PAD. It is -inf, and stays -inf.
        column = forced.clamp(min=0)
        # The first hypothesis of a sentence has its prefix; of a beam, no other has.
        log_prob_of_forced = log_probs.gather(1, column)[::rows_per_sentence, 0]
        self._forced_log_probs[self._sentences, self.length - 1] = log_prob_of_forced
        log_probs = self._forbid_tokens(log_probs).masked_fill_(is_forced, -torch.inf)
        return log_probs.scatter_(1, column, torch.where(is_forced, 0.0, -torch.inf))


def _encoder_batches(sentences: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """The sentences in order, in batches of at most `_ENCODER_BATCH_TOKENS` tokens or of one sentence."""
    batches: list[list[Sequence[int]]] = []
    tokens_left = 0
    for sentence in sentences:
        if len(sentence) > tokens_left:
            batches.append([])
            tokens_left = _ENCODER_BATCH_TOKENS
        batches[-1].append(sentence)
        tokens_left -= len(sentence)
    return batches


def _log_probs(model: Transformer, hidden: Tensor) -> Tensor:
    """Natural log-probabilities [R, V] in float32 after hidden [R, D]."""
    if hidden.device.type != "cpu" or len(hidden) <= _LOGIT_ROWS_PER_BLOCK:
        return model.logits(hidden).log_softmax(dim=-1, dtype=torch.float32)
    log_probs = torch.empty(len(hidden), model.target_vocab)
    for rows, out in zip(hidden.split(_LOGIT_ROWS_PER_BLOCK), log_probs.split(_LOGIT_ROWS_PER_BLOCK), strict=True):
        torch.log_softmax(model.logits(rows), dim=-1, dtype=torch.float32, out=out)
    return log_probs
