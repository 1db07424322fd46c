"""The workflow for GitHub Actions in deploy/: its steps run as GitHub would run them; and CITATION.cff."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import nmt_cli
from tests.docs.conftest import Workshop
from tests.docs.pages import ROOT

# What `shell: bash` means: https://docs.github.com/actions, "jobs.<job_id>.steps[*].shell".
SHELLS = {"bash": ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail"], "sh": ["sh", "-e"]}


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "github-actions.yml").read_text(encoding="utf-8"))
    return found


def steps(workflow: dict[Any, Any]) -> dict[str, str]:
    """The commands of the job, by the names of their steps."""
    return {step["name"]: step["run"] for step in workflow["jobs"]["gate"]["steps"] if "run" in step}


def run_step(
    workflow: dict[Any, Any], script: str, *, workshop: Workshop, folder: Path, model: str | None = None
) -> subprocess.CompletedProcess[str]:
    shell = SHELLS[workflow["defaults"]["run"]["shell"]]
    (folder / "step.sh").write_text(script, encoding="utf-8")
    variables = {name: str(value) for name, value in workflow["env"].items()}
    variables |= {} if model is None else {"MODEL": model}
    return subprocess.run(
        [*shell, "step.sh"],
        cwd=folder,
        env=workshop.environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(workshop: Workshop, tmp_path: Path) -> Path:
    workshop.begin(tmp_path, "demo")
    (tmp_path / "recipes").mkdir()
    shutil.copyfile(ROOT / "recipes" / "demo.yaml", tmp_path / "recipes" / "demo.yaml")
    (tmp_path / "tests").mkdir()
    for side in ("en", "de"):
        shutil.copyfile(tmp_path / "data" / "demo" / f"test.{side}", tmp_path / "tests" / f"newstest.{side}")
    shutil.copytree(tmp_path / "runs" / "demo" / "averaged", tmp_path / "models" / "en-de")
    return tmp_path


def test_each_step_but_the_installation_runs(workflow: dict[Any, Any], workshop: Workshop, folder: Path) -> None:
    for name, script in steps(workflow).items():
        if name not in ("install", "gate"):
            process = run_step(workflow, script, workshop=workshop, folder=folder)
            assert process.returncode == 0, f"{name}: {process.stderr}"


def test_the_gate_tells_a_bad_translation_from_a_broken_model(
    workflow: dict[Any, Any], workshop: Workshop, folder: Path
) -> None:
    gate = steps(workflow)["gate"]
    process = run_step(workflow, gate, workshop=workshop, folder=folder)  # a model of six updates
    assert process.returncode == 8, "through the pipe, thanks to pipefail"
    assert (folder / "new.hyp").stat().st_size > 0
    assert "BLEU" in (folder / "scores.json").read_text(encoding="utf-8")
    low = re.sub(r"=\d+", "=0", gate)
    assert run_step(workflow, low, workshop=workshop, folder=folder).returncode == 0
    broken = run_step(workflow, gate, workshop=workshop, folder=folder, model="runs/nosuch")
    assert broken.returncode == 5
    assert "there is no model directory runs/nosuch" in broken.stderr


def test_the_citation_is_of_this_version_and_has_what_the_format_asks_for() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["version"] == nmt_cli.__version__
    assert all({"type", "title", "authors"} <= set(reference) for reference in citation["references"])
