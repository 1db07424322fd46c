"""Checks of whole texts: pieces of words, tokens, markup, another language, swapped sides, too few lines.

A rule of cleaning sees one pair and drops it. A check sees many lines of a side, and tells the user what to do. If in
doubt, it is silent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain, product
from pathlib import Path

import numpy as np

from nmt_cli.dataset.prepared_data import SIDES
from nmt_cli.errors import DataError
from nmt_cli.languages import NO_LANGUAGE, are_close, language_identifier, short_code
from nmt_cli.preparing.clean_chunks import CleanChunk
from nmt_cli.preparing.cleaning.held_out import HeldOut
from nmt_cli.preparing.cleaning.rules import make_printable
from nmt_cli.preparing.sources.base import SPLIT_NAMES, LocalSource, Pairs, Split
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.text_encoding import COMPOSE, DECODE_TWICE, DOUBLE_ENCODED, conversion, copy_command, find_decomposed
from nmt_cli.tokenization.tokenised_text import piece_mark_in_text, sign_of_tokenisation

_MIN_LINES = 50  # fewer lines get no warning
# What lines have, what finds it, and the command that mends lines of text.
_MIN_MARKED = 3
_MIN_SHARE_MARKED = 0.01
_UNESCAPE = (
    r"""python3 -c 'import html,re,sys; f=lambda l:re.sub(r"&#?\w+;",lambda m:html.unescape(m[0]),l); """
    r"""sys.stdout.writelines(f(f(l.rstrip("\n"))).replace("\n"," ")+"\n" for l in open(0,newline="\n"))'"""
)
_MARKUP: tuple[tuple[str, Callable[[str], re.Match[str] | None], str], ...] = (
    ("HTML entities", re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z]\w{1,30});").search, _UNESCAPE),
    ("tags", re.compile("</?[A-Za-z][^<>]*>").search, r"sed -E 's/<\/?[A-Za-z][^<>]*>//g'"),
    ("double-encoded characters", DOUBLE_ENCODED.search, DECODE_TWICE),
    ("accents apart from their letters (NFD)", find_decomposed, COMPOSE),
)
# Languages that py3langid identifies, of several short sentences together.
_CHARACTERS_IDENTIFIED = 120
_MAX_IDENTIFIED = 100
_MIN_IDENTIFIED = 10
_MIN_OTHER_LANGUAGE = 0.6
_MAX_OWN_LANGUAGE = 0.2
# Pairs of validation text.
_FEW_PAIRS = 20
_MANY_BLANK = 0.1
_SMALL = 0.01  # part of the pairs of the largest direction
# Lines of a table in several directions.
_COMPARED_LINES = 100
# The sample that is checked.
_SAMPLED_LINES = 4_000
_SAMPLED_CHUNKS = 16
_SAMPLED_SOURCES = 16


@dataclass(frozen=True, slots=True)
class TextSide:
    """Lines of one side of a text. Messages call the text `name`; `file` is its file if it holds plain lines.

    `other_file` is that of the other side.
    """

    name: str
    language: str
    lines: Sequence[str]
    file: Path | None
    other_file: Path | None


def training_sides(
    samples: Mapping[int, Pairs], sources: Sequence[LocalSource], directions: Sequence[LanguagePair]
) -> Iterator[TextSide]:
    """Both sides of the training text, as one text per source; `samples` are pairs by the index of their source."""
    for index, pairs in samples.items():
        name = f"the training text {sources[index].origin}" if len(sources) > 1 else "the training text"
        yield from text_sides(name, pairs, directions[sources[index].direction], source=sources[index])


