from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.cleaning import EXAMPLES_PER_REASON, REASONS, Cleaner, DigestSet, digests, tidy
from nmt_cli.preparing.corpora import CleaningConfig

# What a careful reader would say of each pair, by hand.
JUDGED: list[tuple[str | None, str, str]] = [
    (None, "A dog runs.", "Ein Hund rennt."),
    ("empty", "", "Nichts."),
    ("empty", "Nothing.", " \u00a0 "),
    ("too long", "a " * 251, "b " * 120),
    (None, "a " * 250, "b " * 240),
    ("too long", "x" * 2001, "y" * 2000),
    (None, "x" * 2000, "y" * 2000),
    ("length ratio", "By the way, what is this?", "Was?"),
    (None, "abcdefghi", "abc"),  # exactly 3
    ("length ratio", "abcdefghij", "abc"),
    ("identical sides", "Copyright 2014", "Copyright 2014"),
    ("identical sides", " Copyright 2014", "Copyright  2014 "),
    ("invalid UTF-8", b"caf\xe9 is closed".decode("utf-8", "surrogateescape"), "Das Café ist zu"),
    ("invalid UTF-8", "half a character", "\ud83d"),
    ("control characters", "bell\x07 rings", "Glocke läutet"),
    ("control characters", "it costs 5 \x80", "es kostet 5 €"),
    ("control characters", "a\ttab inside", "ein Tabulator"),
    ("line break", "one\nline too many", "eine Zeile"),
    ("line break", "one line", "eine\r\nZeile"),
    (None, "line ends outside\n", "enden außen\r\n"),
    ("duplicate", "A dog runs.", "Ein Hund rennt."),
    ("duplicate", "  A dog  runs. ", "Ein Hund rennt."),
    (None, "A dog runs.", "Ein Hund läuft."),
    (None, "zero\u200bwidth, line\u2028separator", "ist kein Steuerzeichen"),
]
DROPPED = {
    reason: sum(1 for judged, _, _ in JUDGED if judged == reason) for reason in REASONS if reason != "malformed record"
}


def chunk(pairs: list[tuple[str, str]], *, first_line: int = 1) -> Chunk:
    return Chunk([src for src, _ in pairs], [tgt for _, tgt in pairs], first_line, "train.en")


def test_every_pair_is_judged_as_by_hand() -> None:
    cleaner = Cleaner(CleaningConfig())
    kept = cleaner.clean(chunk([(src, tgt) for _, src, tgt in JUDGED]))
    assert kept == [(src.strip(), tgt.strip()) for judged, src, tgt in JUDGED if judged is None]
    counts = {reason: dropped.count for reason, dropped in cleaner.dropped.items() if reason != "malformed record"}
    assert counts == DROPPED
    assert (cleaner.read, cleaner.kept) == (len(JUDGED), len(kept))


def test_examples_are_the_first_and_name_their_line() -> None:
    cleaner = Cleaner(CleaningConfig())
    cleaner.clean(chunk([("good", "gut"), ("", "a")], first_line=101))
    cleaner.clean(chunk([("", f"{number}") for number in range(9)], first_line=201))
    examples = cleaner.dropped["empty"].examples
    assert [example.where for example in examples] == ["train.en:102", "train.en:201", "train.en:202"]
    assert len(examples) == EXAMPLES_PER_REASON
    assert [example.target for example in examples] == ["a", "0", "1"]


def test_examples_show_what_cannot_be_printed() -> None:
    cleaner = Cleaner(CleaningConfig())
    cleaner.clean(chunk([(b"caf\xe9".decode("utf-8", "surrogateescape"), "\ud83d"), ("a\x00b", "x" * 500)]))
    invalid, control = (cleaner.dropped[reason].examples[0] for reason in ("invalid UTF-8", "control characters"))
    assert (invalid.source, invalid.target) == ("caf\\xe9", "\\ud83d")
    assert control.source == "a\\x00b"
    assert control.target == "x" * 160 + " …"


def test_malformed_records_are_counted_with_what_was_read() -> None:
    cleaner = Cleaner(CleaningConfig())
    broken = Chunk(["a b", ""], ["c d", ""], 1, "train.jsonl", {1: "{not json"})
    assert cleaner.clean(broken) == [("a b", "c d")]
    assert cleaner.dropped["malformed record"].count == 1
    assert cleaner.dropped["malformed record"].examples[0].source == "{not json"


def test_rules_that_are_off_drop_nothing() -> None:
    off = CleaningConfig(
        max_words=None,
        max_characters=None,
        max_length_ratio=None,
        identical_sides=False,
        control_characters=False,
        duplicates=False,
    )
    cleaner = Cleaner(off)
    cleaner.clean(chunk([(src, tgt) for _, src, tgt in JUDGED]))
    always = DROPPED["empty"] + DROPPED["invalid UTF-8"] + DROPPED["line break"]
    assert cleaner.read - cleaner.kept == always


def test_duplicates_are_found_across_chunks() -> None:
    cleaner = Cleaner(CleaningConfig())
    pairs = [(f"source {number}", f"target {number}") for number in range(50)]
    for start in (0, 25, 10, 0):
        cleaner.clean(chunk(pairs[start : start + 25]))
    assert cleaner.kept == 50
    assert cleaner.dropped["duplicate"].count == 50


@given(batches=st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=12))
def test_a_digest_set_behaves_as_a_set(batches: list[list[int]]) -> None:
    ours, reference = DigestSet(), set[int]()
    for batch in batches:
        expected = []
        for number in batch:
            expected.append(number not in reference)
            reference.add(number)
        assert ours.add(np.array(batch, dtype=np.uint64)).tolist() == expected
    everything = np.arange(41, dtype=np.uint64)
    assert ours.contains(everything).tolist() == [number in reference for number in range(41)]


def test_digests_are_those_of_blake2b() -> None:
    # RFC 7693's BLAKE2b with 8 bytes of output, by `printf abc | b2sum -l 64`.
    assert digests(["abc"]).tobytes().hex() == "d8bb14d833d59559"
    assert digests([]).shape == (0,)


@given(text=st.text())
def test_tidying_only_touches_space(text: str) -> None:
    tidied = tidy(text)
    assert tidied.split() == text.split()
    assert tidy(tidied) == tidied
    assert "  " not in tidied
