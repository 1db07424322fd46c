"""Packages of PyPI and npm that one test needs, in a folder of that test; without the network, the test is skipped."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

_NO_NETWORK = re.compile(r"resolution|connection|ENOTFOUND|EAI_AGAIN|ECONN|ETIMEDOUT", re.IGNORECASE)


def pip_install(folder: Path, *requirements: str) -> None:
    """Have a folder that Python can import the packages from."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--retries", "1"]
    _install([*pip, "--target", str(folder), *requirements], "PyPI")


def npm_install(folder: Path, *packages: str) -> None:
    """Have a folder whose JavaScript can import the packages."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm")
    options = ["--prefix", str(folder), "--silent", "--no-audit", "--no-fund", "--fetch-retries", "1"]
    _install([npm, "install", *options, *packages], "npm's registry")


def _install(command: Sequence[str], registry: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and _NO_NETWORK.search(done.stdout + done.stderr):
        pytest.skip(f"needs {registry}, which cannot be reached")
    assert done.returncode == 0, done.stderr
