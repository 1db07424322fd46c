from __future__ import annotations

import errno
import gzip
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from nmt_cli.preparing.corpora import LocatedCorpus, load_corpus
from nmt_cli.preparing.reading.readers import read_chunks
from nmt_cli.preparing.sources import hub, testsets
from nmt_cli.preparing.sources import kinds as sources
from nmt_cli.preparing.sources.downloads import Unreachable
from nmt_cli.preparing.sources.fetching import Fetched, fetch
from nmt_cli.preparing.sources.inputs import declared_key, find_inputs, reading_key, remote_inputs
from nmt_cli.preparing.sources.kinds import HubSource, LanguagePair
from tests.hub import write_translations
from tests.preparing.corpus_files import invented_pairs, refusal, silent, write_prefix
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


def corpus(folder: Path, train: str, *overrides: str) -> LocatedCorpus:
    """A corpus with these sources of training text; its validation text is there."""
    write_prefix(folder / "valid", PAIRS[:3])
    text = f"languages: {{source: en, target: de}}\ntrain:\n{train}\nvalid: [{{kind: text, prefix: valid}}]\n"
    (folder / "c.yaml").write_text(text)
    return load_corpus(str(folder / "c.yaml"), overrides=overrides)


def fetched(folder: Path, train: str, *overrides: str) -> Fetched:
    return fetch(corpus(folder, train, *overrides), progress=silent)


def pairs_of(found: Fetched) -> list[tuple[str, str]]:
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
    found = fetched(
        tmp_path,
        f"""\
  - {{kind: text, prefix: one, weight: 2}}
  - {{kind: archive, url: {server.address}/two.tgz, source: training/a.en.gz, target: a.de.gz, weight: 0.5}}
  - {{kind: parquet, file: three.parquet}}
  - {{kind: archive, file: four.zip, source: a.en, target: a.de}}
  - {{kind: text, source: {server.address}/five.en.gz, target: {server.address}/five.de.gz}}
  - {{kind: tsv, file: {server.address}/six.tsv, source: 2, target: 1}}
""",
    )
    assert pairs_of(found) == PAIRS
    assert [source.weight for source in found.sources["train"]] == [2, 0.5, 1, 1, 1, 1]
    train = [record for record in found.inputs if record.split == "train"]
    names = ["one.en", "one.de", "two.tgz:training/a.en.gz", "two.tgz:a.de.gz", "three.parquet"]
    names += ["four.zip:a.en", "four.zip:a.de", *(f"{server.address}/{name}" for name in ("five.en.gz", "five.de.gz"))]
    assert [record.name for record in train] == [*names, f"{server.address}/six.tsv"]
    for record in train[:2]:
        content = (tmp_path / record.name).read_bytes()
        assert (record.bytes, record.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_limit_fetches_no_more_than_it_needs(tmp_path: Path, server: FileServer) -> None:
    for number in range(3):
        archive_of(server.folder / f"{number}.tgz", PAIRS[20 * number : 20 * number + 20])
    train = "".join(
        f"  - {{kind: archive, url: {server.address}/{number}.tgz, source: a.en, target: a.de}}\n"
        for number in range(3)
    )
    found = fetched(tmp_path, train, "limit=25")
    assert len(found.sources["train"]) == 2
    assert [path for _, path, _ in server.requests] == ["/0.tgz", "/1.tgz"]
    server.requests.clear()
    assert len(fetched(tmp_path, train, "limit=20").sources["train"]) == 1


def test_a_checksum_that_does_not_match_is_an_error_for_files_of_ones_own(tmp_path: Path) -> None:
    archive_of(tmp_path / "a.tgz")
    train = "  - {kind: archive, file: a.tgz, source: a.en, target: a.de, sha256: " + "f" * 64 + "}"
    error = refusal(lambda: fetched(tmp_path, train))
    assert error.message.startswith("a.tgz is not the file that it should be: its SHA-256 is ")
    assert error.where == str(tmp_path / "a.tgz")


@pytest.mark.parametrize("layout", ["archive", "members", "flat and packed", "address"])
def test_a_mirror_stands_in_for_the_network(tmp_path: Path, server: FileServer, layout: str) -> None:
    archive, digest = archive_of(tmp_path / "parts.tgz")
    mirror = tmp_path / "mirror"
    (mirror / "training").mkdir(parents=True)
    place = "mirror"
    if layout == "archive":
        archive.rename(mirror / "training" / "parts.tgz")
    elif layout == "members":
        write_prefix(mirror / "training" / "a", PAIRS)
        write_prefix(mirror / "a", PAIRS[:1])  # the one with the right path is taken
    elif layout == "flat and packed":
        for code, side in (("en", 0), ("de", 1)):
            lines = "".join(f"{pair[side]}\n" for pair in PAIRS)
            (mirror / f"a.{code}.gz").write_bytes(gzip.compress(lines.encode()))
    else:
        archive.rename(server.folder / "parts.tgz")
        place = f"{server.address}/"
    train = f"""\
  - {{kind: archive, url: {NO_NETWORK}/x/parts.tgz, sha256: {digest}, source: training/a.en, target: training/a.de}}
"""
    found = fetched(tmp_path, train, f"mirror={place}")
    assert pairs_of(found) == PAIRS
    assert [record.name for record in found.inputs][:2] == ["parts.tgz:training/a.en", "parts.tgz:training/a.de"]


def test_a_mirror_on_the_command_line_starts_at_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "mirror").mkdir(parents=True)
    _, digest = archive_of(tmp_path / "here" / "mirror" / "parts.tgz")
    monkeypatch.chdir(tmp_path / "here")
    train = f"  - {{kind: archive, url: {NO_NETWORK}/parts.tgz, sha256: {digest}, source: a.en, target: a.de}}"
    assert pairs_of(fetched(tmp_path, train, "mirror=mirror")) == PAIRS


