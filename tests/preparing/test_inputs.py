from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from sacrebleu.dataset.base import Dataset

from nmt_cli.preparing.corpus import LocatedCorpus
from nmt_cli.preparing.corpus_loading import corpus_from_files, load_corpus
from nmt_cli.preparing.inputs import (
    FetchedInputs,
    fetch_inputs,
    find_local_inputs,
    text_fingerprint,
)
from tests.hub import write_translations
from tests.preparing.corpus_files import corpus_of, invented_pairs, read_chunks, refusal, run, silent, write_prefix
from tests.preparing.file_server import FileServer, serve_files
from tests.preparing.test_archives import pack

PAIRS = invented_pairs(60, seed=4)
NO_NETWORK = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    (tmp_path / "web").mkdir()
    with serve_files(tmp_path / "web") as server:
        yield server


def corpus(folder: Path, *train: str, overrides: Sequence[str] = ()) -> LocatedCorpus:
    """A corpus with these sources of training text, in YAML; its validation text is there."""
    write_prefix(folder / "valid", PAIRS[:3])
    return corpus_of(folder, ", ".join(f"{{{source}}}" for source in train), *overrides)


def fetched(folder: Path, *train: str, overrides: Sequence[str] = ()) -> FetchedInputs:
    return fetch_inputs(corpus(folder, *train, overrides=overrides), progress=silent)


def pairs_of(found: FetchedInputs) -> list[tuple[str, str]]:
    chunks = read_chunks(found.sources["train"])
    return [pair for chunk in chunks for pair in zip(chunk.src, chunk.tgt, strict=True)]


def archive_of(file: Path, pairs: list[tuple[str, str]] = PAIRS, *, ending: str = "") -> tuple[Path, str]:
    """An archive with training/a.en and a.de, and its SHA-256."""
    sides = ["".join(f"{pair[side]}\n" for pair in pairs).encode() for side in (0, 1)]
    contents = [gzip.compress(side, mtime=0) if ending else side for side in sides]
    names = [f"training/a.{code}{ending}" for code in ("en", "de")]
    archive = pack(file, dict(zip(names, contents, strict=True)))
    return archive, hashlib.sha256(archive.read_bytes()).hexdigest()


