"""Raw text in, raw text out: a model directory as a translator of lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from nmt_cli.decoding.engine import Details, Engine
from nmt_cli.decoding.hypotheses import Hypothesis
from nmt_cli.decoding.mbr import expected_utilities, relative_probabilities, utility_name
from nmt_cli.decoding.next_words import best_of_each_word, other_beginnings
from nmt_cli.decoding.opening import open_engine
from nmt_cli.decoding.options import check_candidates, with_options
from nmt_cli.decoding.parts import LineParts
from nmt_cli.decoding.search import Source
from nmt_cli.decoding.words import word_alignment, word_log_probs
from nmt_cli.errors import DataError
from nmt_cli.recipe.schema import DecodingConfig


@dataclass(frozen=True, slots=True)
class Translation:
    """A line's translation: raw text without line breaks, ln P over the length penalty, ln P, and its target pieces.

    `alternatives` are the next best ones, best first, without alternatives of their own. A line that was translated in
    parts has the sums over them. A blank line's translation is empty, with score 0. Where asked for, `word_log_probs`
    has ln P of each word and of the end, `alignment` pairs of source and target words, and `utility` the mean
    similarity to the other candidates.
    """

    text: str
    score: float
    log_prob: float
    num_pieces: int
    alternatives: tuple[Translation, ...] = ()
    word_log_probs: tuple[float, ...] = ()
    alignment: tuple[tuple[int, int], ...] = ()
    utility: float | None = None


_BLANK = Translation("", 0.0, 0.0, 0)


class Translator:
    """Translates lines of raw text with one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parts = LineParts(engine.source, longest_trained=engine.longest_source)

    @classmethod
    def from_pretrained(
        cls,
        directory: str | Path | Sequence[str | Path],
        *,
        device: str = "auto",
        precision: str = "auto",
        engine: str = "torch",
    ) -> Translator:
        """The translator of a model directory, or of several that translate together.

        `device` is auto, cpu, cuda or cuda:N, `engine` torch, ctranslate2 or auto, `precision` auto, fp32, bf16 (torch)
        or int8 (on a CPU). ModelError where a directory is no model or a damaged one, DeviceError where there is no
        such device or it has no int8, UsageError where engine, device and precision do not go together.
        """
        directories = [directory] if isinstance(directory, str | Path) else directory
        paths = [Path(one) for one in directories]
        return cls(open_engine(paths, engine=engine, device=device, precision=precision, asked={}))

    @property
    def engine(self) -> str:
        """What computes: torch or ctranslate2."""
        return self._engine.name

    @property
    def precision(self) -> str:
        """What it computes in: fp32, bf16 or int8."""
        return self._engine.precision

    @property
    def device(self) -> str:
        """Where: cpu, cuda:0 and so on."""
        return self._engine.device

    def settings(self, **options: object) -> DecodingConfig:
        """The model's own decoding section, with `options` (keys of the section; None leaves the model's) in it."""
        return with_options(self._engine.decoding, options)

    def translate(
        self,
        lines: Sequence[str],
        *,
        beam: int | None = None,
        nbest: int = 1,
        length_penalty: float | None = None,
        length_penalty_form: str | None = None,
        max_extra_tokens: int | None = None,
        min_tokens: int | None = None,
        batch_tokens: int | None = None,
        samples: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        prefixes: Sequence[str] | None = None,
        next_words: int | None = None,
        mbr: str | None = None,
        word_scores: bool = False,
        alignments: bool = False,
        first_line: int = 1,
    ) -> list[Translation]:
        """The translation of each line, in order; settings that are None are those of the model's recipe.

        `prefixes` has for each line what its translation begins with, or "". With `next_words` a line has at most so
        many translations, each the best with another word after that. `mbr` (chrf or bleu) ranks a line's candidates,
        the beam or the samples, by their similarity to each other. The translation of a blank line is empty. A line
        longer than all of training is split at sentence ends, unless it has a prefix; one too long for the model is cut
        further if need be, with a warning that has its number, from `first_line` on. UsageError for a setting that the
        engine lacks or that makes no sense; DataError for prefixes of another number than lines, or one too long.
        """
        if isinstance(lines, str) or not all(isinstance(line, str) for line in lines):
            raise TypeError("translate takes a list of lines, each of them a string")
        config = self.settings(
            beam=beam,
            length_penalty=length_penalty,
            length_penalty_form=length_penalty_form,
            max_extra_tokens=max_extra_tokens,
            min_tokens=min_tokens,
            batch_tokens=batch_tokens,
            samples=samples,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
        )
        utility = None if mbr is None else utility_name(mbr)
        check_candidates(nbest, config=config, vocab=self._engine.target.vocab_size, mbr=mbr, next_words=next_words)
        self._engine.check(config)
        begun = ["" for _ in lines] if prefixes is None else prefixes
        split = self._split(lines, prefixes, config=config, first_line=first_line)
        groups = [self._varied(line, prefix, number=next_words) for line, prefix in zip(split, begun, strict=True)]
        details = Details(piece_log_probs=word_scores, alignment=alignments)
        found = self._search(groups, config=config, nbest=config.num_candidates if utility else nbest, details=details)
        if next_words is not None:
            return [best_of_each_word(group, prefix) for group, prefix in zip(found, begun, strict=True)]
        if utility is None:
            return [one for (one,) in found]
        return [_by_utility(one, utility=utility, is_drawn=config.samples > 0, nbest=nbest) for (one,) in found]

    def _search(
        self, groups: Sequence[Sequence[_Line]], *, config: DecodingConfig, nbest: int, details: Details
    ) -> list[list[Translation]]:
        """The translation of each line of each group, all of them searched together."""
        sources = [source for group in groups for line in group for source in line.sources]
        found = self._engine.search(sources, config=config, nbest=nbest, details=details)
        texts = iter(self._engine.target.decode([hypothesis.ids for ranked in found for hypothesis in ranked]))
        translated = (
            [self._translation(source, one, next(texts), details=details) for one in ranked]
            for source, ranked in zip(sources, found, strict=True)
        )
        return [[line.join([next(translated) for _ in line.sources]) for line in group] for group in groups]

    def _varied(self, line: _Line, prefix: str, *, number: int | None) -> list[_Line]:
        """The line once for each of so many words that its translation may go on with."""
        if number is None or not line.parts:
            return [line]
        first, *others = line.sources
        beginnings = other_beginnings(self._engine, line.parts[0].strip(), prefix, number=number)
        rows = [row for row in self._engine.target.encode(beginnings) if len(row) < self._engine.max_positions]
        return [_Line(line.parts, [replace(first, prefix=row), *others]) for row in rows] or [line]

    def _split(
        self, lines: Sequence[str], prefixes: Sequence[str] | None, *, config: DecodingConfig, first_line: int
    ) -> list[_Line]:
        stripped = [line.strip() for line in lines]
        encode = self._engine.source.encode
        longest = self._longest_source(config)
        split = []
        forced = self._prefixes(prefixes, num_lines=len(lines), first_line=first_line)
        for number, (text, row, prefix) in enumerate(zip(stripped, encode(stripped), forced, strict=True), first_line):
            parts = self._parts.find(text, row, number=number, longest=longest, has_prefix=bool(prefix))
            if len(parts) < 2:
                split.append(_Line(parts, [Source(row, prefix, str(number)) for _ in parts]))
                continue
            sources = [
                Source(part_row, prefix if place == 0 else [], f"{number}.{place}")
                for place, part_row in enumerate(encode([part.strip() for part in parts]))
            ]
            split.append(_Line(parts, sources))
        return split

    def _prefixes(self, prefixes: Sequence[str] | None, *, num_lines: int, first_line: int) -> list[list[int]]:
        if prefixes is None:
            return [[] for _ in range(num_lines)]
        if len(prefixes) != num_lines:
            raise DataError(
                f"there are {num_lines:,} lines and {len(prefixes):,} prefixes",
                where="--prefix",
                hint="give one line of prefixes for each line of text; an empty one leaves its translation free",
            )
        rows = self._engine.target.encode([prefix.strip() for prefix in prefixes])
        longest = self._engine.max_positions - 1
        for number, row in enumerate(rows, first_line):
            if len(row) > longest:
                raise DataError(
                    f"the prefix of line {number} has {len(row):,} pieces, and this model takes {longest:,}",
                    where=f"--prefix, line {number}",
                    hint="shorten it",
                )
        return rows

    def _longest_source(self, config: DecodingConfig) -> int:
        """The most pieces of a source for which EOS and all the extra output have a position, too."""
        positions = self._engine.max_positions
        return positions - max(1, min(config.max_extra_tokens, positions // 2))

    def _translation(self, source: Source, one: Hypothesis, text: str, *, details: Details) -> Translation:
        translation = Translation(_in_one_line(text), one.score, one.log_prob, len(one.ids))
        if not (details.piece_log_probs or details.alignment):
            return translation
        pieces = self._engine.target.pieces(one.ids)
        scores = word_log_probs(pieces, one.piece_log_probs) if details.piece_log_probs else []
        rows = self._engine.source.pieces(source.row)
        alignment = word_alignment(rows, pieces, one.alignment) if details.alignment else []
        return replace(translation, word_log_probs=tuple(scores), alignment=tuple(alignment))


@dataclass(frozen=True, slots=True)
class _Line:
    """The parts of a line as they stood in it, and what is translated for each; none where it is blank."""

    parts: list[str]
    sources: list[Source]

    def join(self, translated: Sequence[Sequence[Translation]]) -> Translation:
        """The line's translation from the translations of each part, best first."""
        if not self.parts:
            return _BLANK
        if len(self.parts) == 1:
            best, *others = translated[0]
            return replace(best, alternatives=tuple(others)) if others else best
        best, *others = [self._joined(ranked) for ranked in zip(*translated, strict=False)]
        return replace(best, alternatives=tuple(others))

    def _joined(self, translations: Sequence[Translation]) -> Translation:
        # A space between the parts where there was one in the source.
        glue = [" " if one[-1].isspace() or other[0].isspace() else "" for one, other in pairwise(self.parts)]
        glue.append("")
        text = "".join(one.text + space for one, space in zip(translations, glue, strict=True))
        scores: list[float] = []
        ends = 0.0
        pairs: list[tuple[int, int]] = []
        for place, one in enumerate(translations):
            is_cut_word = place > 0 and not glue[place - 1]
            first_source = len("".join(self.parts[:place]).split()) - is_cut_word
            so_far = "".join(done.text + space for done, space in zip(translations[:place], glue, strict=False))
            is_glued = bool(so_far) and not so_far[-1].isspace() and bool(one.text) and not one.text[0].isspace()
            first_target = len(so_far.split()) - is_glued
            pairs += [(first_source + source, first_target + target) for source, target in one.alignment]
            words = list(one.word_log_probs[: len(one.text.split())])
            ends += sum(one.word_log_probs[len(words) :])
            if is_glued and scores and words:
                scores[-1] += words.pop(0)
            scores += words
        has_scores = any(one.word_log_probs for one in translations)
        return Translation(
            text,
            sum(one.score for one in translations),
            sum(one.log_prob for one in translations),
            sum(one.num_pieces for one in translations),
            word_log_probs=(*scores, ends) if has_scores else (),
            alignment=tuple(sorted(set(pairs))),
        )


def _by_utility(line: Translation, *, utility: str, is_drawn: bool, nbest: int) -> Translation:
    """The candidates of a line ranked by expected utility; draws count alike, others by their probability."""
    candidates = [replace(line, alternatives=()), *line.alternatives]
    if line == _BLANK:
        return line
    weights = [1.0] * len(candidates) if is_drawn else relative_probabilities([one.log_prob for one in candidates])
    utilities = expected_utilities([one.text for one in candidates], weights, utility=utility_name(utility))
    ranked = sorted(zip(candidates, utilities, strict=True), key=lambda pair: -pair[1])[:nbest]
    best, *others = [replace(one, utility=value) for one, value in ranked]
    return replace(best, alternatives=tuple(others))


def _in_one_line(text: str) -> str:
    """The text without line breaks, which byte pieces can spell: n lines in, n lines out."""
    return text.replace("\r", " ").replace("\n", " ")
