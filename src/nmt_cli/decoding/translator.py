"""Raw text in, raw text out: a model directory as a translator of lines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nmt_cli.bundle import directory as model_directory
from nmt_cli.bundle.directory import LoadedModel
from nmt_cli.decoding.batches import search_batches
from nmt_cli.decoding.options import check_nbest, with_options
from nmt_cli.decoding.search import Hypothesis
from nmt_cli.decoding.splitting import split_line
from nmt_cli.devices import choose_device, choose_precision, parse_precision
from nmt_cli.recipe.schema import DecodingConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Translation:
    """A line's translation: raw text without line breaks, ln P over the length penalty, ln P, and its target pieces.

    `alternatives` are the next best ones, best first, without alternatives of their own. A line that was translated in
    parts has the sums over them. A blank line's translation is empty, with score 0.
    """

    text: str
    score: float
    log_prob: float
    num_pieces: int
    alternatives: tuple[Translation, ...] = ()


_BLANK = Translation("", 0.0, 0.0, 0)


class Translator:
    """Translates lines of raw text with one model."""

    def __init__(self, loaded: LoadedModel, *, device: torch.device) -> None:
        self._loaded = loaded
        self._device = device

    @classmethod
    def from_pretrained(cls, directory: str | Path, *, device: str = "auto", precision: str = "auto") -> Translator:
        """The translator of a model directory; `device` is auto, cpu, cuda or cuda:N, `precision` auto, bf16 or fp32.

        ModelError where the directory is no model or a damaged one, DeviceError where there is no such device.
        """
        choice = parse_precision(precision)
        chosen = choose_device(device)
        is_bf16 = choose_precision(choice, device=chosen, training=False) == "bf16"
        dtype = torch.bfloat16 if is_bf16 else torch.float32
        return cls(model_directory.load(Path(directory), device=chosen, dtype=dtype), device=chosen)

    def settings(self, **options: object) -> DecodingConfig:
        """The model's own decoding section, with `options` (keys of the section; None leaves the model's) in it."""
        return with_options(self._loaded.config.recipe.decoding, options)

    def translate(
        self,
        lines: Sequence[str],
        *,
        beam: int | None = None,
        nbest: int = 1,
        length_penalty: float | None = None,
        length_penalty_form: str | None = None,
        max_extra_tokens: int | None = None,
        batch_tokens: int | None = None,
        first_line: int = 1,
    ) -> list[Translation]:
        """The translation of each line, in order; settings that are None are those of the model's recipe.

        A blank line's translation is empty. A line too long for the model is translated in parts, with a warning that
        names its number, counted from `first_line`. UsageError for a setting that makes no sense.
        """
        if isinstance(lines, str) or not all(isinstance(line, str) for line in lines):
            raise TypeError("translate takes a list of lines, each of them a string")
        config = self.settings(
            beam=beam,
            length_penalty=length_penalty,
            length_penalty_form=length_penalty_form,
            max_extra_tokens=max_extra_tokens,
            batch_tokens=batch_tokens,
        )
        check_nbest(nbest, beam=config.beam)
        split = self._split(lines, config=config, first_line=first_line)
        rows = [row for line in split for row in line.rows]
        found = search_batches(self._loaded.model, rows, config=config, nbest=nbest, device=self._device)
        translated = map(self._translations, found)
        return [line.join([next(translated) for _ in line.rows]) for line in split]

    def _split(self, lines: Sequence[str], *, config: DecodingConfig, first_line: int) -> list[_Line]:
        stripped = [line.strip() for line in lines]
        encode = self._loaded.source.encode
        longest = self._longest_source(config)
        split = []
        for number, (text, row) in enumerate(zip(stripped, encode(stripped), strict=True), first_line):
            if len(row) <= longest:
                split.append(_Line([text], [row]) if text else _Line([], []))
                continue
            parts = split_line(text, fits=lambda part: len(encode([part.strip()])[0]) <= longest)
            parts = [part for part in parts if part.strip()]
            split.append(_Line(parts, encode([part.strip() for part in parts])))
            logger.warning(
                "line %d has %s pieces, and this model takes %s at once: it is translated in %d parts",
                number,
                f"{len(row):,}",
                f"{longest:,}",
                len(parts),
            )
        return split

    def _longest_source(self, config: DecodingConfig) -> int:
        """The most pieces of a source for which EOS and all the extra output have a position, too."""
        positions = self._loaded.model.config.max_positions
        return positions - max(1, min(config.max_extra_tokens, positions // 2))

    def _translations(self, hypotheses: Sequence[Hypothesis]) -> list[Translation]:
        texts = self._loaded.target.decode([hypothesis.ids for hypothesis in hypotheses])
        return [
            Translation(_in_one_line(text), hypothesis.score, hypothesis.log_prob, len(hypothesis.ids))
            for text, hypothesis in zip(texts, hypotheses, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Line:
    """The parts of a line as they stood in it, and the pieces of each; none where it is blank."""

    parts: list[str]
    rows: list[list[int]]

    def join(self, translated: Sequence[Sequence[Translation]]) -> Translation:
        """The line's translation from the translations of each part, best first."""
        if not self.parts:
            return _BLANK
        # A space between the parts where there was one in the source.
        glue = [" " if part[-1].isspace() else "" for part in self.parts[:-1]] + [""]
        best, *others = [
            Translation(
                "".join(part.text + space for part, space in zip(ranked, glue, strict=True)),
                sum(part.score for part in ranked),
                sum(part.log_prob for part in ranked),
                sum(part.num_pieces for part in ranked),
            )
            for ranked in zip(*translated, strict=False)
        ]
        return replace(best, alternatives=tuple(others))


def _in_one_line(text: str) -> str:
    """The text without line breaks, which byte pieces can spell: n lines in, n lines out."""
    return text.replace("\r", " ").replace("\n", " ")