def test_every_kind_of_source_is_fetched_in_order_with_its_weight(tmp_path: Path, server: FileServer) -> None:
    write_prefix(tmp_path / "one", PAIRS[:10])
    archive_of(server.folder / "two.tgz", PAIRS[10:20], ending=".gz")
    write_translations(tmp_path / "three.parquet", PAIRS[20:30], ("en", "de"))
    archive_of(tmp_path / "four.zip", PAIRS[30:40])
    for code, side in (("en", 0), ("de", 1)):
        lines = "".join(f"{pair[side]}\n" for pair in PAIRS[40:50])
        (server.folder / f"five.{code}.gz").write_bytes(gzip.compress(lines.encode()))
    (server.folder / "six.tsv").write_text("".join(f"{tgt}\t{src}\n" for src, tgt in PAIRS[50:]))
    at = server.address
    found = fetched(
        tmp_path,
        "kind: text, prefix: one, weight: 2",
        f"kind: archive, url: {at}/two.tgz, source: training/a.en.gz, target: training/a.de.gz, weight: 0.5",
        "kind: parquet, file: three.parquet",
        "kind: archive, file: four.zip, source: training/a.en, target: training/a.de",
        f"kind: text, source: {at}/five.en.gz, target: {at}/five.de.gz",
        f"kind: tsv, file: {at}/six.tsv, source: 2, target: 1",
    )
    assert pairs_of(found) == PAIRS
    assert [source.weight for source in found.sources["train"]] == [2, 0.5, 1, 1, 1, 1]
    train = [record for record in found.records if record.split == "train"]
    names = [
        "one.en",
        "one.de",
        "two.tgz:training/a.en.gz",
        "two.tgz:training/a.de.gz",
        "three.parquet",
        "four.zip:training/a.en",
    ]
    names += ["four.zip:training/a.de", *(f"{at}/{name}" for name in ("five.en.gz", "five.de.gz", "six.tsv"))]
    assert [record.name for record in train] == names
    for record in train[:2]:
        content = (tmp_path / record.name).read_bytes()
        assert (record.bytes, record.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_limit_fetches_no_more_than_it_needs(tmp_path: Path, server: FileServer) -> None:
    for number in range(3):
        archive_of(server.folder / f"{number}.tgz", PAIRS[20 * number : 20 * number + 20])
    train = [
        f"kind: archive, url: {server.address}/{number}.tgz, source: training/a.en, target: training/a.de"
        for number in range(3)
    ]
    found = fetched(tmp_path, *train, overrides=["limit=25"])
    assert len(found.sources["train"]) == 2
    assert [path for _, path, _ in server.requests] == ["/0.tgz", "/1.tgz"]
    assert len(fetched(tmp_path, *train, overrides=["limit=20"]).sources["train"]) == 1
    server.statuses = [404] * 9
    assert fetched(tmp_path, *train, overrides=["limit=25"]).records == found.records  # of the cache


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    (home / "hub").mkdir(parents=True)
    write_prefix(home / "one", PAIRS[:10])
    (home / "one.links").write_text("0-0\n" * 10)
    (home / "two.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS[10:20]))
    archive_of(home / "three.zip", PAIRS[20:30])
    write_translations(home / "hub" / "train.parquet", PAIRS[30:40], ("en", "de"))
    sources = ["kind: text, prefix: ~/one, alignments: ~/one.links", "kind: tsv, file: ~/t*.tsv"]
    sources += ["kind: archive, file: ~/three.zip", "kind: hub, repository: ~/hub, split: train"]
    located = corpus(tmp_path, *sources)
    assert len(find_local_inputs(located)) == 8  # with the validation text
    assert pairs_of(fetch_inputs(located, progress=silent)) == PAIRS[:40]
    assert located.values_here()["train"][1]["file"] == str(home / "t*.tsv")


TMX = '<tmx><body><tu><tuv xml:lang="EN"><seg>one</seg></tuv><tuv xml:lang="DE"><seg>eins</seg></tuv></tu></body></tmx>'


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("de-en.txt.zip", {"Tatoeba.de-en.de": "eins\n", "Tatoeba.de-en.en": "one\n", "Tatoeba.de-en.xml": "<x/>"}),
        ("corpus.tgz", {"a/train.en.txt": "one\n", "a/train.de.txt": "eins\n", "a/train.fr.txt": "un\n"}),
        ("opus.zip", {"opus/en.txt": "one\n", "opus/de.txt": "eins\n"}),
        ("export.zip", {"memory.tmx": TMX, "__MACOSX/._memory.tmx": "x"}),
    ],
)
def test_an_archive_is_read_as_it_is_downloaded(tmp_path: Path, name: str, files: dict[str, str]) -> None:
    contents = {"README": "about", "LICENSE": "terms", **files}
    archive = pack(tmp_path / name, {member: text.encode() for member, text in contents.items()})
    located = corpus_from_files({"train": [str(archive)]}, languages="en-de", name="x", overrides=[])
    assert pairs_of(fetch_inputs(located, progress=silent)) == [("one", "eins")]


@pytest.mark.parametrize(
    ("names", "found"), [(["a.en", "a.de", "b.en", "b.de"], "2 texts"), (["a.fr", "a.de"], "no text in en and de")]
)
def test_an_archive_without_one_choice_is_answered_with_its_files(tmp_path: Path, names: list[str], found: str) -> None:
    archive = pack(tmp_path / "a.zip", dict.fromkeys(names, b"x\n"))
    located = corpus_from_files({"train": [str(archive)]}, languages="en-de", name="x", overrides=[])
    error = refusal(lambda: fetch_inputs(located, progress=silent))
    assert found in error.message
    assert ", ".join(sorted(names)) in error.hint


def test_an_archive_of_the_users_that_is_another_file_is_refused(tmp_path: Path) -> None:
    archive, digest = archive_of(tmp_path / "a.tgz")
    size, train = archive.stat().st_size, "kind: archive, file: a.tgz, source: training/a.en, target: training/a.de"
    assert pairs_of(fetched(tmp_path, f"{train}, bytes: {size}, sha256: {digest}")) == PAIRS
    for check, differs in (
        ("bytes: 4", f"it has {size:,} bytes, not 4"),
        (f"sha256: {'f' * 64}", f"its SHA-256 is {digest}, not {'f' * 64}"),
    ):
        error = refusal(partial(fetched, tmp_path, f"{train}, {check}"))
        assert error.message == f"a.tgz is not the file that it should be: {differs}"
        assert error.where == str(archive)
        assert error.hint == "fetch it again; if another version is meant, correct bytes and sha256 in the corpus file"


def test_an_archive_that_is_put_into_the_cache_spares_the_network(tmp_path: Path) -> None:
    train = f"kind: archive, url: {NO_NETWORK}/x/parts.tgz, source: training/a.en, target: training/a.de"
    error = refusal(lambda: fetched(tmp_path, train))
    place = re.search(r"or fetch it by other means and save it as (\S+)", error.hint)
    assert place is not None
    _, digest = archive_of(Path(place[1]))
    assert pairs_of(fetched(tmp_path, f"{train}, sha256: {digest}")) == PAIRS


