"""Manifests notice every missing, shortened, changed and foreign file, and say which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nmt_cli.artifacts.manifest import read_manifest, verify_files, write_manifest
from nmt_cli.errors import ModelError

HINT = "make it again"


def make(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "weights.bin").write_bytes(bytes(range(256)) * 4)
    (directory / "empty.txt").write_bytes(b"")
    (directory / "README.md").write_text("# Card\n")
    write_manifest(directory, {"kind": "model", "updates": [1, 2]})
    return directory


def check(directory: Path) -> dict[str, object]:
    return verify_files(directory, hint=HINT)


def test_a_whole_directory_gives_the_fields_back(tmp_path: Path) -> None:
    found = check(make(tmp_path / "m"))
    assert (found["kind"], found["updates"]) == ("model", [1, 2])


def test_the_card_may_change_and_unknown_files_may_lie_there(tmp_path: Path) -> None:
    directory = make(tmp_path / "m")
    (directory / "README.md").write_text("# Another card, of another length\n")
    (directory / "LICENSE").write_text("CC BY 4.0\n")
    (directory / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (directory / "eval.txt").write_text("BLEU 30\n")
    (directory / "Thumbs.db").write_bytes(b"\xd0\xcf")
    (directory / "exported").mkdir()
    assert check(directory)
    (directory / "README.md").unlink()
    assert check(directory)


@pytest.mark.parametrize(
    ("damage", "message", "file"),
    [
        (lambda path: path.unlink(), "weights.bin is missing", "weights.bin"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "cut short: 1,023 of 1,024 bytes", "weights.bin"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "1,025 bytes instead of 1,024", "weights.bin"),
        (lambda path: path.write_bytes(b"x" * 1024), "weights.bin was changed after it was written", "weights.bin"),
        (lambda path: path.with_name("manifest.json").unlink(), "manifest.json is missing", "manifest.json"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], object], message: str, file: str) -> None:
    directory = make(tmp_path / "m")
    damage(directory / "weights.bin")
    with pytest.raises(ModelError) as caught:
        check(directory)
    assert message in caught.value.message
    assert caught.value.where == str(directory / file)
    assert caught.value.hint == HINT


def test_hashes_can_be_restricted_but_sizes_cannot(tmp_path: Path) -> None:
    directory = make(tmp_path / "m")
    (directory / "weights.bin").write_bytes(b"x" * 1024)
    verify_files(directory, hint=HINT, names_to_hash=["empty.txt"])
    with pytest.raises(ModelError, match="changed"):
        verify_files(directory, hint=HINT, names_to_hash=["weights.bin"])
    with pytest.raises(ModelError, match=r"other\.bin is not listed"):
        verify_files(directory, hint=HINT, names_to_hash=["other.bin"])
    (directory / "weights.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match="cut short"):
        verify_files(directory, hint=HINT, names_to_hash=[])


@pytest.mark.parametrize("content", ["", '{"format": 1, "fil', "[]", '{"format": 1}'])
def test_a_manifest_that_is_cut_short_or_lists_no_files_is_damaged(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ModelError, match=r"manifest\.json is damaged"):
        check(tmp_path)


def test_a_newer_format_asks_for_a_newer_nmt(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 2, "files": {}}')
    with pytest.raises(ModelError, match="has format 2, but this nmt reads format 1") as caught:
        read_manifest(tmp_path, hint=HINT)
    assert "pip install -U nmt-cli" in caught.value.hint
