"""`nmt prepare wmt14-en-de` as it is typed: from a hub with the real schema, and from the archives."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from nmt_cli.recipe.loading import packaged_folder
from tests.forks import run_forked
from tests.hub import COMMIT, Hub, WithDatasets, serve_wmt14
from tests.preparing.corpus_files import contents
from tests.preparing.file_server import serve_files
from tests.preparing.test_archives import pack

SMALL = ["--workers", "1", "--set", "tokenizer.vocab_size=700"]
# What follows from where the text was read, or from how long it took.
DIFFERS = ("manifest.json", "report.json", "report.html")

Pairs = list[tuple[str, str]]


@pytest.fixture(scope="module")
def texts(shared_data: Path) -> dict[str, Pairs]:
    """Some of the real corpus, and of its validation set, without spaces that markup would lose."""
    found = {}
    for split, name, part in (
        ("train", "wmt14-sample/train", slice(0, 1200)),
        ("valid", "newstest/newstest2013", slice(0, 200)),
        ("test", "newstest/newstest2013", slice(200, 500)),
    ):
        sides = [
            [" ".join(line.split()) for line in (shared_data / f"{name}.{code}").read_text("utf-8").split("\n")[part]]
            for code in ("en", "de")
        ]
        found[split] = list(zip(*sides, strict=True))
    return found


@pytest.fixture(scope="module")
def members(texts: dict[str, Pairs]) -> dict[str, dict[str, bytes]]:
    """The archives by name, with their members."""
    train = texts["train"]
    parts = {
        "training-parallel-europarl-v7.tgz": ("training/europarl-v7.de-en", train[:500]),
        "training-parallel-commoncrawl.tgz": ("commoncrawl.de-en", train[500:900]),
        "training-parallel-nc-v9.tgz": ("training/news-commentary-v9.de-en", train[900:]),
        "dev.tgz": ("dev/newstest2013", texts["valid"]),
    }
    found: dict[str, dict[str, bytes]] = {}
    for archive, (prefix, pairs) in parts.items():
        found[archive] = {
            f"{prefix}.{code}": "".join(f"{pair[side]}\n" for pair in pairs).encode()
            for side, code in enumerate(("en", "de"))
        }
    for side, name in enumerate(("newstest2014-deen-ref.en.sgm", "newstest2014-deen-src.de.sgm")):
        lines = "".join(f'<seg id="{n}">{pair[side]}</seg>\n' for n, pair in enumerate(texts["test"], start=1))
        found["dev.tgz"][f"dev/{name}"] = f'<doc docid="1">\n<p>\n{lines}</p>\n</doc>\n'.encode()
    return found


@pytest.fixture
def hub(tmp_path: Path, texts: dict[str, Pairs]) -> Iterator[Hub]:
    with serve_wmt14(
        tmp_path / "hub", train_pairs=texts["train"], valid_pairs=texts["valid"], test_pairs=texts["test"]
    ) as hub:
        yield hub


def nmt(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nmt_cli", *arguments]
    return run_forked(command, cwd=folder, env={**os.environ, **variables}, kind=WithDatasets)


def offline(folder: Path) -> dict[str, str]:
    """The environment of a machine without a hub, and with caches of its own."""
    caches = {name: str(folder / "home" / name) for name in ("HF_HOME", "NMT_CACHE", "SACREBLEU")}
    return {"HF_ENDPOINT": "http://127.0.0.1:9", **caches}


def write_archives(folder: Path, members: Mapping[str, Mapping[str, bytes]]) -> Path:
    folder.mkdir()
    for name, files in members.items():
        pack(folder / name, files)
    return folder


def corpus_with_checksums(file: Path, archives: Path, *, address: str) -> Path:
    """wmt14-en-de-archives with the sizes and checksums of these archives, and another address of them."""
    text = (packaged_folder() / "corpora" / "wmt14-en-de-archives.yaml").read_text(encoding="utf-8")
    for archive in sorted(archives.iterdir()):
        content = archive.read_bytes()
        facts = f"bytes: {len(content)}\n    sha256: {hashlib.sha256(content).hexdigest()}"
        url = f"{address}/{archive.name}"
        pattern = rf"url: \S+/{re.escape(archive.name)}\n\s+bytes: \d+\n\s+sha256: [0-9a-f]+"
        text, number = re.subn(pattern, f"url: {url}\n    {facts}", text)
        assert number >= 1
    file.write_text(text, encoding="utf-8")
    return file


def essence(directory: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(directory).items() if name not in DIFFERS}


def test_the_hub_and_the_archives_give_the_same_data(
    tmp_path: Path, hub: Hub, texts: dict[str, Pairs], members: dict[str, dict[str, bytes]]
) -> None:
    online = hub.environment(tmp_path / "home")
    done = nmt(tmp_path, "prepare", "wmt14-en-de", *SMALL, **online)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    data = tmp_path / "data" / "wmt14-en-de"
    manifest = json.loads((data / "manifest.json").read_text())
    files = [f"train-{number:05}-of-00003" for number in range(3)] + [
        "validation-00000-of-00001",
        "test-00000-of-00001",
    ]
    assert [record["name"] for record in manifest["inputs"]] == [
        f"hf://datasets/wmt/wmt14@{COMMIT}/de-en/{name}.parquet" for name in files
    ]
    first = hub.folder / "wmt" / "wmt14" / "de-en" / "train-00000-of-00003.parquet"
    assert manifest["inputs"][0]["sha256"] == hashlib.sha256(first.read_bytes()).hexdigest()
    assert (data / "test.de").read_text("utf-8").splitlines() == [tgt for _, tgt in texts["test"]]
    expected = essence(data)

    hub.requests.clear()
    again = nmt(tmp_path, "prepare", "wmt14-en-de", *SMALL, **online)
    assert "data/wmt14-en-de is already prepared from these inputs and settings" in again.stderr
    assert hub.requests == []

    archives = write_archives(tmp_path / "archives", members)
    with serve_files(archives) as server:
        corpus = corpus_with_checksums(tmp_path / "packed.yaml", archives, address=server.address)
        server.cuts = [20_000]
        packed = nmt(tmp_path, "prepare", str(corpus), *SMALL, "-o", "data/packed", **offline(tmp_path))
    assert packed.returncode == 0, packed.stderr
    assert len(server.requests) == len(members) + 1  # one download broke off
    assert essence(tmp_path / "data" / "packed") == expected


def prepare(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return nmt(folder, "prepare", "wmt14-en-de", *SMALL, *arguments, **variables)


def test_a_limit_downloads_the_files_that_it_needs_and_a_killed_or_broken_download_goes_on(
    tmp_path: Path, hub: Hub
) -> None:
    online = hub.environment(tmp_path / "home")
    command = [sys.executable, "-m", "nmt_cli", "prepare", "wmt14-en-de", *SMALL, "--limit", "500"]
    hub.seconds_per_block = 1.0
    process = WithDatasets(command, cwd=tmp_path, env={**os.environ, **online}, stderr=subprocess.DEVNULL)
    while not any(path.startswith("GET") and path.endswith(".parquet") for path in hub.requests):
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    hub.seconds_per_block = 0.0
    hub.cut = {"de-en/train-00000-of-00003.parquet": 20_000}
    done = prepare(tmp_path, "--limit", "500", **online)
    assert done.returncode == 0, done.stderr
    assert hub.cut == {}
    fetched = [name for name in hub.requests if name.startswith("GET") and name.endswith(".parquet")]
    assert list(dict.fromkeys(name.rsplit("/", 1)[-1] for name in fetched)) == [
        "train-00000-of-00003.parquet",
        "train-00001-of-00003.parquet",
        "validation-00000-of-00001.parquet",
        "test-00000-of-00001.parquet",
    ]
    incomplete = prepare(tmp_path, "--overwrite", **{**online, "HF_HUB_OFFLINE": "1"})
    assert incomplete.returncode == 4
    assert "error: the hub's cache holds 2 of 3 files of wmt/wmt14 de-en train\n" in incomplete.stderr


def test_a_data_set_in_the_hubs_cache_needs_no_network_and_no_other_subset(tmp_path: Path, hub: Hub) -> None:
    card = hub.folder / "wmt" / "wmt14" / "README.md"
    other = "configs:\n- config_name: cs-en\n  data_files:\n  - {split: train, path: cs-en/train-*}\n"
    card.write_text(card.read_text().replace("configs:\n", other))
    (card.parent / "cs-en").mkdir()
    shutil.copy(card.parent / "de-en" / "test-00000-of-00001.parquet", card.parent / "cs-en" / "train-0.parquet")
    online = hub.environment(tmp_path / "home")
    assert prepare(tmp_path, **online).returncode == 0
    hub.requests.clear()
    for variable, value in (("HF_HUB_OFFLINE", "1"), ("HF_ENDPOINT", "http://127.0.0.1:9")):
        again = prepare(tmp_path, "--overwrite", **{**online, variable: value})
        assert again.returncode == 0, again.stderr
        assert hub.requests == []
        assert f"; using its files of commit {COMMIT}, cached before\n" in again.stderr


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "GatedRepo", "wmt/wmt14 is gated: the hub wants to know who takes it"),
        (401, "RepoNotFound", "there is no data set wmt/wmt14 on the hub, or it is private"),
    ],
)
def test_a_hub_that_refuses_says_what_is_missing(tmp_path: Path, hub: Hub, status: int, code: str, error: str) -> None:
    hub.status = {"wmt/wmt14": (status, code)}
    failed = prepare(tmp_path, **hub.environment(tmp_path / "home"))
    assert failed.returncode == 4
    assert failed.stderr.startswith(f"error: {error}\n")
    assert "export HF_TOKEN=hf_..." in failed.stderr.splitlines()[-1]


def test_without_a_hub_it_is_said_what_to_do(tmp_path: Path) -> None:
    failed = prepare(tmp_path, **offline(tmp_path))
    assert failed.returncode == 4
    assert failed.stderr.startswith("error: cannot download wmt/wmt14: [Errno 111] Connection refused\n")
    assert "HF_ENDPOINT=https://HOST" in failed.stderr.splitlines()[-1]