SGML = """\
<srcset setid="newstest2014" srclang="any">
<doc sysid="ref" docid="1" genre="news" origlang="en">
<hl><seg id="1">A  headline</seg></hl>
<p>
<seg id="2"> One &amp; two </seg>
</p></doc></srcset>
"""
TALKS = """\
<url>http://www.ted.com/talks/x</url>
<keywords>talks, a</keywords>
<speaker>Somebody</speaker>
<talkid>535</talkid>
<title>A title</title>
<description>TED Talk: what it is about</description>
 It begins.
1 < 2, they say.
<reviewer href="x">R</reviewer>
"""


@pytest.mark.parametrize(
    ("markup", "text", "lines"),
    [
        ("seg", SGML, ["A headline", "One &amp; two"]),
        ("ted", TALKS, ["A title", "TED Talk: what it is about", "It begins.", "1 < 2, they say."]),
    ],
)
def test_sentences_are_taken_out_of_markup(tmp_path: Path, markup: str, text: str, lines: list[str]) -> None:
    sides = {"en": text, "de": text.replace("A ", "Ein ")}
    pack(tmp_path / "a.tgz", {f"t/a.{code}": side.encode() for code, side in sides.items()})
    for code, side in sides.items():
        (tmp_path / f"b.{code}.sgm").write_text(side)
    found = fetched(
        tmp_path,
        f"kind: text, source: b.en.sgm, target: b.de.sgm, markup: {markup}",
        f"kind: archive, file: a.tgz, source: t/a.en, target: t/a.de, markup: {markup}",
    )
    assert pairs_of(found) == [(line, line.replace("A ", "Ein ")) for line in lines] * 2


def test_spaces_of_segments_are_those_that_sacrebleu_makes(tmp_path: Path) -> None:
    lines = ["20\u00a0000 \u202fEuro", "\u2003Ein\t Wort\u3000\u00a0"]
    for code in ("en", "de"):
        text = "".join(f'<seg id="{number}">{line}</seg>\n' for number, line in enumerate(lines, 1))
        (tmp_path / f"a.{code}").write_text(text, encoding="utf-8")
    theirs = [Dataset._clean(line) for line in lines]
    assert pairs_of(fetched(tmp_path, "kind: text, prefix: a, markup: seg")) == [(line, line) for line in theirs]
    assert theirs == ["20 000 Euro", "Ein Wort"]


def test_text_without_the_markup_that_is_named_is_an_error(tmp_path: Path) -> None:
    write_prefix(tmp_path / "a", PAIRS)
    error = refusal(lambda: fetched(tmp_path, "kind: text, prefix: a, markup: seg"))
    assert error.message == "a.en has no sentence in the markup seg"
    assert error.where == str(tmp_path / "a.en")
    assert error.hint == "write markup: seg for <seg> elements, ted for tagged talks, null for plain text"


def test_test_sets_are_read_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sacrebleu.dataset

    class Known:
        langpairs = {"en-de": ["a", "b"]}  # noqa: RUF012  # as sacreBLEU has it

        def get_source_file(self, pair: str) -> str:
            return str(tmp_path / "test.en")

        def get_reference_files(self, pair: str) -> list[str]:
            return [str(tmp_path / "test.de"), "of another translator"]

    write_prefix(tmp_path / "test", PAIRS)
    monkeypatch.setitem(sacrebleu.dataset.DATASETS, "wmt14/full", Known())
    found = fetched(tmp_path, "kind: testset, name: wmt14/full")
    assert pairs_of(found) == PAIRS
    assert [record.name for record in found.records][:2] == [
        "sacrebleu:wmt14/full en-de source",
        "sacrebleu:wmt14/full en-de reference",
    ]


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("wmt14/ful", "sacreBLEU knows no test set 'wmt14/ful'", "did you mean wmt14/full"),
        ("wmt21/dev", "the test set wmt21/dev has no languages 'en-de'", "take one of en-ha, en-is, ha-en"),
    ],
)
def test_a_test_set_that_is_not_known_is_answered_with_what_is(
    tmp_path: Path, name: str, message: str, hint: str
) -> None:
    error = refusal(lambda: fetched(tmp_path, f"kind: testset, name: {name}"))
    assert (error.message, error.where) == (message, f"kind: testset, name: {name}")
    assert error.hint.startswith(hint)


