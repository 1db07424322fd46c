"""The installed command: quick to start, runnable as a module, and complete in the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import nmt_cli

_SLOW_TO_IMPORT = {
    *("torch", "numpy", "pandas", "datasets", "sacrebleu", "sentencepiece", "sacremoses", "safetensors"),
    *("pydantic", "yaml", "fastapi", "uvicorn", "ctranslate2", "tensorboard", "httpx"),
}


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)


def test_help_imports_nothing_slow() -> None:
    report = _run("-X", "importtime", "-m", "nmt_cli", "--help").stderr
    imported = {line.rsplit("|", 1)[-1].strip() for line in report.splitlines() if line.startswith("import time:")}
    assert "nmt_cli.cli.app" in imported, "the import report was not understood"
    assert not {name.partition(".")[0] for name in imported} & _SLOW_TO_IMPORT


def test_importing_the_package_imports_nothing_slow() -> None:
    named, loaded = _run("-c", "import nmt_cli, sys; print(*dir(nmt_cli)); print(*sys.modules)").stdout.splitlines()
    assert set(nmt_cli.__all__) <= set(named.split())
    assert not set(loaded.split()) & _SLOW_TO_IMPORT


def _built(kind: str, folder: Path, repository: Path) -> Path:
    """The wheel or sdist of this checkout."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder], cwd=repository, check=True)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    return _built("wheel", tmp_path_factory.mktemp("dist"), repository)


def test_wheel_holds_every_module_and_recipe_and_nothing_else(wheel: Path, repository: Path) -> None:
    tracked = _files(repository / "src") | {f"nmt_cli/recipes/{name}" for name in _files(repository / "recipes")}
    metadata = f"nmt_cli-{nmt_cli.__version__}.dist-info/"
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not name.startswith(metadata)}
    assert held == tracked
    assert any(name.startswith("nmt_cli/recipes/") for name in held)
    assert "nmt_cli/py.typed" in held, "without it, type checkers take the package for untyped"


def test_wheel_finds_its_own_recipes(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = "from nmt_cli.recipe.loading import find_yaml_file as find; "
    program += "print(find('base', kind='recipe', command='nmt train'))"
    found = _run("-c", program, PYTHONPATH=str(tmp_path)).stdout.strip()
    assert found == str(tmp_path / "nmt_cli" / "recipes" / "base.yaml")


def test_the_sdist_holds_what_building_checking_and_testing_need(tmp_path: Path, repository: Path) -> None:
    with tarfile.open(_built("sdist", tmp_path, repository)) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    build = "Dockerfile .dockerignore .hadolint.yaml .ci/run Makefile constraints.txt pyproject.toml"
    assert set(build.split()) <= held
    for folder in ("src", "recipes", "tests", "docs", "benchmarks"):
        assert {f"{folder}/{name}" for name in _files(repository / folder)} <= held


def test_the_image_has_the_c_compiler_that_training_on_a_gpu_needs(repository: Path) -> None:
    *_, last = (repository / "Dockerfile").read_text(encoding="utf-8").split("\nFROM ")
    install = last[last.index("apt-get install") :].partition("&&")[0]
    # The compiler alone has no headers of the C library, and those of Python include them.
    assert {"gcc", "libc6-dev"} <= set(install.split())
    assert "rm -rf /var/lib/apt/lists/*" in last


def _files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
