"""Checks of whole texts: pieces of words, tokens, lower case, quoting, markup, another language, too few lines.

A rule of cleaning sees one pair and drops it. A check sees many lines of a side, and tells the user what to do. If in
doubt, it is silent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from nmt_cli.dataset.prepared_data import SIDES
from nmt_cli.errors import DataError
from nmt_cli.languages import NO_LANGUAGE, are_close, language_identifier, script_of, short_code
from nmt_cli.preparing.cleaning.rules import make_printable
from nmt_cli.preparing.shards import CleanShard
from nmt_cli.preparing.sources.base import SPLIT_NAMES, CorpusLanguages, LocalPairs, Pairs, Split
from nmt_cli.preparing.sources.text import TextFiles, kind_of_file
from nmt_cli.preparing.sources.tsv_csv import unquote
from nmt_cli.text_encoding import COMPOSE, DECODE_TWICE, DOUBLE_ENCODED, conversion, find_decomposed
from nmt_cli.tokenization.pieces import piece_mark_in_text, sign_of_tokenisation

_MIN_LINES = 50  # fewer lines get no warning
# Capital letters.
_CASED_SCRIPTS = ("Latn", "Cyrl", "Grek", "Armn")
_MIN_LETTERS = 2_000
_MAX_CAPITALS = 0.0005
# Lines that are a cell of a CSV file with quotes inside.
_MIN_QUOTED = 3
_MIN_SHARE_QUOTED = 0.001
# What lines have, what finds it, and the commands that mend lines of text and of XML.
_MIN_MARKED = 3
_MIN_SHARE_MARKED = 0.01
_UNESCAPE = (
    """python3 -c 'import html,re,sys; f=lambda l:re.sub(r"{pattern}",lambda m:{character},l); """
    r"""sys.stdout.writelines(f(f(l.rstrip("\n"))).replace("\n"," ")+"\n" for l in open(0,newline="\n"))'"""
)
_MARKUP = (
    (
        "HTML entities",
        re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z]\w{1,30});").search,
        _UNESCAPE.format(pattern=r"&#?\w+;", character="html.unescape(m[0])"),
        _UNESCAPE.format(pattern=r"&amp;(#?\w+;)", character='html.escape(html.unescape("&"+m[1]))'),
    ),
    (
        "tags",
        re.compile("</?[A-Za-z][^<>]*>").search,
        r"sed -E 's/<\/?[A-Za-z][^<>]*>//g'",
        r"sed -E 's/&lt;\/?[A-Za-z]([^<>&]|&(amp|quot|apos);)*&gt;//g'",
    ),
    ("double-encoded characters", DOUBLE_ENCODED.search, DECODE_TWICE, DECODE_TWICE),
    ("accents apart from their letters (NFD)", find_decomposed, COMPOSE, COMPOSE),
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
_MOST_SET_ASIDE = 1_000
# The sample that is checked; the seed is any number, but the same in every preparation.
_SAMPLED_LINES = 4_000
_SAMPLED_SHARDS = 16
_SAMPLED_SOURCES = 16
_SEED = 20_170_612


@dataclass(frozen=True, slots=True)
class TextSide:
    """Lines of one side of a text. Messages call the text `name`.

    `file` is its file if it holds plain lines, and `document` its file of any format.
    """

    name: str
    language: str
    lines: Sequence[str]
    file: Path | None
    document: Path | None


def training_sides(
    samples: Mapping[int, Pairs], sources: Sequence[LocalPairs], languages: CorpusLanguages
) -> Iterator[TextSide]:
    """Both sides of the training text, as one text per source; `samples` are pairs by the index of their source."""
    for index, pairs in samples.items():
        name = f"the training text {sources[index].origin}" if len(sources) > 1 else "the training text"
        yield from text_sides(name, pairs, languages, source=sources[index])


