"""Compiled training on the CPU: the path that a GPU takes, with our kernels in Triton's interpreter.

One test compiles with torch's own compiler, in about half a minute where nothing is in its cache; others only trace.
"""

from __future__ import annotations

import inspect
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.utils import counters

from nmt_cli import devices
from nmt_cli.dataset.batches import Batch
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.devices import Precision
from nmt_cli.errors import DeviceError
from nmt_cli.model import attention, kernels
from nmt_cli.training import loss, objective, update
from nmt_cli.training.objective import attention_kernel, reason_not_to_compile, warn_of_triton_problem
from nmt_cli.training.update import Updater
from tests.reference.varlen import register
from tests.training.feeding import Feed, feed
from tests.training.tiny import tiny_recipe

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Attention by torch's variable-length operator, and layers compiled on the CPU, of which nothing remains.

    The kernel of the loss, a program a row, would take the interpreter minutes; tests/model/kernels has it.
    """
    register()
    monkeypatch.setattr(
        "nmt_cli.model.kernels.loss.loss_and_gradient", lambda *arguments, pad: loss._loss_and_gradient(*arguments)
    )
    monkeypatch.setattr(attention, "choose_kernel", lambda *_, **__: "varlen")
    monkeypatch.setattr(update, "CudaGraphs", lambda device: SimpleNamespace(warm_up_and_record=run_again))
    monkeypatch.setattr(update, "reason_not_to_compile", lambda recipe, **_: None)
    yield
    torch.compiler.reset()


def small_feed(data: PreparedData, *settings: str) -> Feed:
    """Micro-batches of few tokens, as Triton's interpreter is slow."""
    return feed(data, "training.batch_tokens=100", *settings, max_tokens=64)


def run_again(function: Callable[[], None]) -> Callable[[], None]:
    """In place of a CUDA graph the function itself."""
    return function


def tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is compiled be traced, forward and backward, and run as traced."""
    trace = partial(torch.compile, fullgraph=True, dynamic=False, backend="aot_eager")
    monkeypatch.setattr(objective, "compile_whole", trace)


def plain_updater(given: Feed, monkeypatch: pytest.MonkeyPatch, *, precision: Precision) -> Updater:
    with monkeypatch.context() as patch:
        patch.setattr(update, "reason_not_to_compile", lambda recipe, **_: "to compare with")
        return given.updater(precision)


# What Inductor generates for a CPU takes a compiler of C++ half a minute, and trains nowhere else.
@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize("is_traced", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_compiled_training_is_the_training_itself_and_is_compiled_once(
    prepared: PreparedData, monkeypatch: pytest.MonkeyPatch, is_traced: bool
) -> None:
    if is_traced:
        tracing(monkeypatch)
    given = small_feed(prepared, "model.decoder_layers=2")
    plain, compiled = plain_updater(given, monkeypatch, precision="fp32"), given.updater("fp32")
    counters.clear()
    compiled.warm_up([given.batch(given.order.full_rows), given.batch(given.order.longest_rows)])
    # The encoder's layers, the decoder's layers, embeddings of each side.
    assert counters["stats"]["unique_graphs"] == 4
    with torch.compiler.set_stance("fail_on_recompile"):
        for number, each in given.updates(2):  # the second with other weights
            ours, theirs = given.give(compiled, number, each), given.give(plain, number, each)
            # float32 rounds at 6e-8; losses are sums of some 500 terms near 5, added in another order.
            assert ours.smoothed == pytest.approx(theirs.smoothed, rel=1e-5)
            assert ours.nll == pytest.approx(theirs.nll, rel=1e-5)
            assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-4)
            torch.testing.assert_close(compiled.weights.values, plain.weights.values, rtol=0, atol=2e-5)
        # A validation runs the model itself, with shapes of its own.
        assert compiled.model.eval().encode(given.batch(given.order.full_rows).source).isfinite().all()
    assert counters["stats"]["unique_graphs"] == 4


VARIANTS = {
    "modern": (
        "model.norm=pre",
        "model.norm_type=rms",
        "model.activation=swiglu",
        "model.positions=rotary",
        "model.encoder_window=9",
    ),
    "learned": ("model.positions=learned", "model.attention_bias=true", "model.output_bias=true"),
}


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_can_be_traced_and_fits_all_batches(
    prepared: PreparedData, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tracing(monkeypatch)
    given = small_feed(prepared, *VARIANTS[name])
    plain, compiled = plain_updater(given, monkeypatch, precision="bf16"), given.updater("bf16")
    compiled.warm_up([given.batch(given.order.full_rows)])
    with torch.compiler.set_stance("fail_on_recompile"):
        for number, each in given.updates(2):
            ours, theirs = given.give(compiled, number, each), given.give(plain, number, each)
            # bf16 keeps 8 bits; losses are sums of some 500 terms whose errors differ in sign.
            assert ours.smoothed == pytest.approx(theirs.smoothed, rel=2e-3)
            assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=2e-2)


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize(
    "place",
    [
        "dropout",
        *(
            pytest.param(place, marks=pytest.mark.slow)
            for place in ("attention_dropout", "ffn_dropout", "word_dropout.target")
        ),
    ],
)
def test_masks_of_compiled_dropout_follow_from_seed_update_and_micro_batch(
    prepared: PreparedData, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    tracing(monkeypatch)
    if place == "attention_dropout":
        monkeypatch.setattr(attention, "choose_kernel", lambda *_, **__: "triton")
    given = small_feed(prepared, f"model.{place}=0.3")
    updater, batch = given.updater("fp32"), given.batch(given.order.full_rows)
    counters.clear()
    keys = [(1, 0), (1, 1), (2, 0), (1, 0)]
    losses = [float(updater.accumulate(batch, key=key, target_tokens=1, begins_sum=False)[0]) for key in keys]
    assert losses[0] == losses[3]
    assert len(set(losses)) == 3
    assert counters["stats"]["unique_graphs"] == 4, "layers of a kind share a graph, each with its own seeds"


@pytest.mark.usefixtures("as_on_cuda")
def test_longer_sentences_need_the_layers_compiled_once_more_and_nothing_else(
    prepared: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracing(monkeypatch)
    given = small_feed(prepared)
    updater, batch = given.updater("fp32"), given.batch(given.order.full_rows)
    longer = Batch(replace(batch.source, length_bound=512), replace(batch.target, length_bound=512), batch.gold)
    counters.clear()
    updater.warm_up([batch])
    before = counters["stats"]["unique_graphs"]
    updater.warm_up([longer])
    assert counters["stats"]["unique_graphs"] == before + 2
    with torch.compiler.set_stance("fail_on_recompile"):
        updater.warm_up([batch, longer])


def without_triton(graph: object, inputs: object) -> Callable[..., object]:
    raise RuntimeError("Cannot find a working triton installation.\nMore about it.")


def without_memory(graph: object, inputs: object) -> Callable[..., object]:
    raise torch.OutOfMemoryError


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize(
    ("compiler", "message", "where", "hint"),
    [
        (
            without_triton,
            "the model cannot be compiled for cpu",
            "Cannot find a working triton installation.",
            "--no-compile trains without",
        ),
        (
            without_memory,
            "the memory of cpu does not hold a micro-batch",
            "training.max_tokens_per_device",
            "--set training.max_tokens_per_device=",
        ),
    ],
)
def test_a_compiler_that_fails_is_an_error_with_a_way_out(
    prepared: PreparedData,
    monkeypatch: pytest.MonkeyPatch,
    compiler: Callable[..., object],
    message: str,
    where: str,
    hint: str,
) -> None:
    monkeypatch.setattr(
        objective, "compile_whole", partial(torch.compile, fullgraph=True, dynamic=False, backend=compiler)
    )
    given = feed(prepared)
    with pytest.raises(DeviceError, match=f"^{message}") as caught:
        given.updater("fp32").warm_up([given.batch(given.order.full_rows)])
    assert caught.value.where == where
    assert caught.value.hint.startswith(hint)
    assert caught.value.exit_code == 6


def with_tools(
    monkeypatch: pytest.MonkeyPatch,
    *tools: str,
    cc: str | None = None,
    has_headers: bool = True,
    check: Callable[[torch.device], None] = lambda device: None,
) -> None:
    """Let these programs and packages be installed, and no others; CC names a program, and `check` tries kernels."""
    monkeypatch.setattr(attention, "_triton_problem_of_gpu", inspect.unwrap(attention._triton_problem_of_gpu))
    monkeypatch.setattr(kernels, "search", SimpleNamespace(check=check), raising=False)
    monkeypatch.setattr(devices, "_PYTHON_HEADER", Path(__file__ if has_headers else "/nowhere/Python.h"))
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name in tools else None)
    monkeypatch.setattr(devices, "find_spec", lambda name: object() if name in tools else None)
    if cc is None:
        monkeypatch.delenv("CC", raising=False)
    else:
        monkeypatch.setenv("CC", cc)


NO_COMPILER = "no C compiler is found (apt-get install gcc libc6-dev)"
NO_TRITON = "Triton is not installed (pip install triton)"


@pytest.mark.parametrize(
    ("tools", "cc", "reason"),
    [
        (("triton", "gcc"), None, None),
        (("triton", "clang"), None, None),
        (("triton", "cc-12"), "cc-12", None),
        (("triton",), None, NO_COMPILER),
        (("gcc",), None, NO_TRITON),
        (("triton", "gcc"), "icc", "CC is 'icc', and no such program is found (unset CC)"),
    ],
)
def test_without_a_tool_a_model_is_not_compiled_and_a_warning_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tools: tuple[str, ...],
    cc: str | None,
    reason: str | None,
) -> None:
    with_tools(monkeypatch, *tools, cc=cc)
    found = reason_not_to_compile(tiny_recipe(), device=CUDA, dtype=torch.bfloat16)
    assert found == reason
    warn_of_triton_problem(found, CUDA)
    assert caplog.messages == ([f"the model is not compiled, and training is slower: {reason}"] if reason else [])


def test_a_triton_that_cannot_launch_is_not_used_and_a_warning_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(device: torch.device) -> None:
        raise subprocess.CalledProcessError(1, ["gcc"])

    with_tools(monkeypatch, "triton", "gcc", check=fail)
    found = reason_not_to_compile(tiny_recipe(), device=CUDA, dtype=torch.bfloat16)
    assert found == "CalledProcessError: Command '['gcc']' returned non-zero exit status 1."
    warn_of_triton_problem(found, CUDA)
    assert caplog.messages == [f"the model is not compiled, and training is slower: {found}"]
    for settings, kernel in (((), "varlen"), (("model.attention_dropout=0.1",), "sdpa")):
        assert attention_kernel(tiny_recipe(*settings).model, device=CUDA, dtype=torch.bfloat16) == kernel


@pytest.mark.parametrize(
    ("device", "dtype", "settings", "reason"),
    [
        (CUDA, torch.bfloat16, (), None),
        (CUDA, torch.bfloat16, ("training.compile=false",), "training.compile is false"),
        (CUDA, torch.bfloat16, ("model.attention_dropout=0.1",), None),
        (CUDA, torch.float32, (), "with sdpa attention, shapes change from batch to batch"),
        (CUDA, torch.bfloat16, ("model.d_v=32",), None),
        (CUDA, torch.bfloat16, ("model.d_v=12",), "with sdpa attention, shapes change from batch to batch"),
        (CUDA, torch.bfloat16, ("model.d_ff=60",), "d_model or d_ff is no multiple of 8"),
        (CPU, torch.bfloat16, (), "on a CPU"),
    ],
)
def test_what_is_not_compiled_has_a_reason(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    dtype: torch.dtype,
    settings: tuple[str, ...],
    reason: str | None,
) -> None:
    with_tools(monkeypatch, "triton", "gcc")
    assert reason_not_to_compile(tiny_recipe(*settings), device=device, dtype=dtype) == reason
