"""Table 3 in small: a quarter of the paper's sizes, and one command from prepared data to the rank correlation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sharing import shared_folder
from tests.training.tiny import prepare_tiny


def test_one_command_trains_rows_and_compares_their_order_with_the_paper_s(
    repository: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = shared_folder(tmp_path_factory, "tiny", prepare_tiny) / "data/tiny"
    command = [sys.executable, str(repository / "benchmarks/table3_small.py"), "--data", str(data)]
    command += ["--folder", str(tmp_path / "runs")]
    command += ["--updates", "2", "--validations", "1", "--batch-tokens", "300", "--rows", "base,c-n2,b-dk16"]
    command += ["--set", "model.embedding_multiple=8", "--set", "validation.max_sentences=2"]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [row["paper"]["perplexity"] for row in result["rows"].values()] == [4.92, 6.11, 5.16]
    ours = [row["here"]["perplexity"][0] for row in result["rows"].values()]
    # Of three different values, rho is 1 - d / 4, where d is the sum of squared differences of ranks.
    squares = sum((sorted(ours).index(one) - rank) ** 2 for one, rank in zip(ours, (0, 2, 1), strict=True))
    assert result["rank_correlation"]["perplexity"] == pytest.approx(1 - squares / 4)
    assert len(result["tables"]["rows"]) == 2 + 3
    widths = (tmp_path / "runs" / "b-dk16-1" / "recipe.yaml").read_text(encoding="utf-8")
    assert {"d_model: 128", "d_ff: 512", "d_k: 4", "d_v: 16", "heads: 8", "encoder_layers: 2"} <= {
        line.strip() for line in widths.splitlines()
    }
