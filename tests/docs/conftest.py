"""The place where the blocks of the documentation are run."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nmt_cli.interchange.importing import import_model
from tests.docs.pages import ROOT
from tests.docs.programs import environment, write_downloads, write_programs, write_text
from tests.forks import Forked
from tests.hub import COMMIT
from tests.interchange.hub_models import NAME, write_opus

_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Workshop:
    """A folder with the stand-ins, a running server, and the files that a page may begin with."""

    folder: Path
    environment: dict[str, str]

    def begin(self, folder: Path, beginning: str) -> None:
        """Put what a page begins with into its folder."""
        match beginning:
            case "text":
                write_text(folder)
            case "demo":
                shutil.copytree(self._demo("demo", updates=6), folder, dirs_exist_ok=True)
            case "stopped":
                shutil.copytree(self._demo("stopped", updates=3), folder, dirs_exist_ok=True)
            case _:
                assert beginning == "nothing"

    def run(self, script: str, *, folder: Path, is_dry: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a script of bash; stdout and stderr come together."""
        if NAME in script:
            self._keep_opus()
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=self.environment | ({"NMT_DOCS_DRY": "1"} if is_dry else {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )

    def _keep_opus(self) -> None:
        """A model of the hub in the cache of nmt, as the first use leaves it: the pages need no network."""
        cache = Path(self.environment["NMT_CACHE"])
        if not (cache / "models" / NAME).exists():
            write_opus(self.folder / NAME)
            model = cache / "models" / NAME
            import_model(self.folder / NAME, model, languages=None, imported_from=f"{NAME}@{COMMIT}", overwrite=False)

    def _demo(self, name: str, *, updates: int) -> Path:
        """A folder with prepared data, a run and an averaged model of the demo, made once."""
        demo = self.folder / name
        if not (demo / "input.txt").exists():
            demo.mkdir(exist_ok=True)
            variable = f"export NMT_DOCS_UPDATES={updates}"
            made = self.run(f"{variable}; nmt prepare demo && nmt train demo && nmt average runs/demo", folder=demo)
            assert made.returncode == 0, made.stdout
            shutil.copyfile(demo / "data" / "demo" / "test.en", demo / "input.txt")
        return demo


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    folder = tmp_path_factory.mktemp("docs")
    programs, downloads, server = folder / "programs", folder / "downloads", folder / "server"
    programs.mkdir()
    downloads.mkdir()
    write_programs(programs)
    write_downloads(downloads)
    variables = environment(programs=programs, downloads=downloads, server=server, cache=folder / "cache")
    command = [sys.executable, "-m", "tests.docs.server", str(server)]
    with Forked[bytes](command, cwd=ROOT, stdin=subprocess.PIPE, env=variables) as process:
        assert process.stdin is not None
        deadline = time.monotonic() + _SECONDS
        while not server.exists():
            assert process.poll() is None, "the server of the documentation's commands has ended"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield Workshop(folder, variables)
        process.stdin.close()
