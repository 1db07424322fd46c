"""The search in fixed shapes finds what the plain search finds. Repeated calls stand in for a CUDA graph."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmt_cli.decoding.search import cuda
from nmt_cli.decoding.search.cuda import CudaSearch
from nmt_cli.decoding.search.hypotheses import Hypothesis, SourceSentence
from nmt_cli.decoding.search.static_state import StaticState
from nmt_cli.model import attention, kernels
from nmt_cli.model.cuda_graphs import CudaGraphs
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig
from tests.decoding.reference import CPU, assert_same, decoding, in_batches, random_model, random_sources, search
from tests.interpreted import DEVICE, MARKS
from tests.operators import Operators

pytestmark = MARKS

# Sums over padded slots add zeros in another order; log-probabilities are sums of up to fifty terms of size 2.
TOLERANCE = 5e-5


class Tape(CudaGraphs):
    """A recorder that calls the function again, and counts what is asked of it."""

    def __init__(self) -> None:
        self.num_run = self.num_recorded = self.num_replayed = self.num_renewed = 0

    def use_new_pool(self) -> None:
        self.num_renewed += 1

    def run_on_recording_stream(self, function: Callable[[], None]) -> None:
        self.num_run += 1
        function()

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        self.num_recorded += 1

        def replay() -> None:
            self.num_replayed += 1
            function()

        return replay


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The device of all tensors, which runs our kernels."""
    monkeypatch.setattr(cuda, "triton_problem", lambda device: None)
    with DEVICE:
        yield


def cuda_search(models: list[Transformer], recorder: Tape | None = None) -> CudaSearch:
    return CudaSearch(models, device=DEVICE, recorder=recorder or Tape())


def sources_of(seed: int, *, count: int, longest: int = 4) -> list[SourceSentence]:
    with CPU:
        return random_sources(seed, count=count, vocab=53, longest=longest)


def model_of(seed: int, **settings: Any) -> Transformer:
    return random_model(seed, vocab=53, sharpness=3.0, heads=1, decoder_layers=1, **settings)


def assert_found(ours: CudaSearch, sources: list[SourceSentence], *, config: DecodingConfig, nbest: int) -> None:
    """It finds what the search finds that it stands for."""
    assert ours.supports(sources, config=config)
    expected = search(ours._models, sources, config=config, nbest=nbest, device=DEVICE)
    assert_same(ours.search(sources, config=config, nbest=nbest), expected, tolerance=TOLERANCE)


@pytest.mark.parametrize(
    ("count", "model", "settings", "nbest"),
    [
        (1, {}, {"beam": 3}, 3),
        (2, {}, {"beam": 1, "max_extra_tokens": 4}, 1),
        (2, {"norm": "pre", "norm_type": "rms", "positions": "rotary", "activation": "swiglu"}, {"beam": 2}, 2),
        (1, {"attention_bias": True, "positions": "learned", "output_bias": True}, {"beam": 2, "min_tokens": 3}, 1),
        (1, {}, {"beam": 5, "length_penalty_form": "length", "length_penalty": 1.0, "max_extra_tokens": 12}, 5),
    ],
)
def test_finds_what_the_search_finds(count: int, model: dict[str, Any], settings: dict[str, Any], nbest: int) -> None:
    config = decoding(**({"max_extra_tokens": 2} | settings))
    assert_found(cuda_search([model_of(5, **model)]), sources_of(6, count=count), config=config, nbest=nbest)


@pytest.fixture
def model() -> Transformer:
    return model_of(5)


def test_models_that_translate_together_find_what_the_search_finds(model: Transformer) -> None:
    assert_found(cuda_search([model, model_of(8)]), sources_of(6, count=1), config=decoding(beam=2), nbest=2)


def test_a_step_is_run_once_then_recorded_and_from_then_on_replayed(model: Transformer) -> None:
    tape, config = Tape(), decoding(beam=2, max_extra_tokens=1, min_tokens=8)
    # When the short ones are cut, the long one goes on in a smaller state.
    beam, sources = cuda_search([model], tape), [SourceSentence(ids) for ids in ([5], [6], [7], [8] * 9)]
    first = beam.search(sources, config=config, nbest=1)
    num_sizes, num_replayed = len(beam._states), tape.num_replayed
    assert num_sizes > 1
    assert (tape.num_run, tape.num_recorded) == (num_sizes, num_sizes)
    assert beam.search(sources, config=config, nbest=1) == first
    assert (tape.num_run, tape.num_recorded) == (num_sizes, num_sizes)
    assert tape.num_replayed == 2 * num_replayed + num_sizes


