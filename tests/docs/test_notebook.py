"""The notebook works: its cells run in a process, one after the other, and it is kept without results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.docs.conftest import Workshop
from tests.docs.pages import ROOT

NOTEBOOK = ROOT / "docs" / "how-to" / "python.ipynb"


def cells() -> list[dict[str, Any]]:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    found: list[dict[str, Any]] = content["cells"]
    return found


def test_the_cells_of_the_notebook_run(workshop: Workshop, tmp_path: Path) -> None:
    code = ["".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code"]
    assert len(code) > 3
    (tmp_path / "cells.py").write_text("\n\n".join(code), encoding="utf-8")
    done = workshop.run(f"# Helsinki-NLP/opus-mt-en-de\n{sys.executable} cells.py", folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "'' -> ''" in done.stdout
    assert done.stdout.endswith("beam is 0, but should be greater than 0\nfix: write a whole number greater than 0\n")


def test_the_notebook_has_no_results() -> None:
    for cell in cells():
        assert cell["cell_type"] != "code" or (cell["outputs"], cell["execution_count"]) == ([], None)