def test_a_mirror_that_does_not_answer_is_said_and_not_passed_over(tmp_path: Path, server: FileServer) -> None:
    _, digest = archive_of(server.folder / "parts.tgz")
    train = f"  - {{kind: archive, url: {server.address}/parts.tgz, sha256: {digest}, source: a.en, target: a.de}}"
    error = refusal(lambda: fetched(tmp_path, train, f"mirror={NO_NETWORK}"))
    assert error.message == f"cannot ask for {NO_NETWORK}/parts.tgz: [Errno 111] Connection refused"
    assert server.requests == []


def test_an_archive_in_a_mirror_is_checked_as_always(tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    archive_of(tmp_path / "mirror" / "parts.tgz")
    train = f"  - {{kind: archive, url: {NO_NETWORK}/parts.tgz, sha256: {'f' * 64}, source: a.en, target: a.de}}"
    error = refusal(lambda: fetched(tmp_path, train, "mirror=mirror"))
    assert error.message.startswith("parts.tgz is not the file that it should be")
    assert error.where == str(tmp_path / "mirror" / "parts.tgz")


def test_a_mirror_that_is_no_folder_or_has_a_file_twice_is_named(tmp_path: Path) -> None:
    train = f"  - {{kind: archive, url: {NO_NETWORK}/parts.tgz, source: a.en, target: a.de}}"
    error = refusal(lambda: fetched(tmp_path, train, "mirror=nowhere"))
    assert error.message == "the mirror nowhere is not a folder"
    assert error.where == f"{tmp_path / 'nowhere'}, {Path.cwd() / 'nowhere'}"
    assert error.hint == "name the folder that has the archives, or their unpacked files: --set mirror=FOLDER"
    for folder in ("m/1", "m/2"):
        (tmp_path / folder).mkdir(parents=True)
        write_prefix(tmp_path / folder / "a", PAIRS)
    error = refusal(lambda: fetched(tmp_path, train, "mirror=m"))
    assert error.message == "the mirror has a.en more than once"
    assert error.where == f"{tmp_path / 'm/1/a.en'}, {tmp_path / 'm/2/a.en'}"


HUB = """\
  - kind: hub
    repository: wmt/wmt14
    split: train
    weight: 3
    otherwise:
      - {{kind: archive, url: {address}/parts.tgz, sha256: {digest}, source: a.en, target: a.de, weight: 0.5}}
"""


def no_hub(*arguments: object, **keywords: object) -> Any:
    raise Unreachable("cannot reach wmt/wmt14 on the hub: down", where="https://huggingface.co", hint="wait")


def test_archives_are_read_where_the_hub_cannot_be_reached(
    tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hub, "_ask", lambda source: Unreachable("no hub", hint="wait"))
    _, digest = archive_of(server.folder / "parts.tgz")
    train = HUB.format(address=server.address, digest=digest)
    found = fetched(tmp_path, train)
    assert pairs_of(found) == PAIRS
    assert [source.weight for source in found.sources["train"]] == [1.5]
    assert "no hub; reading what the corpus file names in its place" in caplog.text


def test_without_any_network_everything_that_helps_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_ask", lambda source: Unreachable("no hub", hint="wait"))
    error = refusal(lambda: fetched(tmp_path, HUB.format(address=NO_NETWORK, digest="f" * 64)))
    assert error.message == (
        "neither wmt/wmt14 on the hub nor what replaces it can be had: cannot download http://127.0.0.1:9/parts.tgz: "
        "[Errno 111] Connection refused"
    )
    for help in ("HTTPS_PROXY=http://HOST:PORT", "HF_ENDPOINT=https://HOST", "HF_HUB_OFFLINE=1", "--set mirror=FOLDER"):
        assert help in error.hint


def test_what_a_mirror_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_ask", lambda source: Unreachable("no hub", hint="wait"))
    (tmp_path / "mirror").mkdir()
    train = HUB.format(address=NO_NETWORK, digest="f" * 64)
    error = refusal(lambda: fetched(tmp_path, train, f"mirror={tmp_path / 'mirror'}"))
    assert error.message.endswith(f"; the mirror {tmp_path / 'mirror'} lacks parts.tgz")
    assert "put parts.tgz into the mirror" in error.hint
    assert "--set mirror=" not in error.hint


def test_a_wrong_archive_is_not_taken_for_a_fault_of_the_network(
    tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_ask", lambda source: Unreachable("no hub", hint="wait"))
    archive_of(server.folder / "parts.tgz")
    error = refusal(lambda: fetched(tmp_path, HUB.format(address=server.address, digest="f" * 64)))
    assert error.message.startswith("parts.tgz is not the file that it should be")


def test_a_mirror_that_has_everything_spares_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def asked(source: HubSource) -> Any:
        raise AssertionError

    monkeypatch.setattr(hub, "_ask", asked)
    (tmp_path / "mirror").mkdir()
    _, digest = archive_of(tmp_path / "mirror" / "parts.tgz")
    found = fetched(tmp_path, HUB.format(address=NO_NETWORK, digest=digest), "mirror=mirror")
    assert pairs_of(found) == PAIRS
    assert "wmt/wmt14, train: read from the mirror mirror" in caplog.text


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
    pack(tmp_path / "a.tgz", {"t/a.en": text.encode(), "t/a.de": text.upper().replace("SEG", "seg").encode()})
    for code in ("en", "de"):
        (tmp_path / f"b.{code}.sgm").write_text(text)
    train = f"""\
  - {{kind: text, source: b.en.sgm, target: b.de.sgm, markup: {markup}}}
  - {{kind: archive, file: a.tgz, source: a.en, target: a.en, markup: {markup}}}
"""
    assert pairs_of(fetched(tmp_path, train)) == [(line, line) for line in lines] * 2


def test_text_without_the_markup_that_is_named_is_an_error(tmp_path: Path) -> None:
    write_prefix(tmp_path / "a", PAIRS)
    error = refusal(lambda: fetched(tmp_path, "  - {kind: text, prefix: a, markup: seg}"))
    assert error.message == "a.en has no sentence in the markup seg"
    assert error.where == str(tmp_path / "a.en")
    assert error.hint == "write markup: seg for <seg> elements, ted for tagged talks, null for plain text"


EN_DE = LanguagePair(source="en", target="de")


class KnownTestset:
    """A test set of sacreBLEU whose download ends as it is told."""

    langpairs = {"en-de": ["a", "b"], "cs-en": ["a", "b"]}  # noqa: RUF012  # as sacreBLEU has it
    data = ["https://statmt.org/wmt14/test-full.tgz"]  # noqa: RUF012

    def __init__(self, folder: Path | BaseException) -> None:
        self.folder = folder

    def get_source_file(self, pair: str) -> str:
        if isinstance(self.folder, BaseException):
            raise self.folder
        return str(self.folder / "test.en")

    def get_reference_files(self, pair: str) -> list[str]:
        return [str(self.folder).replace("test.en", "") + "/test.de"]


def test_test_sets_are_read_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sacrebleu.dataset

    write_prefix(tmp_path / "test", PAIRS)
    monkeypatch.setitem(sacrebleu.dataset.DATASETS, "wmt14/full", KnownTestset(tmp_path))
    found = fetched(tmp_path, "  - {kind: testset, name: wmt14/full}")
    assert pairs_of(found) == PAIRS
    assert [record.name for record in found.inputs][:2] == [
        "sacrebleu:wmt14/full en-de source",
        "sacrebleu:wmt14/full en-de reference",
    ]


def test_a_test_set_that_cannot_be_had_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sacrebleu.dataset

    def files(name: str, languages: LanguagePair = EN_DE) -> Callable[[], object]:
        source = sources.TestsetSource(kind="testset", name=name)
        return lambda: testsets.testset_files(source, languages=languages)

    error = refusal(files("wmt14/ful"))
    assert error.message == "sacreBLEU knows no test set wmt14/ful"
    assert error.hint.startswith("did you mean wmt14/full")
    error = refusal(files("wmt14/full", LanguagePair(source="de", target="fr")))
    assert error.message == "the test set wmt14/full is not made for de-fr"
    assert "en-de, en-fr" in error.hint
    for problem, reason in ((OSError("no route"), "no route"), (SystemExit(1), "its checksum is wrong")):
        monkeypatch.setitem(sacrebleu.dataset.DATASETS, "wmt14/full", KnownTestset(problem))
        error = refusal(files("wmt14/full"))
        assert isinstance(error, Unreachable)
        assert error.message == f"cannot download the test set wmt14/full: {reason}"
        assert error.where == "https://statmt.org/wmt14/test-full.tgz"
        assert "export SACREBLEU=FOLDER" in error.hint


def test_keys_follow_from_contents_and_not_from_places(tmp_path: Path, server: FileServer) -> None:
    _, digest = archive_of(server.folder / "parts.tgz")
    train = """\
  - {{kind: archive, url: {url}, {sha} source: training/a.en, target: training/a.de}}
  - {{kind: tsv, file: {file}}}
"""
    (tmp_path / "a.tsv").write_text("one\teins\n")
    (tmp_path / "b.tsv").write_text("one\teins\n")

    def keys(url: str, file: str, *overrides: str, sha: str = digest) -> list[str]:
        located = corpus(tmp_path, train.format(url=url, sha=f"sha256: {sha}," if sha else "", file=file), *overrides)
        found = fetch(located, progress=silent)
        return [declared_key(located, find_inputs(located)), reading_key(located, found)]

    first = keys(f"{server.address}/parts.tgz", "a.tsv")
    (tmp_path / "mirror").mkdir()
    archive_of(tmp_path / "mirror" / "parts.tgz")
    assert keys(f"{NO_NETWORK}/x/parts.tgz", "b.tsv", "mirror=mirror") == first
    unnamed = keys(f"{server.address}/parts.tgz", "a.tsv", sha="")
    assert unnamed[0] != first[0]
    assert unnamed[1] == first[1]
    for change in ("limit=5", "cleaning.max_words=9", "train.1.weight"):
        if change.startswith("train"):
            (tmp_path / "b.tsv").write_text("two\tzwei\n")
            changed = keys(f"{server.address}/parts.tgz", "b.tsv")
        else:
            changed = keys(f"{server.address}/parts.tgz", "a.tsv", change)
        assert changed[0] != first[0]
        assert changed[1] != first[1]


def test_what_stands_in_for_the_hub_need_not_be_there(tmp_path: Path) -> None:
    train = "  - {kind: hub, repository: a/b, split: train, otherwise: [{kind: text, prefix: copy}]}"
    located = corpus(tmp_path, train)
    without = declared_key(located, find_inputs(located))
    write_prefix(tmp_path / "copy", PAIRS)
    assert declared_key(located, find_inputs(located)) == without


def test_a_weight_belongs_to_the_keys(tmp_path: Path) -> None:
    write_prefix(tmp_path / "a", PAIRS)
    keys = set()
    for weight in (1, 2):
        located = corpus(tmp_path, f"  - {{kind: text, prefix: a, weight: {weight}}}")
        keys |= {declared_key(located, find_inputs(located)), reading_key(located, fetch(located, progress=silent))}
    assert len(keys) == 4


def test_what_would_be_downloaded_is_told_in_words(tmp_path: Path) -> None:
    described = [text for split, text in remote_inputs(load_corpus("wmt14-en-de", overrides=[])) if split == "train"]
    assert described == ["wmt/wmt14 on the hub, de-en, train"]
    located = corpus(
        tmp_path,
        """\
  - {kind: archive, url: https://host/a.tgz, bytes: 1200, source: a.en, target: a.de}
  - {kind: testset, name: wmt14/full}
  - {kind: text, source: https://host/a.en.gz, target: https://host/a.de.gz}
  - {kind: jsonl, file: https://host/a.jsonl}
  - {kind: text, prefix: valid}
  - {kind: hub, repository: ./here, split: train}
""",
    )
    assert [text for _, text in remote_inputs(located)] == [
        "https://host/a.tgz, 1,200 bytes: a.en, a.de",
        "wmt14/full, from sacreBLEU",
        "https://host/a.en.gz",
        "https://host/a.de.gz",
        "https://host/a.jsonl",
    ]


def test_downloads_of_a_whole_corpus_are_found_again_without_the_network(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    with serve_files(tmp_path / "web") as server:
        archive_of(server.folder / "parts.tgz")
        train = f"  - {{kind: archive, url: {server.address}/parts.tgz, source: a.en, target: a.de}}"
        first = fetched(tmp_path, train)
    assert fetched(tmp_path, train) == first


def test_a_disk_that_fills_up_under_the_hubs_cache_says_which_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **keywords: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", full)
    split = hub.HubSplit("wmt/wmt14", "abc", (hub.HubFile("train.parquet", None, None),), "parquet", ())
    error = refusal(lambda: hub.fetch_file(split, split.files[0], progress=silent))
    assert error.message == "cannot download wmt/wmt14/train.parquet: the disk is full"
    assert "export HF_HOME=FOLDER" in error.hint
