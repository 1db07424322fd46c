"""The benchmark of one model of three directions and of back-translation, run small: it trains and tests all models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_all_models_are_trained_and_tested(repository: Path, shared_data: Path, tmp_path: Path) -> None:
    french, german = shared_data / "mix-en-fr" / "train", shared_data / "mix-en-de" / "train.de.gz"
    texts = ["--captions", str(shared_data / "multi30k"), "--french", str(french), "--german", str(german)]
    sizes = ["--pairs", "2000", "--synthetic", "20", "--updates", "3", "--vocab-size", "2000"]
    shape = {"d_model": 32, "d_ff": 64, "encoder_layers": 1, "decoder_layers": 1}
    settings = [part for key, value in shape.items() for part in ("--set", f"model.{key}={value}")]
    command = [sys.executable, str(repository / "benchmarks/many_languages.py"), *texts, *sizes, *settings]
    command += ["--set", "averaging.last=2", "--folder", str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    assert set(result["bleu_of_one_model"]) == {"en-de", "de-en", "en-fr"}
    assert "<origin:back-translation>" in (tmp_path / "data-tagged" / "source.spm").read_bytes().decode("latin-1")
    assert len((tmp_path / "three.en-fr.hyp").read_text(encoding="utf-8").splitlines()) == 1000