def test_keys_follow_from_contents_and_not_from_places(tmp_path: Path, server: FileServer) -> None:
    _, digest = archive_of(server.folder / "parts.tgz")
    (server.folder / "x").mkdir()
    archive_of(server.folder / "x" / "parts.tgz")
    for name, text in (("a", "one\teins\n"), ("b", "one\teins\n"), ("c", "two\tzwei\n")):
        (tmp_path / f"{name}.tsv").write_text(text)

    def keys(*overrides: str, url: str = "parts.tgz", file: str = "a.tsv", sha: str = f"sha256: {digest}") -> list[str]:
        archive = f"kind: archive, url: {server.address}/{url}, source: training/a.en, target: training/a.de, {sha}"
        located = corpus(tmp_path, archive, f"kind: tsv, file: {file}", overrides=overrides)
        found = fetch_inputs(located, progress=silent)
        return [
            text_fingerprint(located, find_local_inputs(located)),
            text_fingerprint(located, found.records),
        ]

    first = keys()
    assert keys(url="x/parts.tgz", file="b.tsv") == first
    assert keys(file="a.tsv, source: 1, target: 2")[0] != first[0]  # data of columns found by name may be other text
    weighted, marked = (keys(sha=f"sha256: {digest}, {setting}") for setting in ("weight: 2", "markup: ted"))
    unnamed = keys(sha="sha256: null")
    for changed in (unnamed, weighted, marked, keys("limit=5"), keys("cleaning.max_words=9"), keys(file="c.tsv")):
        assert changed[0] != first[0]
        assert changed[1] != first[1]


def test_a_header_that_is_denied_makes_other_data(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(
        "".join(f"{src}\t{tgt}\n" for src, tgt in [("en", "de"), *invented_pairs(80, seed=1)])
    )
    with_header = corpus(tmp_path, "kind: tsv, file: a.tsv")
    without = corpus(tmp_path, "kind: tsv, file: a.tsv, header: false")
    assert run(with_header, tmp_path / "data").report["cleaning"]["read"] == 80
    error = refusal(lambda: run(without, tmp_path / "data"))
    assert "holds other data: its sources differ" in error.message
    assert run(without, tmp_path / "data", overwrite=True).report["cleaning"]["read"] == 81
    assert run(without, tmp_path / "data").was_finished


def test_overwrite_takes_what_an_address_without_a_hash_holds_now(tmp_path: Path, server: FileServer) -> None:
    pairs = invented_pairs(90, seed=1)
    (server.folder / "a.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs[:80]))
    located = corpus(tmp_path, f"kind: tsv, file: {server.address}/a.tsv")
    assert run(located, tmp_path / "data").report["cleaning"]["read"] == 80
    (server.folder / "a.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    assert run(located, tmp_path / "data").was_finished
    assert run(located, tmp_path / "data", overwrite=True).report["cleaning"]["read"] == 90


def test_an_address_with_a_query_is_read_by_the_ending_before_it(tmp_path: Path, server: FileServer) -> None:
    (server.folder / "a.tsv?download=true").write_text("one\teins\n")
    address = f"{server.address}/a.tsv?download=true"
    located = corpus_from_files({"train": [address]}, languages="en-de", name="x", overrides=[])
    assert pairs_of(fetch_inputs(located, progress=silent)) == [("one", "eins")]


def test_a_compressed_download_without_an_ending_is_read(tmp_path: Path, server: FileServer) -> None:
    (server.folder / "get.php?f=a.tsv.gz").write_bytes(gzip.compress(b"one\teins\n"))
    assert pairs_of(fetched(tmp_path, f"kind: tsv, file: '{server.address}/get.php?f=a.tsv.gz'")) == [("one", "eins")]


def test_what_would_be_downloaded_is_told_in_words(tmp_path: Path) -> None:
    (train,) = load_corpus("wmt14-en-de", overrides=[]).corpus.sources("train")
    assert train.describe() == ["wmt/wmt14 on the hub, de-en, train"]
    located = corpus(
        tmp_path,
        "kind: archive, url: https://host/a.tgz, bytes: 1200, source: a.en, target: a.de",
        "kind: testset, name: wmt14/full",
        "kind: text, source: https://host/a.en.gz, target: https://host/a.de.gz",
        "kind: jsonl, file: https://host/a.jsonl",
        "kind: text, prefix: valid",
        "kind: hub, repository: ./here, split: train",
    )
    assert [source.describe() for source in located.corpus.sources("train")] == [
        ["https://host/a.tgz, 1,200 bytes: a.en, a.de"],
        ["wmt14/full, from sacreBLEU"],
        ["https://host/a.en.gz", "https://host/a.de.gz"],
        ["https://host/a.jsonl"],
        [],
        [],
    ]
