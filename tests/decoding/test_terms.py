"""Terms: lists of them, where they stand in text, and translations that must have them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nmt_cli.api import Translator
from nmt_cli.decoding.search.hypotheses import SourceSentence, Term
from nmt_cli.decoding.terms import TermList, missing_terms
from nmt_cli.errors import DataError, UsageError
from tests.artifacts.builders import save_tiny, tiny_recipe
from tests.decoding import reference
from tests.decoding.reference import (
    assert_same,
    decoding,
    gnmt,
    in_float64,
    random_model,
    random_rows,
    search,
)
from tests.decoding.trained import TEST

VOCAB = 7
ENDS_WORD = torch.tensor([False, False, False, True, True, False, False])  # EOS and piece 4 begin no part of a word


def term(*alternatives: Sequence[int], may_follow: torch.Tensor | None = None) -> Term:
    return Term(tuple(map(tuple, alternatives)), may_follow)


def has_terms(ids: Sequence[int], terms: Sequence[Term]) -> bool:
    """Whether the ids have each term at a place of its own: tried one after another in all ways."""

    def is_met(number: int, taken: frozenset[int]) -> bool:
        if number == len(terms):
            return True
        may_follow = terms[number].may_follow
        for row in terms[number].alternatives:
            for start in range(len(ids) - len(row) + 1):
                end, place = start + len(row), frozenset(range(start, start + len(row)))
                ends_well = may_follow is None or end == len(ids) or bool(may_follow[ids[end]])
                if (
                    tuple(ids[start:end]) == row
                    and ends_well
                    and not place & taken
                    and is_met(number + 1, taken | place)
                ):
                    return True
        return False

    return is_met(0, frozenset())


@pytest.mark.parametrize(
    "terms",
    [
        [term([6])],
        [term([5, 4], [6, 6, 4])],
        [term([4, 5]), term([6])],
        [term([6]), term([6])],  # the same term twice
        [term([5], may_follow=ENDS_WORD)],
        [term([5], [6], may_follow=ENDS_WORD), term([4])],
    ],
)
def test_a_beam_that_keeps_every_prefix_is_exhaustive_search_with_terms(terms: list[Term]) -> None:
    limit, source = 5, [5, 6]
    model = random_model(1, vocab=VOCAB, sharpness=2)
    found = reference.all_translations(in_float64(model), source, vocab=VOCAB, limit=limit)
    scored = [replace(one, score=one.log_prob / gnmt(0.6)(min(len(one.ids) + 1, limit))) for one in found]
    allowed = sorted((one for one in scored if has_terms(one.ids, terms)), key=lambda one: -one.score)
    assert len(allowed) < len(scored)
    config = decoding(beam=3**limit, max_extra_tokens=3)
    assert_same(search([model], [SourceSentence(source, terms=tuple(terms))], config=config, nbest=9), [allowed[:9]])


def sources_with_terms(count: int) -> list[SourceSentence]:
    """Random sources; every third has no term, and the others have up to four of one to three pieces."""
    rows = random_rows(8, count=count, vocab=40, longest=9)
    pieces = iter(torch.randint(4, 40, (count * 12,), generator=torch.Generator().manual_seed(8)).tolist())
    return [
        SourceSentence(
            row,
            key=str(number),
            terms=tuple(
                term([next(pieces) for _ in range(1 + place % 3)], [next(pieces)]) for place in range(number % 3 * 2)
            ),
        )
        for number, row in enumerate(rows)
    ]


@pytest.mark.parametrize("beam", [1, 4])
def test_terms_are_met_whatever_the_batch_and_change_no_other_sentence(beam: int) -> None:
    model = random_model(6, vocab=40, sharpness=2)
    sources, config = sources_with_terms(40), decoding(beam=beam, max_extra_tokens=30)
    together = search([model], sources, config=config)
    for source, (found,) in zip(sources, together, strict=True):
        assert has_terms(found.ids, source.terms)
        forced = reference.forced_log_prob(model, source.ids, found.ids, limit=len(source.ids) + 30)
        assert found.log_prob == pytest.approx(forced, abs=1e-4)
    for number in (0, 4, 11, 39):
        assert_same(search([model], [sources[number]], config=config), [together[number]])
    plain = [source for source in sources if not source.terms]
    free = search([model], plain, config=config)
    assert free == [found for source, found in zip(sources, together, strict=True) if not source.terms]


def test_at_the_limit_the_translation_with_the_most_terms_wins() -> None:
    model = random_model(6, vocab=40, sharpness=2)
    long, short, other = term([30, 31, 32, 33]), term([20, 21]), term([25])
    source = SourceSentence([5, 6], terms=(long, short, other))
    (found,), *_ = search([model], [source], config=decoding(max_extra_tokens=1))  # three pieces: no room for the first
    assert has_terms(found.ids, [short, other])


def table(tmp_path: Path, text: str, name: str = "terms.tsv") -> Path:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / name


def found(terms: dict[str, Sequence[str]], text: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(text[one.start : one.end], one.targets) for one in TermList(terms).find(text)]


@pytest.mark.parametrize(
    ("terms", "text", "expected"),
    [
        ({"house": ["Haus"]}, "a house, the houses, a house-boat", [("house", ("Haus",)), ("house", ("Haus",))]),
        ({"house": ["Haus"]}, "HOUSE and House", []),  # as typed, inside a sentence
        ({"house": ["haus"]}, "House! “House” is it.", [("House", ("haus", "Haus")), ("House", ("haus", "Haus"))]),
        ({"York": ["Y"], "New York": ["NY"]}, "New York and York", [("New York", ("NY",)), ("York", ("Y",))]),
        ({"a b": ["1"], "b c d": ["2"]}, "a b c d", [("b c d", ("2",))]),  # the longest ones first
        ({"New  York": ["NY"]}, "in New\tYork", [("New\tYork", ("NY",))]),
        ({"C++": ["C++"], "%": ["Prozent"]}, "C++ is 5% of it", [("C++", ("C++",)), ("%", ("Prozent",))]),
        ({"中国": ["China"]}, "我爱中国人", [("中国", ("China",))]),
        ({"हिन्द": ["x"]}, "हिन्दी", []),  # its vowel signs belong to a word
        ({"small": ["klein"]}, "Dr. Small is here", []),  # a name, after an abbreviation
        ({}, "nothing", []),
    ],
)
def test_terms_are_found_as_whole_words(
    terms: dict[str, Sequence[str]], text: str, expected: list[tuple[str, tuple[str, ...]]]
) -> None:
    assert found(terms, text) == expected


def test_each_place_in_a_translation_counts_for_one_term() -> None:
    occurrences = TermList({"house": ["Haus", "Hauses"], "New York": ["New York"], "york": ["York"]})
    text = "house and house in New York by york"
    assert missing_terms(occurrences.find(text), "des Hauses und das Haus in New York bei York") == []
    assert missing_terms(occurrences.find(text), "das Haus in New York") == [1, 3]
    assert missing_terms(occurrences.find("house"), "Haustür und Gartenhaus") == [0]


def test_a_list_is_read_from_tsv_and_csv(tmp_path: Path) -> None:
    expected = [("big house", ("Villa", "Villen")), ("cat", ("Katze",))]
    for name, text in {
        "a.tsv": "\ufeffbig house\tVilla|Villen\r\n\r\ncat\tKatze\n",
        "b.csv": 'big house;Villa|Villen\n"cat";"Katze"\ncat;Katze\n',
        "c.csv": 'cat,Katze\n"big\nhouse",Villa | Villen\n',
    }.items():
        terms = TermList.read(table(tmp_path, text, name))
        text = "a big house, a cat"
        assert [(text[one.start : one.end], one.targets) for one in terms.find(text)] == expected
        assert len(terms) == 2


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a\tb\n\n\tc\n", 3, "empty term"),
        ("a\tb\nc\t \n", 2, "empty translation"),
        ("a\tb|\n", 1, "empty translation"),
        ("a\tb\nc\td\na\te\n", 3, "translates 'a' by 'e', but it is 'b' in line 1"),
        ("a\tb\nword\n", 2, "1 column,"),
        ("a\tb\tc\n", 1, "3 columns"),
    ],
)
def test_a_wrong_list_is_refused_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as error:
        TermList.read(table(tmp_path, text))
    assert error.value.where == f"{tmp_path / 'terms.tsv'}:{line}"


def test_a_hundred_thousand_terms_are_quick(tmp_path: Path) -> None:
    rows = [f"the term {number} of {number % 97}\tder Begriff {number}" for number in range(100_000)]
    started = time.process_time()
    terms = TermList.read(table(tmp_path, "\n".join(rows)))
    text = " ".join(f"and the term {number} of {number % 97}" for number in range(0, 100_000, 50))
    assert len(terms.find(text)) == 2000
    assert time.process_time() - started < 20


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.from_pretrained(trained, device="cpu")


TERMS = {"dog": ["Köter"], "house": ["Gebäude", "Häuschen"], "bread": ["Brot"], "nobody": ["kein Mensch"]}


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"nbest": 2}, {"mbr": "chrf"}, {"stop_loops": True}])
def test_a_translation_has_its_terms_and_otherwise_stays(translator: Translator, options: dict[str, object]) -> None:
    lines, terms = [source for source, _ in TEST[:60]], TermList(TERMS)
    free = translator.translate(lines, **options)  # type: ignore[arg-type]
    bound = translator.translate(lines, terms=terms, **options)  # type: ignore[arg-type]
    num_changed = 0
    for line, before, after in zip(lines, free, bound, strict=True):
        occurrences = terms.find(line)
        for translation in (after, *after.alternatives):
            assert not missing_terms(occurrences, translation.text)
            assert translation.unmet_terms == ()
        if not (options.keys() & {"nbest", "mbr"} or missing_terms(occurrences, before.text)):
            assert after == before
        num_changed += after.text != before.text
    assert num_changed > 5


def test_what_cannot_be_met_is_told(translator: Translator) -> None:
    terms = TermList({"dog": ["Hund " * 200], "house": ["Haus"]})
    (translation,) = translator.translate(["the dog sees a house. nobody sees the dog."], terms=terms)
    assert translation.unmet_terms == ("dog", "dog")
    assert "Haus" in translation.text


def test_a_prefix_counts_and_samples_are_refused(translator: Translator) -> None:
    terms = TermList({"dog": ["Köter"]})
    (translation,) = translator.translate(["the dog sees a house"], prefixes=["der Köter"], terms=terms)
    assert translation.text.startswith("der Köter ")
    assert translation.text.count("Köter") == 1
    with pytest.raises(UsageError) as error:
        translator.translate(["the dog"], terms=terms, samples=2)
    assert error.value.setting == "terms"


def test_a_term_of_a_script_without_spaces_stands_anywhere(tmp_path: Path) -> None:
    save_tiny(tmp_path / "model", spm_folder=tmp_path, recipe=tiny_recipe(), languages="en-zh")
    model = Translator.from_pretrained(tmp_path / "model", device="cpu")
    (translation,) = model.translate(["a small house"], terms=TermList({"house": ["房子"]}))
    assert "房子" in translation.text
    assert translation.unmet_terms == ()