def held_out_sides(texts: Sequence[HeldOut], sources: Mapping[Split, Sequence[LocalSource]]) -> Iterator[TextSide]:
    """Both sides of the validation and of the test text; long text is sampled evenly."""
    for text in texts:
        pairs = text.pairs[:: max(1, len(text.pairs) // _SAMPLED_LINES)]
        own = [source for source in sources[text.split] if source.direction == text.direction]
        source = own[0] if len(own) == 1 else None
        yield from text_sides(f"the {SPLIT_NAMES[text.split]} text", pairs, text.languages, source=source)


def text_sides(name: str, pairs: Pairs, languages: LanguagePair, *, source: LocalSource | None) -> list[TextSide]:
    """The two sides of pairs. `source` is where all of them come from; None if they have several sources."""
    files = (None, None) if source is None else source.text_files
    return [
        TextSide(name, code, [pair[side] for pair in pairs], files[side], files[1 - side])
        for side, code in enumerate((languages.source, languages.target))
    ]


def sample_by_source(chunks: Sequence[CleanChunk]) -> dict[int, list[tuple[str, str]]]:
    """A sample of the clean training text: pairs by the index of their source, the same in every preparation."""
    by_source: dict[int, list[CleanChunk]] = {}
    for chunk in chunks:
        if len(chunk):
            by_source.setdefault(chunk.facts["source"], []).append(chunk)
    largest = sorted(by_source, key=lambda source: -sum(map(len, by_source[source])))[:_SAMPLED_SOURCES]
    num_chunks, num_lines = (total // max(1, len(largest)) for total in (_SAMPLED_CHUNKS, _SAMPLED_LINES))
    samples: dict[int, list[tuple[str, str]]] = {}
    for source in sorted(largest):
        indices = np.linspace(0, len(by_source[source]) - 1, num_chunks).round().astype(int)
        chosen = [by_source[source][index] for index in dict.fromkeys(indices.tolist())]
        samples[source] = [pair for chunk in chosen for pair in _sample_of_chunk(chunk, num_lines // len(chosen))]
    return samples


def check_no_pieces(sides: Iterable[TextSide]) -> None:
    """Raise DataError, with the command that joins them, if a text holds pieces of words (`@@ ` or `▁`)."""
    in_pieces = [(side, mark) for side in sides if (mark := piece_mark_in_text(side.lines)) is not None]
    if in_pieces:
        first, mark = in_pieces[0]
        commands = _conversions([(side, mark.join_command) for side, mark in in_pieces], new="joined")
        raise DataError(
            f"{_join_names(side for side, _ in in_pieces)} holds pieces instead of words: {mark.mark!r} in "
            f"{make_printable(mark.around)!r}",
            where=str(first.file or first.name),
            hint=f"{commands}; then give the new files: nmt makes pieces of its own",
        )


def check_not_read_alike(sources: Sequence[LocalSource], directions: Sequence[LanguagePair]) -> None:
    """Raise DataError if two directions take the same column of a table for two languages."""
    first_sides: dict[tuple[Path, tuple[str, ...]], tuple[str, LanguagePair]] = {}
    counts = Counter(file for source in sources for _, file in source.inputs)
    for source in sources:
        (_, file), languages = source.inputs[0], directions[source.direction]
        is_compared = counts[file] > 1 and len(source.inputs) == 1
        chunk = next(iter(source.read()), None) if is_compared else None
        if chunk is None:
            continue
        # Some lines are alike in two languages, such as names; many are not.
        whole = [index for index in range(min(len(chunk), _COMPARED_LINES)) if index not in chunk.malformed]
        src, tgt = (tuple(texts[index] for index in whole) for texts in (chunk.src, chunk.tgt))
        for code, texts in ((languages.source, src), (languages.target, tgt)):
            if src == tgt or not any(texts):
                continue
            other_code, other = first_sides.setdefault((file, texts), (code, languages))
            if other_code != code:
                raise DataError(
                    f"{file.name} is read alike for {other} and {languages}: {make_printable(texts[0])!r} is its first "
                    f"{other_code} and its first {code}",
                    where=chunk.where(0),
                    hint="name its columns in a corpus file, source: 2 and target: 1 for example, or in its first line",
                )


def warnings_of_unusual_text(sides: Iterable[TextSide]) -> Iterator[str]:
    """Warnings of text that is not as people write it, or is in another language, each with what to do."""
    sides = [side for side in sides if len(side.lines) >= _MIN_LINES]
    by_problem: dict[str, list[_Finding]] = {}
    for finding in chain(_tokenised_text(sides), _markup(sides), _other_languages(sides)):
        by_problem.setdefault(finding.problem, []).append(finding)
    for problem, findings in by_problem.items():
        names, first = _join_names(finding.side for finding in findings), findings[0]
        commands = [(finding.side, finding.command) for finding in findings if finding.command]
        mend = f": {_conversions(commands, new=first.new)}" if commands else ""
        yield f"{names} {problem}: {first.sign}; {first.fix}{mend}"


def warning_of_little_validation(text: HeldOut, *, is_only: bool) -> str | None:
    """The warning if the validation text of a direction has few pairs, or if many of them have a blank side."""
    pairs, of_direction = text.pairs, "" if is_only else f" of {text.languages}"
    num_blank = sum(not (src.strip() and tgt.strip()) for src, tgt in pairs)
    fix = "give more text of its own with --valid FILE, or set training pairs aside with --valid-size N"
    if num_blank > _MANY_BLANK * len(pairs):
        blank = f"{num_blank:,} of {len(pairs):,} validation pairs{of_direction} have a blank side"
        return f"{blank}, and score nothing: {fix}"
    if len(pairs) < _FEW_PAIRS:
        return f"the validation text{of_direction} has {len(pairs):,} pairs, so its loss and BLEU say little: {fix}"
    return None


def warnings_of_smaller_splits(chosen: Sequence[HeldOut], sizes: Mapping[Split, int | None]) -> Iterator[str]:
    """Warnings of directions that set fewer pairs aside than the sizes that were asked for."""
    for split, size in sizes.items():
        fewer = [text for text in chosen if text.split == split and size is not None and len(text.pairs) < size]
        if fewer:
            numbers = ", ".join(f"{len(text.pairs):,} of {text.languages}" for text in fewer)
            yield (
                f"{split}_size is {size:,}, but only {numbers} are set aside, a tenth of the text: lower {split}_size, "
                f"or name {SPLIT_NAMES[split]} text in files of its own"
            )


def warnings_of_directions(texts: Sequence[HeldOut], pairs: Mapping[LanguagePair, int]) -> Iterator[str]:
    """Warnings of directions without validation text, or with much less training text than another has.

    `pairs` are the training pairs of each direction.
    """
    validated = {text.languages for text in texts if text.split == "valid"}
    if missing := [str(languages) for languages in pairs if languages not in validated]:
        yield f"there is no validation text of {', '.join(missing)}, so training does not measure it: add some to valid"
    most = max(pairs, key=pairs.__getitem__)
    if small := [f"{languages} {number:,}" for languages, number in pairs.items() if number < _SMALL * pairs[most]]:
        yield (
            f"{most} has {pairs[most]:,} training pairs, and {', '.join(small)}: a model learns little of so small a "
            "part; training.temperature repeats its pairs"
        )


@dataclass(frozen=True, slots=True)
class _Finding:
    """What is unusual about a side, the sign of it, and the fix; `command` mends it."""

    side: TextSide
    problem: str
    sign: str
    fix: str
    command: str | None = None
    new: str = ""


def _tokenised_text(sides: Sequence[TextSide]) -> Iterator[_Finding]:
    for side in sides:
        if (sign := sign_of_tokenisation(side.lines)) is not None:
            detokenize = f"sacremoses -l {short_code(side.language)} detokenize"
            fix = "give the text as people write it, or detokenise it"
            yield _Finding(side, "looks tokenised", sign, fix, detokenize, "plain")


def _markup(sides: Sequence[TextSide]) -> Iterator[_Finding]:
    for side, (what, find, command) in product(sides, _MARKUP):
        marks = [match[0] for line in side.lines if (match := find(line))]
        is_of_tokens = what == "HTML entities" and sign_of_tokenisation(side.lines) is not None
        if len(marks) >= max(_MIN_MARKED, _MIN_SHARE_MARKED * len(side.lines)) and not is_of_tokens:
            mend = None if side.file is None else command
            sign = f"{marks[0]!r} in {len(marks):,} of {len(side.lines):,} lines"
            yield _Finding(side, f"holds {what}", sign, "a model learns to write them; take them out", mend, "mended")


def _other_languages(sides: Sequence[TextSide]) -> Iterator[_Finding]:
    """The sides that py3langid, if it is installed, identifies as another language, or as each other's."""
    if find_spec("py3langid") is None:
        return
    identified = {(side.name, side.language): found for side in sides if (found := _other_language(side))}
    for side in sides:
        if (side.name, side.language) not in identified:
            continue
        other, share = identified[side.name, side.language]
        swapped_with = [
            language
            for (name, language), (its_other, _) in identified.items()
            if name == side.name and are_close(its_other, side.language) and are_close(other, language)
        ]
        if swapped_with:
            problem, sign = "seems to have its sides swapped", f"{share:.0%} of its {side.language} is {other}"
            fix = "give its two files, columns or keys, or the languages, in the other order"
        else:
            problem, sign = f"is identified as {other}, not as {side.language}", f"{share:.0%} of a sample"
            fix = "check the files, their columns and --languages"
        yield _Finding(side, problem, sign, fix)


def _other_language(side: TextSide) -> tuple[str, float] | None:
    """The language that most of a text is in, and its share; None unless it is clearly not the stated language."""
    identifier = language_identifier(where=None)
    if short_code(side.language) not in identifier.labels:
        return None
    labels = [str(identifier.classify(text)[0]) for text in _texts_to_identify(side.lines)]
    if len(labels) < _MIN_IDENTIFIED:
        return None
    counts = Counter(labels)
    other, num_other = counts.most_common(1)[0]
    if other == NO_LANGUAGE or are_close(other, side.language):
        return None
    num_own = sum(count for label, count in counts.items() if are_close(label, side.language))
    if num_other < _MIN_OTHER_LANGUAGE * len(labels) or num_own > _MAX_OWN_LANGUAGE * len(labels):
        return None
    return other, num_other / len(labels)


def _texts_to_identify(lines: Sequence[str]) -> list[str]:
    """A sample of the lines, evenly over the text; short lines are joined."""
    texts: list[str] = []
    group: list[str] = []
    for line in lines:
        group.append(line)
        if sum(map(len, group)) >= _CHARACTERS_IDENTIFIED:
            texts.append(" ".join(group))
            group = []
    return texts[:: max(1, len(texts) // _MAX_IDENTIFIED)]


def _conversions(commands: Sequence[tuple[TextSide, str]], *, new: str) -> str:
    """The command lines that convert the files of sides. A file is copied if only that of the other side changes."""
    changed = {side.file for side, _ in commands}
    lines = [conversion(side.file, command, new=new) for side, command in commands]
    others = [side.other_file for side, _ in commands if side.other_file not in changed]
    return "; ".join(dict.fromkeys([*lines, *(copy_command(file, new=new) for file in others if file)]))


def _join_names(sides: Iterable[TextSide]) -> str:
    """Sides in words, such as: the training text (en and de) and the validation text (de)."""
    languages_of: dict[str, dict[str, None]] = {}
    for side in sides:
        languages_of.setdefault(side.name, {})[side.language] = None
    return " and ".join(f"{name} ({' and '.join(languages)})" for name, languages in languages_of.items())


def _sample_of_chunk(chunk: CleanChunk, number: int) -> list[tuple[str, str]]:
    """At most `number` pairs of a chunk, in order."""
    src, tgt = map(chunk.sentences, SIDES)
    step = max(1, len(src) // max(1, number))
    return list(zip(src[::step], tgt[::step], strict=True))[:number]
