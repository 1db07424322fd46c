"""The benchmark of terms and loops, run small: terms are kept, and BLEU stays without loops."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.decoding.trained import HELD_OUT, TRAIN, shared_model


@pytest.mark.slow
def test_terms_are_kept_and_no_loop_is_left(
    repository: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name, pairs in {"train": TRAIN, "test": HELD_OUT[:40]}.items():
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    texts = ["--train", str(tmp_path / "train"), "--test", f"made={tmp_path / 'test'}", "--most", "40"]
    command = [sys.executable, str(repository / "benchmarks/terms_and_loops.py"), *texts, "--runs", "1", "--odd", "16"]
    model = shared_model(tmp_path_factory)
    process = subprocess.run([*command, "--model", str(model)], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    terms, loops = result["terms"]["made"], result["loops"]
    assert terms["terms"] > 5
    assert terms["with"]["kept"] == 1 > terms["without"]["kept"]
    assert loops["odd lines"]["with"] <= loops["odd lines"]["without"]
    assert loops["made"]["with"]["loops"] == 0
    assert loops["made"]["with"]["bleu"] == loops["made"]["without"]["bleu"]
