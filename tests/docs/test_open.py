"""OPEN.md can be followed on a card: each command says its minutes and needs, and what it needs is there by then."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from nmt_cli.cli.app import commands
from tests.docs.conftest import Workshop
from tests.docs.pages import ROOT, Block, Page, read_page

OPEN = read_page(ROOT / "docs" / "benchmarks" / "OPEN.md")
CALL = re.compile(r"\| `([^`]*\bbenchmarks/gpu/[A-D]\.sh)` \| (\d+) \| (.+?) \| (.+?) \| .+ \|")
STATED = re.compile(r".*(?:One GPU|No GPU|\d+ GPUs), (\d+) minutes?(?: for [^.]+)?\. Needs: (.+)\. Makes: (.+)\.")
CALLS = ROOT / "benchmarks" / "gpu"


@dataclass(frozen=True, slots=True)
class Stated:
    """A block of commands or a call of the table, with its stated needs; `prepared` is the text to prepare."""

    block: Block
    minutes: int
    needs: list[str]
    makes: list[str]
    prepared: str

    @property
    def commands(self) -> str:
        """The block, and the script of a call that it names."""
        scripts = re.findall(r"benchmarks/gpu/([A-D]\.sh)", self.block.text)
        return "\n".join([self.block.text, *((CALLS / name).read_text(encoding="utf-8") for name in scripts)])


def stated(page: Page) -> list[Stated]:
    """The calls of the table, then the blocks, each with the line before it, which states minutes, needs and makes."""
    blocks = list(page.blocks())
    prepared = (CALLS / "prepare.sh").read_text(encoding="utf-8")
    marks = {"needs": "gpus"}
    calls = CALL.findall(page.path.read_text(encoding="utf-8"))
    found = [
        Stated(Block(page.name, "bash", f"{command}\n", marks), int(minutes), _named(needs), _named(makes), prepared)
        for command, minutes, needs, makes in calls
    ]
    line, following = "", iter(blocks)
    for token in page.tokens:
        if token.type == "inline":
            line = "".join(
                {"code_inline": f"`{child.content}`", "softbreak": " "}.get(child.type, child.content)
                for child in token.children or []
            )
        if token.type != "fence":
            continue
        block = next(following)
        if block.language == "bash":
            match = STATED.fullmatch(line)
            assert match, f"{block.where}: minutes, needs and makes are not stated right before it, but: {line}"
            found.append(Stated(block, int(match[1]), _named(match[2]), _named(match[3]), prepared))
    return found


def _named(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def made_before(blocks: list[Stated], number: int) -> list[str]:
    return [made for block in blocks[:number] for made in block.makes]


def test_what_a_block_needs_is_prepared_or_made_before_it() -> None:
    blocks = stated(OPEN)
    for number, block in enumerate(blocks):
        for need in block.needs:
            if "/" in need or need.startswith(".") or need.endswith(".json"):
                assert need in block.prepared or need in made_before(blocks, number), f"{block.block.where}: {need}"


def test_no_block_needs_a_model_that_none_before_it_makes() -> None:
    blocks = stated(OPEN)
    num_models = 0
    for number, block in enumerate(blocks):
        for model in re.findall(r"(?:--model |\bmodel=)(runs/\S+)", block.commands):
            num_models += 1
            makers = [made for made in made_before(blocks, number) if model.startswith(f"{made}/")]
            assert makers, f"{block.block.where} needs {model}"
    assert num_models >= 2


@pytest.mark.parametrize("script", sorted(CALLS.glob("*.sh")), ids=lambda script: script.name)
def test_the_calls_parse_and_name_files_that_exist(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text(encoding="utf-8")
    for name in re.findall(r"\b(?:benchmarks|tests)/[\w/]+\.(?:py|sh)", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("script", sorted(CALLS.glob("[A-D].sh")), ids=lambda script: script.name)
def test_the_programs_of_a_call_take_their_options(script: Path, tmp_path: Path, workshop: Workshop) -> None:
    for folder in ("bin", "data/demo", "runs/race/data", "runs/race/ours/averaged"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    (tmp_path / "data/demo/test.en").touch()
    # Benchmarks read their options in the workshop; all other calls are only written down.
    python = tmp_path / "bin" / "python3"
    body = 'echo "$*" >> calls; case "$1" in benchmarks/*) exec python "$@"; esac'
    python.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
    python.chmod(0o755)
    ended = workshop.run(f'PATH="$PWD/bin:$PATH" bash benchmarks/gpu/{script.name}', folder=tmp_path)
    assert "all steps passed" in ended.stdout, ended.stdout
    calls = [call.split() for call in (tmp_path / "calls").read_text(encoding="utf-8").splitlines()]
    assert any(call[0].startswith("benchmarks/") or call[:2] == ["-m", "nmt_cli"] for call in calls)
    for name, *options in (call[2:] for call in calls if call[:2] == ["-m", "nmt_cli"]):
        commands()[name].make_context(name, options)


def test_call_a_finds_the_tests_that_need_a_gpu() -> None:
    line = next(line for line in (CALLS / "A.sh").read_text(encoding="utf-8").splitlines() if "gpu_tests <" in line)
    script = f'{line}; printf "%s\\n" "${{gpu_tests[@]}}"'
    found = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert {"tests/decoding/test_cuda.py", "tests/model/test_attention.py"} <= set(found)
    assert all((ROOT / name).exists() for name in found)
