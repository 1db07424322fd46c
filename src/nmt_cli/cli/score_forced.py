"""`nmt score --model`: the probability that a model gives to a translation that somebody else made."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nmt_cli.cli.score_texts import Texts
from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.scoring.forced import ForcedScore, Perplexity

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ForcedOptions:
    """The model directory, and how it is to be computed; `batch_tokens` None: as the model's own recipe has it."""

    model: Path
    device: str
    precision: str
    batch_tokens: int | None


def print_forced_scores(texts: Texts, options: ForcedOptions, *, with_tokens: bool, as_object: bool) -> None:
    """A row a line on stdout, or a row a token, and the perplexities in the log; or all of it as one JSON object."""
    if texts.source is None:
        hint = "add the source with -s SRC, or name a test set with -t"
        raise UsageError("--model needs the source text", where="--model", hint=hint)
    if len(texts.references) > 1:
        message = f"--model takes one REF, not {len(texts.references)}"
        raise UsageError(message, where="REF", hint="run it once for each of them")
    from nmt_cli.bundle.directory import model_of_run
    from nmt_cli.bundle.kinds import kind_of
    from nmt_cli.scoring.forced import ForcedDecoder, Perplexity

    if kind_of(options.model) == "run":
        options = replace(options, model=model_of_run(options.model))
        logger.info("model: %s", options.model)
    decoder = ForcedDecoder.from_pretrained(
        options.model, device=options.device, precision=options.precision, batch_tokens=options.batch_tokens
    )
    perplexity = Perplexity()
    scores = _counted(decoder.scores(texts.source.lines, texts.references[0].lines), perplexity)
    if as_object:
        sentences = [_sentence_json(score, with_tokens=with_tokens) for score in scores]
        typer.echo(json.dumps(_as_json(texts, options, perplexity, sentences), indent=2, ensure_ascii=False))
        return
    typer.echo("line\ttoken\tlog_prob" if with_tokens else "line\tlog_prob\ttokens")
    for line, score in enumerate(scores, 1):
        for row in _token_rows(score) if with_tokens else [f"{_shown(score.log_prob)}\t{len(score.pieces)}"]:
            typer.echo(f"{line}\t{row}")
    sys.stdout.flush()
    logger.info("%s", _summary(perplexity))


def _counted(scores: Iterable[ForcedScore], perplexity: Perplexity) -> Iterator[ForcedScore]:
    for score in scores:
        perplexity.add(score)
        yield score


def _token_rows(score: ForcedScore) -> Iterator[str]:
    log_probs = score.piece_log_probs
    for place, piece in enumerate(score.pieces):
        yield f"{piece}\t{_shown(None if log_probs is None else log_probs[place])}"


def _shown(log_prob: float | None) -> str:
    """Six digits behind the point, as in `nmt decode --format tsv`; nan for what is too long for the model."""
    return "nan" if log_prob is None else f"{log_prob:.6f}"


def _summary(perplexity: Perplexity) -> str:
    per_piece, per_word = perplexity.per_piece, perplexity.per_word
    if per_piece is None or per_word is None:
        return "perplexity: no line has a probability"
    return (
        f"perplexity: {per_piece:,.3f} per subword ({perplexity.pieces:,}), {per_word:,.3f} per word "
        f"({perplexity.words:,}), the end of each line counted as one of both"
    )


def _sentence_json(score: ForcedScore, *, with_tokens: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"log_prob": score.log_prob, "tokens": len(score.pieces)}
    if with_tokens:
        log_probs: Sequence[float | None] = score.piece_log_probs or [None] * len(score.pieces)
        result["token_log_probs"] = [list(pair) for pair in zip(score.pieces, log_probs, strict=True)]
    return result


def _as_json(
    texts: Texts, options: ForcedOptions, perplexity: Perplexity, sentences: list[dict[str, Any]]
) -> dict[str, Any]:
    from nmt_cli.bundle.config import WEIGHTS
    from nmt_cli.files import sha256

    return {
        "perplexity": {"per_subword": perplexity.per_piece, "per_word": perplexity.per_word},
        "log_prob": perplexity.log_prob,
        "subwords": perplexity.pieces,
        "words": perplexity.words,
        "left_out": perplexity.left_out,
        "model": {"directory": str(options.model), "sha256": sha256(options.model / WEIGHTS)},
        **texts.as_json(),
        "sentences": sentences,
    }
