"""`nmt train --profile N`: where the time of some updates goes, told and written, and the training goes on."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from nmt_cli.dataset.store import PreparedData
from nmt_cli.training import profiling
from nmt_cli.training.figures import Stopwatch
from nmt_cli.training.profiling import kind_of
from tests.training.test_figures import FakeClock
from tests.training.tiny import checkpoint, events, train

SETTINGS = ("training.updates=9", "training.checkpoint_every=9", "validation.every=5")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "updates on cpu" in message]


def test_a_profile_says_where_the_time_goes_and_changes_nothing(
    prepared: PreparedData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = tmp_path / "run"
    assert train(prepared, run, *SETTINGS, profile=4) == 0
    assert train(prepared, tmp_path / "plain", *SETTINGS) == 0
    assert checkpoint(run, 9) == checkpoint(tmp_path / "plain", 9)
    summary = (run / "profile/summary.txt").read_text(encoding="utf-8")
    (message,) = told(caplog)
    assert message == (
        f"{summary}written to {run / 'profile/summary.txt'};"
        f" {run / 'profile/trace.json.gz'} is for https://ui.perfetto.dev"
    )
    assert summary.startswith("4 updates on cpu, ")
    kinds, operations = summary.split("\n\n")[1], summary.split("\n\n")[3]
    shares = {kind: float(share) for share, kind in re.findall(r"^ +([\d.]+)% +[\d.]+ ms  (.+)$", kinds, re.MULTILINE)}
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert sum(shares.values()) == pytest.approx(100, abs=3)  # rounded, and what the profiler itself takes
    assert set(shares) == {
        *("matrix products", "attention", "softmax and loss", "dropout", "norms", "copies and casts", "optimizer"),
        *("waiting for data", "other"),
    }
    for kind in ("matrix products", "attention", "softmax and loss", "dropout", "norms", "optimizer"):
        assert shares[kind] > 0
    assert "aten::mm (matrix products)" in operations
    assert 5 < len(operations.splitlines()) <= 15
    with gzip.open(run / "profile/trace.json.gz", "rt", encoding="utf-8") as trace:
        names = [event.get("name") for event in json.load(trace)["traceEvents"]]
    assert names.count("nmt: update") == 4


def test_a_rate_leaves_out_the_writing_of_the_profile(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()

    def slow_summary(*arguments: object, **options: object) -> str:
        clock.now += 1000.0
        return "summary"

    monkeypatch.setattr("nmt_cli.training.trainer.Stopwatch", lambda: Stopwatch(clock))
    monkeypatch.setattr(profiling, "summary_of", slow_summary)
    assert train(prepared, tmp_path / "run", *SETTINGS, "training.log_every=1", profile=1) == 0
    assert (tmp_path / "run/profile/summary.txt").read_text(encoding="utf-8") == "summary"
    assert {line["seconds"] for line in events(tmp_path / "run", "train")} == {0.0}


@pytest.mark.parametrize(("updates", "watched"), [(5, 2), (3, 0)])
def test_a_training_that_ends_early_tells_what_was_seen(
    prepared: PreparedData, tmp_path: Path, caplog: pytest.LogCaptureFixture, updates: int, watched: int
) -> None:
    caplog.set_level("INFO")
    assert train(prepared, tmp_path / "run", f"training.updates={updates}", profile=100) == 0
    if watched:
        assert told(caplog)[0].startswith(f"{watched} updates on cpu, ")
    else:
        assert "--profile: the training ended before 4 updates, and none was watched" in caplog.messages
        assert not (tmp_path / "run/profile").exists()


def test_a_profile_that_cannot_be_written_is_told_and_the_training_goes_on(
    prepared: PreparedData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = tmp_path / "run"
    assert train(prepared, run, "training.updates=1") == 0
    (run / "profile").write_text("a file\n", encoding="utf-8")
    assert train(prepared, run, "training.updates=6", profile=2) == 0
    assert told(caplog)[0].startswith("2 updates on cpu, ")
    assert told(caplog)[0].endswith(f"\nnot written to {run / 'profile'}: File exists")


def test_a_training_that_is_done_has_nothing_to_watch(
    prepared: PreparedData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for _ in range(2):
        assert train(prepared, tmp_path / "run", "training.updates=1", profile=2) == 0
    assert caplog.messages.count("--profile: there is no update left to watch") == 1


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["aten::mm", "aten::matmul"], "matrix products"),
        (["aten::bmm", "_Products"], "attention"),
        (["aten::mm", "_SmoothedCrossEntropy"], "matrix products"),
        (["aten::_softmax", "_SmoothedCrossEntropy"], "softmax and loss"),
        (["aten::copy_", "aten::to", "_BitMask"], "dropout"),
        (["aten::add_", "Optimizer.step#Muon.step"], "optimizer"),
        (["aten::mm", "Optimizer.step#Muon.step"], "optimizer"),
        (["aten::add"], "other"),
        (["aten::addcmul_"], "other"),
        (["aten::copy_"], "copies and casts"),
        (["nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"], "matrix products"),
        (["void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, 128>>"], "attention"),
        (["triton_per_fused_add_native_dropout_native_layer_norm_3"], "norms"),
        (["triton_poi_fused_native_dropout_5"], "dropout"),
        (["ncclDevKernel_AllReduce_Sum_f32_RING_LL"], "sums over ranks"),
        (["Memcpy HtoD (Pinned -> Device)"], "copies and casts"),
        (["void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>"], "optimizer"),
    ],
)
def test_operations_and_kernels_are_told_apart(names: list[str], kind: str) -> None:
    assert kind_of(names) == kind