def held_out_sides(
    splits: Mapping[str, Pairs], sources: Mapping[Split, Sequence[LocalPairs]], languages: CorpusLanguages
) -> Iterator[TextSide]:
    """Both sides of the validation and of the test text; long text is sampled evenly."""
    for split, name in SPLIT_NAMES.items():
        if split != "train" and split in splits:
            pairs = splits[split][:: max(1, len(splits[split]) // _SAMPLED_LINES)]
            source = sources[split][0] if len(sources[split]) == 1 else None
            yield from text_sides(f"the {name} text", pairs, languages, source=source)


def text_sides(name: str, pairs: Pairs, languages: CorpusLanguages, *, source: LocalPairs | None) -> list[TextSide]:
    """The two sides of pairs. `source` is where all of them come from; None if they have several sources."""
    files = (source.source, source.target) if isinstance(source, TextFiles) else (None, None)
    documents = files if source is None or any(files) else (source.inputs[0][1],) * 2
    return [
        TextSide(name, code, [pair[side] for pair in pairs], files[side], documents[side])
        for side, code in enumerate(languages.codes)
    ]


def sample_by_source(shards: Sequence[CleanShard]) -> dict[int, list[tuple[str, str]]]:
    """A sample of the clean training text: pairs by the index of their source, the same in every preparation."""
    by_source: dict[int, list[CleanShard]] = {}
    for shard in shards:
        if len(shard):
            by_source.setdefault(shard.facts["source"], []).append(shard)
    largest = sorted(by_source, key=lambda source: -sum(map(len, by_source[source])))[:_SAMPLED_SOURCES]
    num_shards, num_lines = (total // max(1, len(largest)) for total in (_SAMPLED_SHARDS, _SAMPLED_LINES))
    samples: dict[int, list[tuple[str, str]]] = {}
    for source in sorted(largest):
        indices = np.linspace(0, len(by_source[source]) - 1, num_shards).round().astype(int)
        chosen = [by_source[source][index] for index in dict.fromkeys(indices.tolist())]
        samples[source] = [pair for shard in chosen for pair in _sample_of_shard(shard, num_lines // len(chosen))]
    return samples


def check_no_pieces(sides: Iterable[TextSide]) -> None:
    """Raise DataError, with the command that joins them, if a text holds pieces of words (`@@ ` or `▁`)."""
    in_pieces = [(side, mark) for side in sides if (mark := piece_mark_in_text(side.lines)) is not None]
    if in_pieces:
        first, mark = in_pieces[0]
        commands = dict.fromkeys(conversion(side.file, mark.join_command, new="joined") for side, mark in in_pieces)
        raise DataError(
            f"{_join_names(side for side, _ in in_pieces)} holds pieces instead of words: {mark.mark!r} in "
            f"{make_printable(mark.around)!r}",
            where=str(first.file or first.name),
            hint=f"{'; '.join(commands)}; then give the new files: nmt makes pieces of its own",
        )


def warnings_of_unusual_text(sides: Iterable[TextSide], *, with_languages: bool) -> Iterator[str]:
    """Warnings of text that is not as people write it, or is in another language, each with what to do."""
    sides = [side for side in sides if len(side.lines) >= _MIN_LINES]
    for check in (_warnings_of_tokenised_text, _warnings_of_lower_case, _warnings_of_quotes, _warnings_of_markup):
        yield from check(sides)
    if with_languages and find_spec("py3langid") is not None:
        yield from _warnings_of_other_languages(sides)


def warning_of_little_validation(pairs: Pairs, *, num_train: int) -> str | None:
    """The warning if validation text has few pairs, or if many of them have a blank side.

    Its fix is to set aside a tenth of the `num_train` pairs, or more text if a tenth is too few as well.
    """
    num_blank = sum(not (src.strip() and tgt.strip()) for src, tgt in pairs)
    size = min(_MOST_SET_ASIDE, num_train // 10)
    other_fix = f"set training pairs aside: --valid-size {size}" if size >= _FEW_PAIRS else "more text"
    fix = f"give text of its own with --valid FILE, or {other_fix}"
    if num_blank > _MANY_BLANK * len(pairs):
        return f"{num_blank:,} of {len(pairs):,} validation pairs have a blank side, and score nothing: {fix}"
    if len(pairs) < _FEW_PAIRS:
        word = "pair" if len(pairs) == 1 else "pairs"
        return f"the validation text has only {len(pairs):,} {word}, so its loss and BLEU say little: {fix}"
    return None


def _warnings_of_tokenised_text(sides: Sequence[TextSide]) -> Iterator[str]:
    tokenised = [(side, sign) for side in sides if (sign := sign_of_tokenisation(side.lines)) is not None]
    if tokenised:
        commands = dict.fromkeys(
            conversion(side.file, f"sacremoses -l {short_code(side.language)} detokenize", new="plain")
            for side, _ in tokenised
        )
        yield (
            f"{_join_names(side for side, _ in tokenised)} looks tokenised: {tokenised[0][1]}; give the text as people "
            f"write it, or detokenise it: {'; '.join(commands)}"
        )


def _warnings_of_lower_case(sides: Sequence[TextSide]) -> Iterator[str]:
    lower_cased = [
        side for side in sides if script_of(side.language) in _CASED_SCRIPTS and _has_no_capitals(side.lines)
    ]
    if lower_cased:
        yield (
            f"{_join_names(lower_cased)} has no capital letters, so a model knows none: give the text before it was "
            "lower-cased, if there is one"
        )


def _has_no_capitals(lines: Sequence[str]) -> bool:
    num_small = num_capital = 0
    for character, count in Counter("".join(lines)).items():
        num_small += count * character.islower()
        num_capital += count * character.isupper()
    return num_small >= _MIN_LETTERS and num_capital <= _MAX_CAPITALS * num_small


def _warnings_of_quotes(sides: Sequence[TextSide]) -> Iterator[str]:
    for side in sides:
        quoted = [line for line in side.lines if unquote(line) != line and '""' in line[1:-1]]
        if len(quoted) >= max(_MIN_QUOTED, _MIN_SHARE_QUOTED * len(side.lines)):
            yield (
                f"{_join_names([side])} has quotes as in a CSV file: {len(quoted):,} of {len(side.lines):,} lines, "
                f"such as {make_printable(quoted[0])}; give the CSV file itself, --train FILE.csv, or remove the quotes"
            )


def _warnings_of_markup(sides: Sequence[TextSide]) -> Iterator[str]:
    for what, find, command, command_in_xml in _MARKUP:
        found: list[TextSide] = []
        marks: list[str] = []
        for side in sides:
            in_side = [match[0] for line in side.lines if (match := find(line))]
            is_of_tokens = what == "HTML entities" and sign_of_tokenisation(side.lines) is not None
            if len(in_side) >= max(_MIN_MARKED, _MIN_SHARE_MARKED * len(side.lines)) and not is_of_tokens:
                found.append(side)
                marks += [f"{in_side[0]!r} in {len(in_side):,} of {len(side.lines):,} lines"]
        if found:
            commands = dict.fromkeys(
                conversion(side.document, command_in_xml if kind in ("tmx", "xliff") else command, new="mended")
                for side in found
                if (kind := kind_of_file(side.document or Path())) in (None, "tsv", "tmx", "xliff")
            )
            fix = f"mend it: {'; '.join(commands)}" if commands else "mend the file"
            yield f"{_join_names(found)} holds {what}, such as {marks[0]}; a model learns to write them; {fix}"


def _warnings_of_other_languages(sides: Sequence[TextSide]) -> Iterator[str]:
    sides_by_languages: dict[tuple[str, str], list[tuple[TextSide, float]]] = {}
    for side in sides:
        if identified := _other_language(side):
            other, share = identified
            sides_by_languages.setdefault((side.language, other), []).append((side, share))
    for (language, other), identified_sides in sides_by_languages.items():
        share = identified_sides[0][1]
        yield (
            f"{_join_names(side for side, _ in identified_sides)} is identified as {other}, not as {language}, in "
            f"{share:.0%} of a sample: check the files, their columns and --languages"
        )


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


def _join_names(sides: Iterable[TextSide]) -> str:
    """Sides in words, such as: the training text (en and de) and the validation text (de)."""
    languages_of: dict[str, dict[str, None]] = {}
    for side in sides:
        languages_of.setdefault(side.name, {})[side.language] = None
    return " and ".join(f"{name} ({' and '.join(languages)})" for name, languages in languages_of.items())


def _sample_of_shard(shard: CleanShard, number: int) -> list[tuple[str, str]]:
    """At most `number` pairs of a shard, in order."""
    generator = np.random.default_rng([_SEED, shard.number])
    indices = sorted(generator.permutation(len(shard))[:number].tolist())
    src, tgt = map(shard.sentences, SIDES)
    return [(src[index], tgt[index]) for index in indices]
