from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import zstandard

from nmt_cli.cache import file_hash
from nmt_cli.preparing.sources.archive import unpack
from tests.preparing.corpus_files import refusal

LINES = "".join(f"line {number}\n" for number in range(50_000)).encode()
FILES = {"readme": b"x", "training/corpus.en": LINES, "training/corpus.de": LINES.upper()}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pack(file: Path, files: Mapping[str, bytes]) -> Path:
    """An archive of the kind that its name says."""
    if file.suffix == ".zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, content in files.items():
                zipped.writestr(name, content)
        return file
    target = io.BytesIO()
    mode = {".tgz": "w:gz", ".gz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(file.suffix, "w")
    with tarfile.open(fileobj=target, mode=mode) as tar:  # type: ignore[call-overload]  # the mode is one of its words
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    content = target.getvalue()
    file.write_bytes(zstandard.ZstdCompressor().compress(content) if file.suffix == ".zst" else content)
    return file


def contents(archive: Path, *members: str) -> list[bytes]:
    return [file.read_bytes() for file in unpack(archive, members)]


@pytest.mark.parametrize("ending", [".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip"])
def test_members_are_found_by_their_paths(tmp_path: Path, ending: str) -> None:
    archive = pack(tmp_path / f"parts{ending}", FILES | {"old/corpus.en": b"1\n", "./here.en": b"2\n"})
    assert contents(archive, "training/corpus.en", "training/corpus.de") == [LINES, LINES.upper()]
    assert contents(archive, "old/corpus.en", "here.en") == [b"1\n", b"2\n"]
    if ending == ".zip":  # known by its content
        assert contents(archive.rename(tmp_path / "download.php"), "readme") == [b"x"]


def test_members_are_unpacked_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = pack(tmp_path / "parts.tgz", FILES)
    files = unpack(archive, ["training/corpus.en", "training/corpus.de"])
    assert files[0] == cache / "unpacked" / file_hash(archive)[:32] / "training" / "corpus.en"
    monkeypatch.setattr("nmt_cli.preparing.sources.archive._extract", None)  # a second call would fail
    assert unpack(archive, ["training/corpus.en", "training/corpus.de"]) == files


@pytest.mark.parametrize("ending", [".tgz", ".zip"])
def test_a_member_that_is_not_there_is_answered_with_near_ones(tmp_path: Path, ending: str) -> None:
    archive = pack(tmp_path / f"parts{ending}", FILES)
    error = refusal(lambda: contents(archive, "training/corpus.en", "training/corpus.fr"))
    assert error.message == f"parts{ending} has no member training/corpus.fr"
    assert error.where == str(archive)
    assert error.hint == "did you mean training/corpus.en or training/corpus.de?"
    error = refusal(lambda: contents(archive, "training/corpus.en", "europarl"))
    assert error.hint == "it has readme, training/corpus.de, training/corpus.en"
    assert refusal(lambda: contents(pack(tmp_path / "none.tar", {}), "a", "b")).hint == "it has no files at all"


@pytest.mark.parametrize("ending", [".tar", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip"])
def test_an_archive_that_is_cut_short_is_named(tmp_path: Path, cache: Path, ending: str) -> None:
    archive = pack(tmp_path / f"parts{ending}", FILES)
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) // 2])
    error = refusal(lambda: contents(archive, "training/corpus.en", "training/corpus.de"))
    assert error.message.startswith(f"parts{ending} cannot be unpacked: ")
    assert str(archive) not in error.message
    assert error.where == str(archive)
    assert error.hint.startswith("fetch it again, or unpack it with another program")
    assert not list(cache.rglob("corpus.de"))


def test_an_encrypted_zip_is_named(tmp_path: Path) -> None:
    archive = pack(tmp_path / "parts.zip", {"a.en": b"1", "a.de": b"2"})
    content = bytearray(archive.read_bytes())
    for magic, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):  # the header before each file, and the list at the end
        for match in re.finditer(re.escape(magic), bytes(content)):
            content[match.start() + place] |= 1
    archive.write_bytes(content)
    error = refusal(lambda: contents(archive, "a.en", "a.de"))
    assert error.message.startswith("parts.zip cannot be unpacked: ")
    assert "is encrypted" in error.message


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "page.tgz").write_text("<html>not found</html>" * 100)
    error = refusal(lambda: contents(tmp_path / "page.tgz", "a", "b"))
    assert error.message.startswith("page.tgz cannot be unpacked: ")


def test_names_that_lead_out_of_the_folder_do_not(tmp_path: Path, cache: Path) -> None:
    archive = pack(tmp_path / "bad.tgz", {"../../../a.en": b"1\n", "/etc/a.de": b"2\n"})
    files = unpack(archive, ["../../../a.en", "/etc/a.de"])
    folder = cache / "unpacked" / file_hash(archive)[:32]
    assert [file.relative_to(folder).as_posix() for file in files] == ["a.en", "etc/a.de"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.tgz", "cache"]


def test_links_and_devices_are_no_members(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "links.tar", "w") as tar:
        link = tarfile.TarInfo("a.en")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert refusal(lambda: contents(tmp_path / "links.tar", "a.en", "a.de")).message == "links.tar has no member a.en"
