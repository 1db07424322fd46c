from __future__ import annotations

import copy
import json
import logging
import math
import re
import statistics
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.cli.prepare import _summary_lines
from nmt_cli.dataset.prepared_data import open_prepared
from nmt_cli.preparing.cleaning.rules import REASONS, CleaningCounts
from nmt_cli.preparing.report import bin_width, length_chart, percent_text, render_page, summarise_lengths
from nmt_cli.templates.charts import axis_ticks, short_number
from nmt_cli.tokenization.tokenizer import EOS, Tokenizer
from tests.preparing.corpus_files import corpus_of_pairs, invented_pairs, run

TRAIN = invented_pairs(500, seed=21)
VALID = [
    TRAIN[3],  # a pair of the training text
    (f"  {TRAIN[4][0]}", TRAIN[4][1]),  # the same but for space
    (TRAIN[5][0], "Etwas anderes!"),  # its source alone
    ("something else", TRAIN[6][1]),  # its target alone
    ("bytes: 漢字", "Bytes: 漢字!"),
    ("", ""),
]
EMPTY_ELEMENTS = {"meta", "br", "input"}
HOSTILE = "</td><script>alert('1')</script>\"&<!--"
HEBREW = "שלום <b>עולם</b>"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    train = [*TRAIN, ("x" * 30, "short"), ("a <b> & c", "a <b> & c")]
    settings = ["tokenizer.shared=false", "cleaning.max_words=90"]
    settings += ["description=Invented", "licence=CC0", "citation=Nobody 2017"]
    return run(corpus_of_pairs(folder, *settings, train=train, valid=VALID), folder / "data").directory