def test_threads_that_share_it_find_what_each_finds_alone(model: Transformer) -> None:
    beam, config = cuda_search([model]), decoding(beam=1, max_extra_tokens=2)
    batches = [sources_of(seed, count=2) for seed in range(3)]

    def searched(sources: list[SourceSentence]) -> list[list[Hypothesis]]:
        with DEVICE:
            return beam.search(sources, config=config, nbest=1)

    with ThreadPoolExecutor(len(batches)) as pool:
        found = list(pool.map(searched, batches))
    for ours, sources in zip(found, batches, strict=True):
        assert_same(ours, search([model], sources, config=config, device=DEVICE), tolerance=TOLERANCE)


def test_what_needs_more_memory_makes_recordings_anew_and_changes_nothing(model: Transformer) -> None:
    tape = Tape()
    beam = cuda_search([model], tape)
    for count, width in ((1, 2), (3, 2), (3, 3), (1, 2)):
        assert_found(beam, sources_of(count, count=count), config=decoding(beam=width, max_extra_tokens=2), nbest=2)
    assert tape.num_renewed >= 2
    assert len(beam._states) < tape.num_recorded <= tape.num_run


def test_old_recordings_leave_when_there_are_too_many(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_MAX_RECORDINGS", 2)
    beam = cuda_search([model])
    for width in (4, 3, 2):
        config = decoding(beam=width, max_extra_tokens=2)
        assert_found(beam, sources_of(width, count=1), config=config, nbest=1)
    assert len(beam._states) == 2


class Refusing(Tape):
    """Runs out of memory in its first recordings."""

    remaining = 2

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        replay = super().record(function)
        if self.remaining == 0:
            return replay
        self.remaining -= 1
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nMore about that.")


def test_where_nothing_can_be_recorded_a_warning_says_so_once_and_each_search_tries_again(
    model: Transformer, caplog: pytest.LogCaptureFixture
) -> None:
    tape, sources, config = Refusing(), sources_of(6, count=1), decoding(beam=2, max_extra_tokens=2)
    beam = cuda_search([model], tape)
    for num_failed in (1, 2):
        assert_found(beam, sources, config=config, nbest=2)
        assert (tape.num_recorded, tape.num_replayed) == (num_failed, 0)
    assert_found(beam, sources, config=config, nbest=2)
    assert tape.num_replayed > 0
    assert caplog.messages == [
        "no CUDA graph can be made (CUDA out of memory. Tried to allocate 20.00 MiB.): steps take longer to launch"
    ]


class Full(Tape):
    """Runs out of memory in its first two steps."""

    remaining = 2

    def run_on_recording_stream(self, function: Callable[[], None]) -> None:
        if self.remaining:
            self.remaining -= 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        super().run_on_recording_stream(function)


def test_out_of_memory_frees_what_is_held_and_makes_batches_smaller(
    model: Transformer, caplog: pytest.LogCaptureFixture
) -> None:
    beam, sources, config = cuda_search([model], Full()), sources_of(6, count=4), decoding(beam=2)
    found = in_batches(beam, sources, config=config)
    assert_same(found, search([model], sources, config=config, device=DEVICE), tolerance=TOLERANCE)
    assert [message.partition(" sentences")[0] for message in caplog.messages] == [
        "out of memory with 4",
        "out of memory with 2",
    ]


def test_it_takes_no_samples_prefixes_wide_beams_or_beam_near_the_vocabulary(model: Transformer) -> None:
    beam, sources = cuda_search([model]), sources_of(6, count=2)
    assert beam.supports(sources, config=decoding(beam=25))
    assert not beam.supports(sources, config=decoding(beam=26))
    assert not beam.supports(sources, config=decoding(samples=2))
    prefixed = [*sources, SourceSentence([5, 6], prefix=[7])]
    assert not beam.supports(prefixed, config=decoding())
    assert len(beam.search(prefixed, config=decoding(), nbest=1)) == 3
    beam = cuda_search([random_model(5, vocab=99)])
    assert beam.supports(sources, config=decoding(beam=32))
    assert not beam.supports(sources, config=decoding(beam=33))


def test_a_step_is_the_same_operators_whatever_it_finds_and_none_that_waits(model: Transformer) -> None:
    beam, sources, config = cuda_search([model], Refusing()), sources_of(6, count=4), decoding(beam=2)
    steps: list[list[str]] = []
    advance = beam._launch_step

    def told(state: StaticState) -> None:
        kept = {name: tensor.data_ptr() for name, tensor in beam._memory.items()}
        with Operators() as operators:
            advance(state)
        steps.append(operators.names)
        assert {name: tensor.data_ptr() for name, tensor in beam._memory.items()} == kept

    beam._launch_step = told  # type: ignore[method-assign]  # to listen
    beam.search(sources, config=config, nbest=2)
    assert len(steps) > 4
    assert all(called == steps[0] for called in steps)
    waiting = {"_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal", "item", "lift_fresh"}
    assert not {name.split(".")[1] for name in steps[0]} & waiting


def test_where_triton_does_not_work_a_warning_says_so_once_and_nothing_is_recorded(
    model: Transformer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def check(device: torch.device) -> None:
        raise RuntimeError("Failed to find C compiler.\nMore about it.")

    monkeypatch.setattr(kernels, "search", SimpleNamespace(check=check), raising=False)
    monkeypatch.setattr(attention, "missing_for_triton", lambda: None)
    monkeypatch.setattr(cuda, "triton_problem", lambda device: attention._triton_problem_of_gpu.__wrapped__(0))
    tape = Tape()
    beam, sources, config = cuda_search([model], tape), sources_of(6, count=3), decoding()
    for _ in range(2):
        expected = search([model], sources, config=config, nbest=2, device=DEVICE)
        assert beam.search(sources, config=config, nbest=2) == expected
    assert tape.num_run == 0
    reason = "RuntimeError: Failed to find C compiler."
    assert caplog.messages == [f"Triton does not work here ({reason}): the search records no steps, and is slower"]


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [{"beam": 4}, {"beam": 1}, {"beam": 3, "min_tokens": 8, "max_extra_tokens": 40}])
def test_cuda_graphs_find_what_the_search_on_the_gpu_finds(settings: dict[str, Any]) -> None:
    device, config = torch.device("cuda"), decoding(**settings)
    # With 6 components, as elsewhere here, a value would not be aligned as the fused kernel of attention needs it.
    model = random_model(5, vocab=53, sharpness=3.0, d_v=8).to(device)
    beam = CudaSearch([model], device=device, recorder=CudaGraphs(device))
    for seed, count in ((1, 3), (2, 70), (3, 3), (2, 70)):
        sources = sources_of(seed, count=count, longest=12)
        ours = beam.search(sources, config=config, nbest=1)
        expected = search([model], sources, config=config, nbest=1, device=device)
        same = [one[0].ids == other[0].ids for one, other in zip(ours, expected, strict=True)]
        # Kernels of attention differ in their last bits, which tips a close choice now and then.
        assert sum(same) >= 0.97 * len(same)
    assert any(state.replay is not None for state in beam._states.values())


@pytest.mark.gpu
def test_on_a_gpu_a_search_in_bf16_is_the_same_each_time() -> None:
    device, config = torch.device("cuda"), decoding()
    model = random_model(5, vocab=53, sharpness=3.0, d_v=8).to(device, torch.bfloat16)
    beam = CudaSearch([model], device=device, recorder=CudaGraphs(device))
    sources = sources_of(2, count=70, longest=12)
    first = beam.search(sources, config=config, nbest=4)
    assert [beam.search(sources, config=config, nbest=4) for _ in range(3)] == [first] * 3


@pytest.mark.gpu
def test_on_a_gpu_what_was_recorded_gives_its_memory_back() -> None:
    device = torch.device("cuda")
    model = random_model(5, vocab=53).to(device)
    beam = CudaSearch([model], device=device, recorder=CudaGraphs(device))
    reserved = []
    for _ in range(4):
        beam.search(sources_of(2, count=300, longest=12), config=decoding(), nbest=1)
        beam.free_memory()
        gc.collect()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    # After the first time libraries keep their own.
    assert max(reserved[1:]) <= reserved[0] + (4 << 20)
