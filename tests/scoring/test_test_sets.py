"""Test sets by name: fetched by sacreBLEU from a server of the test's own, and what is said where that fails."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import sacrebleu.dataset.base
from sacrebleu.dataset import DATASETS
from sacrebleu.dataset.plain_text import PlainTextDataset
from sacrebleu.dataset.wmt_xml import WMTXMLDataset

from nmt_cli import testsets
from nmt_cli.errors import DataError, UsageError
from tests.scoring.shell import HYP, REF, SRC, columns, nmt, refuse, run

pytestmark = pytest.mark.usefixtures("folder")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def pack(archive: Path, texts: Mapping[str, str]) -> list[str]:
    """The MD5 of an archive of these files, as a test set gives it."""
    with tarfile.open(archive, "w:gz") as packed:
        for name, text in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            packed.addfile(member, io.BytesIO(text.encode()))
    return [hashlib.md5(archive.read_bytes()).hexdigest()]


@pytest.fixture
def archive(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The archive of the test set `toy`, which a server gives; sacreBLEU's folder is `cache`."""
    file = folder / "served" / "toy.tgz"
    file.parent.mkdir()
    md5 = pack(file, {"toy/test.en": SRC, "toy/test.de": REF})
    handler = functools.partial(_Quiet, directory=str(file.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        cache = str(folder / "cache")
        monkeypatch.setattr(sacrebleu.dataset.base, "SACREBLEU_DIR", cache)
        monkeypatch.setattr(testsets, "SACREBLEU_DIR", cache)
        toy = PlainTextDataset(
            "toy",
            data=[f"http://127.0.0.1:{server.server_port}/toy.tgz"],
            md5=md5,
            langpairs={"en-de": ["toy/test.en", "toy/test.de"]},
        )
        monkeypatch.setitem(DATASETS, "toy", toy)
        yield file
        server.shutdown()


def test_a_test_set_is_fetched_once_and_named_in_the_signature(archive: Path) -> None:
    arguments = ["-t", "toy", "-l", "en-de", "-i", "hyp", "-m", "bleu,paper-bleu"]
    first = run(*arguments)
    archive.unlink()
    assert run(*arguments) == first
    rows = columns(first)
    plain = columns(run("ref", "-i", "hyp", "-m", "bleu,paper-bleu", "-l", "en-de"))
    assert [row[:2] for row in rows] == [row[:2] for row in plain]
    assert all("|test:toy|lang:en-de|" in row[2] for row in rows)


def test_of_several_translators_sacrebleu_s_own_choice_is_the_reference(
    archive: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = {"src": ("en", "", SRC), "ref A": ("de", ' translator="A"', REF), "ref B": ("de", ' translator="B"', HYP)}
    xml = ""
    for side, (language, translator, text) in sides.items():
        segments = "".join(f'<seg id="{number}">{line}</seg>' for number, line in enumerate(text.splitlines(), 1))
        xml += f'<{side[:3]} lang="{language}"{translator}><p>{segments}</p></{side[:3]}>'
    md5 = pack(archive, {"toy/test.xml": f'<dataset><doc id="1" origlang="en">{xml}</doc></dataset>'})
    toy = WMTXMLDataset("toy", data=DATASETS["toy"].data, md5=md5, langpairs={"en-de": ["toy/test.xml"]}, refs=["A"])
    monkeypatch.setitem(DATASETS, "toy", toy)
    result = json.loads(run("-t", "toy", "-l", "en-de", "-i", "hyp", "-m", "bleu", "--json"))
    assert [Path(reference["file"]).name for reference in result["references"]] == ["toy.en-de.ref-A"]
    assert result["scores"]["BLEU"]["signature"].startswith("nrefs:1|")
    assert result["source"]["sha256"] == hashlib.sha256(SRC.encode()).hexdigest()


def test_json_names_the_test_set_and_the_hash_of_its_reference(archive: Path, folder: Path) -> None:
    result = json.loads(run("-t", "toy", "-l", "en-de", "-i", "hyp", "-m", "bleu", "--json"))
    assert result["test_set"] == {"name": "toy", "languages": "en-de"}
    (reference,) = result["references"]
    assert reference["sha256"] == hashlib.sha256(REF.encode()).hexdigest()
    assert Path(reference["file"]) == folder / "cache" / "toy" / "toy.en-de.ref"
    assert result["source"]["sha256"] == hashlib.sha256(SRC.encode()).hexdigest()


def test_its_source_serves_what_needs_one(archive: Path) -> None:
    output = run("-t", "toy", "-l", "en-de", "-i", "hyp", "--baseline", "base", "--differences", "1", "-m", "chrf")
    assert "source    A man reads the book.\n" in output


def test_a_download_that_is_not_what_it_should_be_is_refused(archive: Path, folder: Path) -> None:
    archive.write_bytes(b"captive portal")
    error = refuse(DataError, "-t", "toy", "-l", "en-de", "-i", "hyp")
    assert error.message == "the test set toy cannot be fetched or read: its checksum is wrong"
    # What lies there now is not used the next time either.
    error = refuse(DataError, "-t", "toy", "-l", "en-de", "-i", "hyp")
    assert error.message.startswith("the test set toy cannot be fetched or read: ")
    assert f"rm -r {folder}/cache/toy" in error.hint


def test_arguments_that_cannot_be_are_refused_before_anything_is_fetched(archive: Path, folder: Path) -> None:
    assert refuse(UsageError, "-t", "toy", "-l", "en-de", "-i", "-", "-s", "-").where == "-"
    assert not (folder / "cache").exists()


def test_without_a_network_the_command_says_what_to_do(folder: Path) -> None:
    # Nothing listens at that port.
    proxies = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    process = nmt("-t", "wmt14/full", "-l", "en-de", "-i", "hyp", SACREBLEU=str(folder / "mine"), **proxies)
    assert process.returncode == 4
    fetching, error, _, fix = process.stderr.splitlines()
    assert fetching == f"fetching wmt14/full through sacreBLEU into {folder}/mine/wmt14/full"
    assert error.startswith("error: the test set wmt14/full cannot be fetched or read: ")
    assert fix.startswith("fix:   check the network and $https_proxy")


@pytest.mark.parametrize(
    ("arguments", "message", "where", "hint"),
    [
        (
            "-t wmt14/ful -l en-de",
            "sacreBLEU knows no test set 'wmt14/ful'",
            "-t",
            "did you mean wmt14/full? sacrebleu --list names them all",
        ),
        (
            "-t wmt14/full",
            "the test set wmt14/full needs its languages",
            "-l",
            "take one of cs-en, de-en, ",
        ),
        (
            "-t wmt14/full -l en-xx",
            "the test set wmt14/full has no languages 'en-xx'",
            "-l",
            "take one of cs-en, de-en, ",
        ),
    ],
)
def test_what_sacrebleu_does_not_know_is_refused(arguments: str, message: str, where: str, hint: str) -> None:
    error = refuse(UsageError, *arguments.split(), "-i", "hyp")
    assert (error.message, error.where) == (message, where)
    assert error.hint.startswith(hint)
