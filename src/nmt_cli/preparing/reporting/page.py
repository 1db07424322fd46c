"""The report of prepared data as a page for a browser: one file, which loads nothing and runs nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nmt_cli.preparing.reporting.charts import length_chart
from nmt_cli.preparing.reporting.figures import large, share, size
from nmt_cli.preparing.reporting.html import Html, table, text, written
from nmt_cli.preparing.reporting.style import STYLE

Report = Mapping[str, Any]

_SIDES = ("source", "target")
_SPLITS = {"train": "training", "valid": "validation", "test": "test"}
_MEANINGS = {
    "malformed record": "There are too few columns, or no text at the keys.",
    "invalid UTF-8": "A side has bytes that are no UTF-8, or half a character.",
    "line break": "A side has a line break inside.",
    "control characters": "A side has control characters inside.",
    "empty": "A side is empty or white space.",
    "too short": "A side has fewer words or characters than <code>min_words</code> or <code>min_characters</code>.",
    "too long": "A side has more words or characters than <code>max_words</code> or <code>max_characters</code>.",
    "length ratio": "A side is too long for the other: <code>max_length_ratio</code>, <code>max_word_ratio</code>.",
    "identical sides": "Both sides are the same text.",
    "punctuation only": "A side has neither a letter nor a digit.",
    "URL only": "A side is nothing but web addresses.",
    "repeated characters": "A side repeats a character more often than <code>max_repeated_characters</code> in a row.",
    "other script": "Most letters of a side are in another script than its language's.",
    "other language": "A side is identified as another language than it should be.",
    "duplicate": "The pair was seen before.",
    "in validation or test text": "The pair, or a side of it, is in validation or test text: <code>overlap</code>.",
}
_HASH_CHARACTERS = 16
_MAX_INPUTS = 200
_MANY_DROPPED = 0.3


def render_page(report: Report) -> str:
    """The whole report as HTML; every text in it is escaped."""
    languages = report["languages"]
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{text(report['name'])}: {text(languages['source'])} to {text(languages['target'])}</title>",
        f"<style>{STYLE}</style>\n</head>\n<body>",
        *_header(report),
        "<main>",
        *_warnings(report),
        *_figures(report),
        *_cleaning(report),
        *_lengths(report),
        *_vocabulary(report),
        *_overlap(report),
        *_examples(report),
        *_inputs(report["inputs"]),
        *_settings(report["settings"]),
        "</main>",
        f"<footer>Written by nmt {text(report['nmt_version'])}. <code>report.json</code> has the same figures for "
        "programs, <code>manifest.json</code> the hashes in full.</footer>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _header(report: Report) -> Iterator[str]:
    source, target = (text(report["languages"][side]) for side in _SIDES)
    yield f'<header>\n<h1>{text(report["name"])} <span class="languages">'
    yield f'<span class="source">{source}</span> to <span class="target">{target}</span></span></h1>'
    if report["description"]:
        yield f'<p dir="auto">{text(report["description"])}</p>'
    yield f'<p class="quiet">Licence of the text: {text(report["licence"] or "not stated")}</p>'
    if report["citation"]:
        yield f'<p class="quiet">To be cited as: {text(report["citation"])}</p>'
    yield "</header>"


def _warnings(report: Report) -> Iterator[str]:
    found = [*report["warnings"], *_findings(report)]
    if found:
        yield '<section class="warnings"><h2>To look at first</h2><ul>'
        yield from (f"<li>{text(one)}</li>" for one in found)
        yield "</ul></section>"


def _findings(report: Report) -> Iterator[str]:
    """What the figures of the report give reason to doubt."""
    read, kept = report["cleaning"]["read"], report["cleaning"]["kept"]
    if read == report["limit"]:
        yield f"This is a try: no more than the first {read:,} training pairs were read (limit)."
    is_left = report["settings"]["cleaning"]["overlap"]["value"] == "report"
    for split, facts in report["overlap"].items():
        if facts["pairs"] and is_left:
            yield (
                f"{facts['pairs']:,} of {facts['lines']:,} pairs of the {_SPLITS[split]} text are in the training text "
                f"too ({share(facts['pairs'], facts['lines'])}): scores on them are too good. "
                "The setting cleaning.overlap=pairs drops them from the training text."
            )
    if read - kept > _MANY_DROPPED * read:
        yield f"Only {share(kept, read)} of the training pairs are kept: see below for what the others were dropped."


def _figures(report: Report) -> Iterator[str]:
    """The size of it all, at a glance."""
    cleaning, vocabulary, languages = report["cleaning"], report["vocabulary"], report["languages"]
    train = report["splits"]["train"]
    figures = [("training pairs", large(report["pairs"]["train"]), f"{share(cleaning['kept'], cleaning['read'])} kept")]
    for side in _SIDES:
        words, pieces = train[side]["words"]["total"], train[side]["pieces"]["total"]
        figures.append((f"words, {languages[side]}", large(words), f"{large(pieces)} pieces"))
    sizes = [f"{vocabulary[side]['size']:,}" for side in _SIDES]
    one = vocabulary["shared"]
    figures.append(("vocabulary", sizes[0] if one else " + ".join(sizes), "shared" if one else "one for each language"))
    figures += [
        (
            f"{_SPLITS[split]} pairs",
            large(number),
            f"{large(report['splits'][split]['target']['words']['total'])} words",
        )
        for split, number in report["pairs"].items()
        if split != "train"
    ]
    yield '<dl class="figures">'
    for name, value, note in figures:
        yield f"<div><dt>{text(name)}</dt><dd>{text(value)}<small>{text(note)}</small></dd></div>"
    yield "</dl>"


def _cleaning(report: Report) -> Iterator[str]:
    cleaning = report["cleaning"]
    read, kept = cleaning["read"], cleaning["kept"]
    yield "<h2>Cleaning</h2>"
    tidied = f"; {cleaning['tidied']:,} of them lost outer or repeated spaces" if cleaning["tidied"] else ""
    yield (
        f"<p>{kept:,} of {read:,} training pairs are kept ({share(kept, read)}){tidied}. "
        "A dropped pair counts for the first rule that it breaks.</p>"
    )
    if report["pairs"]["train"] != kept:
        yield f"<p>By the weights of their sources they make {report['pairs']['train']:,} pairs to train on.</p>"
    counts = {reason: facts["count"] for reason, facts in cleaning["dropped"].items()}
    for reason in sorted((reason for reason in counts if counts[reason]), key=lambda one: -counts[one]):
        yield f"<h3>{text(reason[0].upper() + reason[1:])}</h3>"
        yield f'<p class="quiet">{_MEANINGS[reason]}</p>'
        yield _bar(counts[reason] / max(counts.values()), f"{counts[reason]:,} ({share(counts[reason], read)})")
        yield from _dropped(cleaning["dropped"][reason]["examples"], report["languages"])
    unseen = [reason for reason, number in counts.items() if not number]
    if unseen:
        yield f'<p class="quiet">No pair was dropped as or for: {text(", ".join(unseen))}.</p>'


def _dropped(examples: Sequence[Mapping[str, str]], languages: Mapping[str, str]) -> Iterator[str]:
    rows = [
        [written(one["source"], languages["source"]), written(one["target"], languages["target"]), one["where"]]
        for one in examples
    ]
    if rows:
        head = [languages["source"], languages["target"], "where"]
        yield table(head, rows, classes=["text", "text", "where quiet"], kind="pair")


def _lengths(report: Report) -> Iterator[str]:
    languages, train = report["languages"], report["splits"]["train"]
    yield "<h2>Lengths</h2>"
    yield '<p class="quiet">Training sentences by their length: '
    yield " ".join(f'<span class="key {side}"></span>{text(languages[side])}' for side in _SIDES)
    yield '</p><div class="charts">'
    for unit in ("words", "pieces"):
        bins = {side: train[side][unit]["histogram"] for side in _SIDES}
        yield f"<figure>{length_chart(bins, languages=languages, unit=unit)}</figure>"
    yield "</div>"
    keys = ("mean", "p50", "p99", "max")
    rows = [
        [
            _SPLITS[split] if side == "source" else "",
            f"{report['pairs'][split]:,}" if side == "source" else "",
            languages[side],
            *(
                f"{facts[unit][key]:.1f}" if key == "mean" else f"{facts[unit][key]:,}"
                for unit in ("words", "pieces")
                for key in keys
            ),
        ]
        for split, sides in report["splits"].items()
        for side, facts in sides.items()
    ]
    names = ["mean", "median", "99%", "longest"]
    head = ["text", "pairs", "side", *names, *names]
    groups = [("", 3), ("words", 4), ("pieces, without the end of the sentence", 4)]
    yield table(head, rows, classes=["row", "number", "", *["number"] * 8], groups=groups)


def _vocabulary(report: Report) -> Iterator[str]:
    vocabulary, languages = report["vocabulary"], report["languages"]
    yield "<h2>Vocabulary</h2>"
    for side in _SIDES[: 1 if vocabulary["shared"] else 2]:
        facts = vocabulary[side]
        whose = "shared by both languages" if vocabulary["shared"] else f"for {languages[side]}"
        unusable = f"; {facts['skipped']:,} were unusable" if facts["skipped"] else ""
        trained = f"trained on {facts['sampled']:,} of {facts['lines']:,} lines{unusable}"
        if not facts["lines"]:
            trained = "taken from a model as it was"
        yield f"<p>{facts['size']:,} pieces {text(whose)}, {trained}.</p>"
    rows = [
        [
            _SPLITS[split] if side == "source" else "",
            languages[side],
            f"{facts['pieces_per_word']:.2f}",
            f"{facts['pieces_used']:,}",
            share(facts["pieces_used"], vocabulary[side]["size"]),
            share(facts["byte_rate"], 1),
            share(facts["unknown_rate"], 1),
        ]
        for split, sides in report["splits"].items()
        for side, facts in sides.items()
    ]
    head = ["text", "side", "pieces per word", "pieces used", "of the vocabulary", "text in bytes", "unknown"]
    yield table(head, rows, classes=["row", "", *["number"] * 5])


def _overlap(report: Report) -> Iterator[str]:
    choice = report["settings"]["cleaning"]["overlap"]["value"]
    then = {
        "report": "They are trained on.",
        "pairs": "Training pairs that are a pair there were dropped after this count.",
        "sides": "Training pairs of which a side is there were dropped after this count.",
    }
    yield "<h2>Overlap with the training text</h2>"
    yield f"<p>Lines of validation and test text that are in the training text, but for spaces. {then[choice]}</p>"
    rows = [
        [
            _SPLITS[split],
            f"{facts['lines']:,}",
            *(f"{facts[key]:,} ({share(facts[key], facts['lines'])})" for key in ("pairs", "sources", "targets")),
        ]
        for split, facts in report["overlap"].items()
    ]
    yield table(["text", "lines", "as a pair", "the source", "the target"], rows, classes=["row", *["number"] * 4])


def _examples(report: Report) -> Iterator[str]:
    yield "<h2>Some training pairs</h2>"
    yield "<p>As text, and in the pieces that the model sees, where ▁ stands for a space.</p>"
    for example in report["examples"]:
        yield '<div class="example">'
        for side in _SIDES:
            code = report["languages"][side]
            tag = f'<span class="tag {side}">{text(code)}</span>'
            pieces = " ".join(f"<span>{text(piece)}</span>" for piece in example[side]["pieces"])
            yield f"<p>{tag}{written(example[side]['text'], code)}</p>"
            yield f'<p class="pieces" dir="auto">{pieces}</p>'
        yield "</div>"


def _inputs(inputs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "<h2>Made from</h2>"
    rows = [
        [
            _SPLITS.get(record["split"], record["split"]),
            record["name"],
            size(record["bytes"]),
            Html(f"<code>{text(record['sha256'][:_HASH_CHARACTERS])}</code>"),
        ]
        for record in inputs[:_MAX_INPUTS]
    ]
    yield table(["for", "input", "size", "SHA-256, beginning"], rows, classes=["row", "text", "number", ""])
    if len(inputs) > _MAX_INPUTS:
        yield f"<p>And {len(inputs) - _MAX_INPUTS:,} more, which the manifest lists.</p>"


def _settings(settings: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    yield "<h2>Settings</h2>"
    yield "<p>Those that differ from the defaults stand out.</p>"
    yield '<div class="charts">'
    for section, keys in settings.items():
        rows = [
            [
                Html(f"<code>{text(section)}.{text(key)}</code>"),
                _setting(facts["value"])
                if facts["is_default"]
                else Html(f"<strong>{_setting(facts['value'])}</strong>"),
            ]
            for key, facts in keys.items()
        ]
        yield table(["key", "value"], rows, classes=["row", "text"])
    yield "</div>"


def _setting(value: Any) -> Html:
    """A value as a corpus file has it."""
    return text(value if isinstance(value, str) else json.dumps(value))


def _bar(part: float, label: str) -> str:
    track = f'<div class="track"><div class="fill" style="width:{100 * part:.2f}%"></div></div>'
    return f'<div class="share">{track}<div class="number">{text(label)}</div></div>'
