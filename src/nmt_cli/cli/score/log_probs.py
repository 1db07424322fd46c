"""`nmt score --model`: how probable a model finds a translation, line by line or piece by piece, and its alignments."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nmt_cli.cli.arguments import find_models
from nmt_cli.cli.printing import print_json
from nmt_cli.cli.score.options import Texts
from nmt_cli.devices import DECODING_SPINS, bound_spinning
from nmt_cli.errors import UsageError
from nmt_cli.files import sha256
from nmt_cli.languages import parse_languages

if TYPE_CHECKING:
    from nmt_cli.scoring.forced_decoding import ForcedDecoder, ForcedScore, PerplexitySums

logger = logging.getLogger(__name__)


def load_decoder(
    texts: Texts, model: Path, *, device: str, precision: str, batch_tokens: int | None
) -> tuple[Path, ForcedDecoder]:
    """The directory of a model and its decoder; UsageError if the texts are not one source and one target.

    A `batch_tokens` of None takes the model's own.
    """
    if texts.source is None:
        hint = "add the source with -s SRC, or name a test set with -t"
        raise UsageError("--model needs the source text", where="--model", hint=hint)
    if len(texts.references) > 1:
        message = f"--model takes one REF, not {len(texts.references)}"
        raise UsageError(message, where="REF", hint="run it once for each of them")
    bound_spinning(DECODING_SPINS)
    from nmt_cli.artifacts.model_directory import load_saved_config
    from nmt_cli.scoring.forced_decoding import ForcedDecoder

    (directory,) = find_models([model])
    directions = load_saved_config(directory).languages
    from_, to = (None, None) if texts.languages is None else parse_languages(texts.languages)
    try:
        direction = directions.find(from_, to)
    except UsageError as error:
        first = directions.first
        codes = "-".join(code.replace("-", "_") for code in (first.source, first.target))
        hint = f"give one of its directions: -l {codes}"
        raise UsageError(error.message, where="-l", hint=hint) from None
    decoder = ForcedDecoder(directory, direction=direction, device=device, precision=precision, max_tokens=batch_tokens)
    return directory, decoder


def print_alignments(texts: Texts, decoder: ForcedDecoder) -> None:
    """Print the pairs of words of each pair of lines, a line each."""
    assert texts.source is not None
    for links in decoder.alignments(texts.source.lines, texts.references[0].lines):
        typer.echo(" ".join(f"{source}-{target}" for source, target in links))


def print_log_probs(texts: Texts, model: Path, decoder: ForcedDecoder, *, with_tokens: bool, as_json: bool) -> None:
    """Print a row per line or per token, and log the perplexities; or print all of it as one JSON object."""
    from nmt_cli.scoring.forced_decoding import PerplexitySums

    assert texts.source is not None
    perplexity = PerplexitySums()
    scores = decoder.scores(texts.source.lines, texts.references[0].lines)
    if as_json:
        sentences = []
        for score in scores:
            perplexity.add(score)
            sentence: dict[str, Any] = {"log_prob": score.log_prob, "tokens": len(score.pieces)}
            if with_tokens:
                sentence["token_log_probs"] = list(map(list, _pieces_with_log_probs(score)))
            sentences.append(sentence)
        print_json(_as_json(texts, model, perplexity, sentences))
        return
    typer.echo("line\ttoken\tlog_prob" if with_tokens else "line\tlog_prob\ttokens")
    for line, score in enumerate(scores, 1):
        perplexity.add(score)
        if not with_tokens:
            typer.echo(f"{line}\t{_log_prob_text(score.log_prob)}\t{len(score.pieces)}")
            continue
        for piece, log_prob in _pieces_with_log_probs(score):
            typer.echo(f"{line}\t{piece}\t{_log_prob_text(log_prob)}")
    logger.info("%s", _perplexity_text(perplexity))


def _log_prob_text(log_prob: float | None) -> str:
    """Six decimals, as in `nmt decode --format tsv`; nan for a pair that is too long for the model."""
    return "nan" if log_prob is None else f"{log_prob:.6f}"


def _perplexity_text(perplexity: PerplexitySums) -> str:
    per_piece, per_word = perplexity.per_piece, perplexity.per_word
    if per_piece is None or per_word is None:
        return "perplexity: no line has a probability"
    return (
        f"perplexity: {per_piece:,.3f} per subword ({perplexity.num_pieces:,}), {per_word:,.3f} per word "
        f"({perplexity.num_words:,}), the end of each line counted as one of both"
    )


def _pieces_with_log_probs(score: ForcedScore) -> Iterable[tuple[str, float | None]]:
    """The pieces, each with its log-probability; None for all of a pair that is too long for the model."""
    log_probs: Sequence[float | None] = score.piece_log_probs or [None] * len(score.pieces)
    return zip(score.pieces, log_probs, strict=True)


def _as_json(texts: Texts, model: Path, perplexity: PerplexitySums, sentences: list[dict[str, Any]]) -> dict[str, Any]:
    from nmt_cli.artifacts.manifest import WEIGHTS

    return {
        "perplexity": {"per_subword": perplexity.per_piece, "per_word": perplexity.per_word},
        "log_prob": perplexity.log_prob,
        "subwords": perplexity.num_pieces,
        "words": perplexity.num_words,
        "left_out": perplexity.num_left_out,
        "model": {"directory": str(model), "sha256": sha256(model / WEIGHTS)},
        **texts.as_json(),
        "sentences": sentences,
    }