@pytest.fixture(scope="module")
def report(directory: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((directory / "report.json").read_text(encoding="utf-8"))
    return values


@given(lengths=st.lists(st.integers(0, 300), min_size=1, max_size=60), width=st.integers(1, 20))
def test_lengths_are_summarised_as_from_the_sorted_list(lengths: list[int], width: int) -> None:
    summary = summarise_lengths(np.bincount(lengths), width=width)
    ordered = sorted(lengths)
    assert summary["total"] == sum(lengths)
    assert summary["mean"] == pytest.approx(statistics.mean(lengths), abs=0.005 + 1e-9)  # two digits
    for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert summary[name] == ordered[math.ceil(part * len(ordered)) - 1]
    assert summary["max"] == ordered[-1]
    for one in summary["histogram"]:
        last = math.inf if one["to"] is None else one["to"]
        assert one["sentences"] == sum(one["from"] <= length <= last for length in lengths)
        assert one["from"] % width == 0
    assert sum(one["sentences"] for one in summary["histogram"]) == len(lengths)


@given(lengths=st.lists(st.integers(0, 5000), min_size=1, max_size=60))
def test_the_bins_hold_nearly_all_sentences_and_are_as_narrow_as_may_be(lengths: list[int]) -> None:
    sentences = np.bincount(lengths)
    width = bin_width([sentences, np.bincount([0])])
    summary = summarise_lengths(sentences, width=width)
    assert summary["p99"] < 40 * width
    assert width == 1 or summary["p99"] >= 40 * (width - 1)
    assert len(summary["histogram"]) <= 41


def test_the_longest_sentence_is_reported_as_long_as_it_is() -> None:
    summary = summarise_lengths(np.bincount([12_345, 0, 0]), width=5)
    assert (summary["max"], summary["mean"], summary["p50"]) == (12_345, 4115, 0)
    assert summary["histogram"][-1] == {"from": 200, "to": None, "sentences": 1}
    nothing = summarise_lengths(np.bincount([], minlength=1), width=1)
    assert (nothing["max"], nothing["total"], nothing["mean"], nothing["p99"]) == (0, 0, 0, 0)


def test_lengths_and_rates_are_those_of_the_text(directory: Path, report: dict[str, Any]) -> None:
    data = open_prepared(directory)
    files = {"source": data.source_tokenizer_file, "target": data.target_tokenizer_file}
    for split, pairs in (("train", TRAIN), ("valid", VALID)):
        for index, (side, file) in enumerate(files.items()):
            tokenizer = Tokenizer.load(file)
            rows = tokenizer.encode([" ".join(pair[index].split()) for pair in pairs])
            words = [len(pair[index].split()) for pair in pairs]
            used = Counter(piece for row in rows for piece in row)
            num_bytes = sum(count for piece, count in used.items() if tokenizer.pieces([piece])[0].startswith("<0x"))
            facts = report["splits"][split][side]
            assert facts["words"]["mean"] == pytest.approx(statistics.mean(words), abs=0.005)
            assert (facts["words"]["max"], facts["words"]["total"]) == (max(words), sum(words))
            assert facts["pieces"]["mean"] == pytest.approx(statistics.mean(map(len, rows)), abs=0.005)
            assert (facts["pieces"]["max"], facts["pieces"]["total"]) == (max(map(len, rows)), used.total())
            assert facts["pieces_per_word"] == pytest.approx(used.total() / sum(words), abs=0.0005)
            assert facts["byte_rate"] == pytest.approx(num_bytes / used.total(), abs=5e-7)
            assert facts["unknown_rate"] == 0
            assert facts["pieces_used"] == len(used | {EOS: 1})
    assert report["splits"]["valid"]["source"]["byte_rate"] > 0


def test_cleaning_and_vocabulary_are_reported(report: dict[str, Any]) -> None:
    cleaning = report["cleaning"]
    assert (cleaning["read"], cleaning["kept"], cleaning["tidied"]) == (502, 500, 0)
    dropped = {reason: facts["count"] for reason, facts in cleaning["dropped"].items() if facts["count"]}
    assert dropped == {"length ratio": 1, "identical sides": 1}
    assert report["vocabulary"]["source"] == {"size": 400, "lines": 500, "sampled": 500, "skipped": 0}
    assert report["vocabulary"]["shared"] is False


def test_origin_and_settings_are_reported(report: dict[str, Any]) -> None:
    assert [(record["split"], record["name"].rpartition("/")[2]) for record in report["inputs"]] == [
        *(("train", "train.en"), ("train", "train.de"), ("valid", "valid.en"), ("valid", "valid.de"))
    ]
    assert all(len(record["sha256"]) == 64 for record in report["inputs"])
    settings = report["settings"]
    assert settings["cleaning"]["max_words"] == {"value": 90, "is_default": False}
    assert settings["cleaning"]["max_characters"] == {"value": 2000, "is_default": True}
    assert settings["tokenizer"]["shared"] == {"value": False, "is_default": False}
    assert (report["description"], report["licence"], report["citation"]) == ("Invented", "CC0", "Nobody 2017")
    (warning,) = report["warnings"]
    assert warning.startswith("1 of 6 validation pairs have a blank side")
    assert report["limit"] is None


def test_examples_are_training_pairs_with_their_pieces(report: dict[str, Any]) -> None:
    assert len(report["examples"]) == 5
    for example in report["examples"]:
        assert (example["source"]["text"], example["target"]["text"]) in TRAIN
        for side in ("source", "target"):
            assert "".join(example[side]["pieces"]).replace("▁", " ").strip() == example[side]["text"]


def test_the_page_says_what_the_report_says(directory: Path, report: dict[str, Any]) -> None:
    page = (directory / "report.html").read_text(encoding="utf-8")
    assert "500 of 502 training pairs are kept (99.6%)." in page
    assert "1 (0.199%)" in page
    assert "a &lt;b&gt; &amp; c</span>" in page
    assert "train.en:502" in page
    assert "Of 6 validation lines, training contains 2 as pairs, 3 as sources, 3 as targets" in page
    assert report["examples"][0]["source"]["text"] in page


class Page(HTMLParser):
    """Parses a page, and checks that its elements are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in EMPTY_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def hostile(value: Any) -> Any:
    """The value with all text in it but for keys replaced."""
    if isinstance(value, dict):
        return {key: hostile(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner) for inner in value]
    return HOSTILE if isinstance(value, str) else value


def test_the_page_loads_and_runs_nothing(report: dict[str, Any]) -> None:
    rendered = render_page({**report, "warnings": ["Look here"]})
    for tag, attributes in Page(rendered).elements:
        assert tag not in {"script", "link", "img", "iframe", "object"}
        assert not {"src", "href", "onclick", "onload"} & attributes.keys()
    assert "url(" not in rendered
    assert "@import" not in rendered


def test_every_text_is_escaped(report: dict[str, Any]) -> None:
    everywhere = hostile({**report, "warnings": ["x"]})
    everywhere["settings"]["cleaning"]["overlap"]["value"] = "report"
    rendered = render_page(everywhere)
    assert "<script" not in rendered
    plain = Page(render_page({**report, "warnings": ["x"]}))
    assert [tag for tag, _ in Page(rendered).elements] == [tag for tag, _ in plain.elements]
    assert "".join(Page(rendered).text).count(HOSTILE) > 10


def test_text_from_right_to_left_is_laid_out_so(report: dict[str, Any]) -> None:
    counts = CleaningCounts(read=5)
    counts.drop("length ratio", "train.en:2", "Hello!", HEBREW)
    texts = {
        "source": {"text": "Hello!", "pieces": ["▁Hello", "!"]},
        "target": {"text": HEBREW, "pieces": ["▁", HEBREW]},
    }
    languages = {"source": "en", "target": "he"}
    page = render_page({**report, "languages": languages, "cleaning": counts.to_json(), "examples": [texts]})
    assert page.count('<span lang="he" dir="auto">שלום &lt;b&gt;עולם&lt;/b&gt;</span>') == 2
    assert page.count('<p class="pieces" dir="auto">') == 2


def test_every_reason_is_shown_with_its_examples_and_its_meaning(report: dict[str, Any]) -> None:
    counts = CleaningCounts(read=100_000)
    for number, reason in enumerate(REASONS, 1):
        for place in range(number):
            counts.drop(reason, f"train.en:{place + 1}", f"{reason} source {place}", f"{reason} target {place}")
    page = render_page({**report, "cleaning": counts.to_json()})
    for number, reason in enumerate(REASONS, 1):
        section = page[page.index(f"<h3>{reason[0].upper()}{reason[1:]}</h3>") :]
        assert f">{number} ({percent_text(number, 100_000)})<" in section.split("<h3>")[1]
        shown = [place for place in range(number) if f">{reason} source {place}<" in page]
        assert shown == [*range(min(number, 3))]
        meaning = section.partition('<p class="quiet">')[2].partition("</p>")[0]
        assert meaning[0].isupper()
        assert meaning.lower().startswith(REASONS[reason].meaning.lower().replace("'", "&#39;"))
        assert re.findall("<code>(.*?)</code>", meaning) == [*REASONS[reason].keys]
    # The most frequent first.
    assert page.index("<h3>In validation") < page.index("<h3>Duplicate") < page.index("<h3>Malformed")


def test_what_is_to_be_looked_at_comes_first(report: dict[str, Any]) -> None:
    def findings(**changes: Any) -> list[str]:
        page = render_page({**report, "name": "demo", "overlap": {}, "warnings": [], **changes})
        found = re.search(r'<section class="warnings">.*?</section>', page, flags=re.DOTALL)
        return re.findall(r"<li>(.*?)</li>", found[0]) if found else []

    assert findings() == []
    assert [text[:29] for text in findings(name="mine", unique_pairs=49_999)] == ["49,999 training pairs are too"]
    assert findings(name="mine", unique_pairs=50_000) == []
    assert findings(warnings=["the two sides seem to be swapped"]) == ["the two sides seem to be swapped"]
    assert findings(limit=503) == []
    assert findings(limit=502) == ["This is a try: no more than the first 502 training pairs were read (limit)."]
    overlap = {"valid": {"lines": 1000, "pairs": 12, "sources": 12, "targets": 12}}
    (finding,) = findings(overlap=overlap)
    assert finding.startswith("Of 1,000 validation lines, training contains 12 as pairs, 12 as sources, 12 as")
    settings = copy.deepcopy(report["settings"])
    settings["cleaning"]["overlap"] = {"value": "pairs", "is_default": False}
    assert findings(overlap=overlap, settings=settings) == []
    settings["tokenizer"]["taken_from"] = {"value": "models/general", "is_default": False}
    assert findings(name="mine", unique_pairs=49_999, settings=settings) == []


MAY_BE_TOO_GOOD = ": scores on them may be too good; --set cleaning.overlap=sides drops them"


@pytest.mark.parametrize(
    ("setting", "sources", "is_much", "ending"),
    [
        ("report", 10, False, ""),
        ("report", 11, True, MAY_BE_TOO_GOOD),
        ("pairs", 12, False, ", before cleaning.overlap=pairs dropped them"),
        ("pairs", 13, True, MAY_BE_TOO_GOOD),
        ("sides", 99, False, ", before cleaning.overlap=sides dropped them"),
    ],
)
def test_much_overlap_left_in_training_is_a_finding_on_the_page_and_in_the_terminal(
    report: dict[str, Any], setting: str, sources: int, is_much: bool, ending: str
) -> None:
    facts = {"lines": 1000, "pairs": 2, "sources": sources, "targets": 3}
    text = f"f 1,000 test lines, training contains 2 as pairs, {sources} as sources, 3 as targets{ending}"
    settings = copy.deepcopy(report["settings"])
    settings["cleaning"]["overlap"] = {"value": setting, "is_default": False}
    changed = {**report, "overlap": {"test": facts}, "settings": settings}
    assert (f"<li>O{text}</li>" in render_page(changed)) == is_much
    assert (logging.WARNING if is_much else logging.INFO, f"overlap: o{text}") in list(_summary_lines(changed))


def test_settings_stand_as_in_a_corpus_file_and_changed_ones_stand_out(report: dict[str, Any]) -> None:
    page = render_page(report)
    assert '<code>tokenizer.vocab_size</code></th><td class="text"><strong>400</strong>' in page
    assert '<code>tokenizer.seed</code></th><td class="text">1</td>' in page
    assert '<code>cleaning.min_words</code></th><td class="text">null</td>' in page


def test_tables_and_headings_can_be_found_without_seeing_them(report: dict[str, Any]) -> None:
    page = Page(render_page({**report, "warnings": ["x"]}))
    headings = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(headings))
    assert all("scope" in attributes for tag, attributes in page.elements if tag == "th")
    charts = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert [chart["role"] for chart in charts] == ["img", "img"]
    assert charts[0]["aria-label"] == "Training sentences by length in words, en and de"


def test_shares_have_three_digits() -> None:
    shares = {0: "0%", 3: "0.003%", 266: "0.266%", 41_300: "41.3%", 100_000: "100%"}
    assert {part: percent_text(part, 100_000) for part in shares} == shares
    assert percent_text(1, 0) == "0%"


@pytest.mark.parametrize("highest", [0, 1, 2, 3, 5, 6, 11, 99, 100, 101, 3477, 28_994, 36_000_000])
def test_ticks_of_counts_are_short(highest: int) -> None:
    assert max(len(short_number(tick)) for tick in axis_ticks(0, highest, least_step=1)) <= 5


def bars(chart: str, name: str) -> list[float]:
    root = ElementTree.fromstring(chart)
    return [float(bar.attrib["height"]) for bar in root.iter("rect") if bar.attrib["class"] == name]


def chart_of(source: list[int], target: list[int]) -> str:
    sides = {"source": source, "target": target}
    bins = {
        side: summarise_lengths(np.bincount(lengths, minlength=1), width=1)["histogram"]
        for side, lengths in sides.items()
    }
    return length_chart(bins, languages={"source": "en", "target": "<he>"}, unit="words")


def test_bars_are_as_high_as_their_counts() -> None:
    chart = chart_of([1] * 8 + [2] * 4, [1] * 2 + [3] * 6)
    heights = bars(chart, "source")
    assert heights == pytest.approx([0, heights[1], heights[1] / 2, 0], abs=0.1)
    assert bars(chart, "target") == pytest.approx([0, heights[1] / 4, 0, heights[1] * 3 / 4], abs=0.1)
    assert "<title>3 words: en 0; &lt;he&gt; 6</title>" in chart
    assert bars(chart_of([], []), "source") == [0]


def test_the_open_bin_is_marked() -> None:
    chart = chart_of([*range(40), 77, 99], [*range(5)])
    assert ">40+</text>" in chart
    assert "<title>40 or more words: en 2; &lt;he&gt; 0</title>" in chart
