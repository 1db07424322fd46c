"""Batches of similar length, and smaller ones if memory runs out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from threading import Thread
from typing import Any

import pytest
import torch

from nmt_cli.api import Translator
from nmt_cli.decoding.batching import Batches, plan_batches, plan_for_workers
from nmt_cli.decoding.search import active_search
from nmt_cli.decoding.search.hypotheses import Hypothesis, SourceSentence
from nmt_cli.decoding.search.searcher import Searcher
from nmt_cli.errors import DeviceError
from nmt_cli.model import decoder_cache
from tests.decoding.reference import CPU, decoding, in_batches, random_model, random_rows, search, search_in_batches
from tests.decoding.trained import HELD_OUT

VOCAB = 29
whole_search = Searcher.search


def assert_same(ours: Sequence[Sequence[Hypothesis]], others: Sequence[Sequence[Hypothesis]]) -> None:
    """The same hypotheses; of two that float32 hardly tells apart either comes first."""
    for one, other in zip(ours, others, strict=True):
        assert [a.score for a in one] == pytest.approx([b.score for b in other], abs=1e-5)
        near = [sum(abs(a.score - b.score) < 1e-5 for b in one) for a in one]
        for a, b, count in zip(one, other, near, strict=True):
            if count == 1 and (a is not one[-1] or len(one) == 1):
                assert a.ids == b.ids
                assert a.piece_log_probs == pytest.approx(b.piece_log_probs, abs=1e-5)


@pytest.mark.parametrize(
    "settings", [{"beam": 1}, {"beam": 4}, {"beam": 3, "min_tokens": 5}, {"samples": 3, "seed": 7}]
)
@pytest.mark.parametrize("has_prefixes", [False, True])
def test_small_batches_find_what_one_batch_finds(settings: dict[str, Any], has_prefixes: bool) -> None:
    models, config = [random_model(seed, vocab=VOCAB, sharpness=2.0) for seed in (6, 2)], decoding(**settings)
    rows = random_rows(6, count=64, vocab=VOCAB, longest=14)
    sources = [
        SourceSentence(row, [4 + (number + place) % 20 for place in range(number % 5 * has_prefixes)], str(number))
        for number, row in enumerate(rows)
    ]
    number = config.num_candidates
    small = config.model_copy(update={"batch_tokens": 120 * number})
    found = in_batches(Searcher(models, device=CPU), sources, config=small, nbest=number)
    assert_same(found, search(models, sources, config=config, nbest=number))


@pytest.mark.parametrize("width", [1, 4])
def test_groups_of_slots_and_rare_checks_change_nothing(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in bf16, where slots are seen in groups, and as on a GPU, where the host looks now and then."""
    model, rows = random_model(7, vocab=VOCAB, sharpness=2.0), random_rows(7, count=64, vocab=VOCAB, longest=14)
    sources, config = [SourceSentence(row) for row in rows], decoding(beam=width, max_extra_tokens=12)
    expected = search([model], sources, config=config, nbest=width)
    monkeypatch.setattr(decoder_cache, "_shape_multiple_of", lambda x: 16)
    monkeypatch.setattr(active_search, "STEPS_BETWEEN_CHECKS", {"cpu": 3})
    assert_same(search([model], sources, config=config, nbest=width), expected)


def test_threads_for_batches_leave_other_threads_their_number_of_threads() -> None:
    """A thread keeps the number that torch has when the thread first uses it."""
    seen: list[int] = []

    def work(batch: list[int]) -> list[int]:
        other = Thread(target=lambda: seen.append(torch.get_num_threads()))
        other.start()
        other.join()
        return batch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        Batches(CPU).map(work, list(range(10)), [1] * 10, config=decoding(beam=1, batch_tokens=10), empty=-1)
        assert seen == [2, 2]
    finally:
        torch.set_num_threads(before)


def test_threads_that_share_a_translator_keep_their_number_of_threads() -> None:
    seen: list[int] = []
    config = decoding(beam=1, batch_tokens=1)

    def call() -> None:
        Batches(CPU).map(list, [1] * 4, [1] * 4, config=config, empty=0)
        seen.append(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        callers = [Thread(target=call) for _ in range(20)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert seen == [4] * 20
    finally:
        torch.set_num_threads(before)


def test_after_an_error_no_thread_begins_another_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def begin(self: Searcher, sources: Sequence[SourceSentence], **options: Any) -> Any:
        begun.append(len(sources))
        if len(begun) == 2:
            raise ValueError("broken")
        return whole_search(self, sources, **options)

    monkeypatch.setattr(Searcher, "search", begin)
    rows = random_rows(9, count=64, vocab=VOCAB, longest=14)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="broken"):
            search_in_batches(random_model(9, vocab=VOCAB), rows, config=decoding(beam=1, batch_tokens=30))
    finally:
        torch.set_num_threads(before)
    assert len(begun) < 10


@pytest.mark.parametrize(
    "problem",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("could not create a primitive"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_batches_shrink_where_memory_does_not_suffice(
    problem: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[int] = []

    def begin(self: Searcher, sources: Sequence[SourceSentence], **options: Any) -> Any:
        tried.append(len(sources))
        if len(sources) > 3:
            raise problem
        return whole_search(self, sources, **options)

    config = decoding(beam=2, batch_tokens=40)
    rows = [[4 + number] for number in range(20)]
    model = random_model(0, vocab=30, sharpness=2.0)
    expected = [search([model], [SourceSentence(row)], config=config)[0] for row in rows]
    monkeypatch.setattr(Searcher, "search", begin)
    assert_same(search_in_batches(model, rows, config=config), expected)
    # Ten sentences are tried once, five once; after that no batch is so large.
    assert sorted(tried, reverse=True)[:3] == [10, 5, 2]
    told = "out of memory with {} sentences at once: batches are half as large for a while; nothing is lost"
    assert caplog.messages == [told.format(number) for number in (10, 5)]


def test_batches_grow_again_after_a_lack_of_memory() -> None:
    tried: list[int] = []

    def work(batch: list[int]) -> list[int]:
        tried.append(len(batch))
        if len(tried) == 1:  # another program has the memory now
            raise MemoryError
        return batch

    batches, items = Batches(CPU), list(range(10))
    for _ in range(100):
        assert batches.map(work, items, [1] * len(items), config=decoding(beam=1, batch_tokens=20), empty=-1) == items
    assert tried[:3] == [10, 5, 5]
    assert tried[-1] == 10


@pytest.mark.parametrize(
    ("problem", "error", "message", "beam", "hint"),
    [
        # oneDNN gives no reason, which may be anything if no batch is smaller.
        ("could not create a primitive", RuntimeError, "could not create a primitive", 3, None),
        ("shapes do not fit", RuntimeError, "shapes do not fit", 3, None),
        ("out of resource: shared memory, Required: 300000", RuntimeError, "out of resource", 3, None),
        ("CUDA error: an illegal memory access was encountered", RuntimeError, "illegal memory access", 3, None),
        (
            "can't allocate memory: you tried to",
            DeviceError,
            "the memory of cpu does not hold a sentence of 1 pieces with 3",
            3,
            "take fewer hypotheses, or a machine with more memory",
        ),
        ("not enough memory", DeviceError, "a sentence of 1 pieces with 1", 1, "take a machine with more memory"),
    ],
)
def test_problems_of_a_single_sentence_are_told(
    problem: str,
    error: type[Exception],
    message: str,
    beam: int,
    hint: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin(*arguments: object, **options: object) -> None:
        raise RuntimeError(problem)

    monkeypatch.setattr(Searcher, "search", begin)
    config = decoding(beam=beam, batch_tokens=400)
    with pytest.raises(error, match=message) as told:
        search_in_batches(random_model(0, vocab=9), [[4], [5]], config=config)
    if isinstance(told.value, DeviceError):
        assert told.value.setting == ("beam" if beam > 1 else None)
        assert told.value.hint == hint


def test_batches_hold_every_sentence_once_and_keep_to_the_budget() -> None:
    lengths = [len(row) for row in random_rows(1, count=300, vocab=9, longest=70)] + [0, 0]
    planned = plan_batches(lengths, max_tokens=64)
    assert sorted(index for batch in planned for index in batch) == list(range(300))
    longest = [max(lengths[index] for index in batch) + 1 for batch in planned]
    assert longest == sorted(longest, reverse=True)
    for batch, tokens in zip(planned, longest, strict=True):
        assert len(batch) * tokens <= 64 or len(batch) == 1
    # Nothing is wasted: the next sentence would not have fitted.
    for batch, tokens in zip(planned[:-1], longest[:-1], strict=True):
        assert (len(batch) + 1) * tokens > 64


def test_threads_share_batches_of_like_cost_where_one_would_end_late() -> None:
    lengths = [len(row) for row in random_rows(1, count=900, vocab=9, longest=30)] + [0, 0]
    whole = plan_batches(lengths, max_tokens=8000)
    plan = partial(plan_for_workers, step_cost=24)
    shared = plan(lengths, max_tokens=8000, workers=2)
    assert (len(whole), len(shared)) == (3, 4)
    assert sorted(index for batch in shared for index in batch) == list(range(900))
    costs = [len(batch) * (max(lengths[index] for index in batch) + 1) for batch in shared]
    assert max(costs) <= 1.25 * sum(costs) / len(costs)
    assert plan(lengths, max_tokens=8000, workers=1) == whole
    assert [len(plan(lengths, max_tokens=8000, workers=workers)) for workers in (3, 8)] == [3, 8]
    # Small batches would take more time for their steps than they give back.
    assert plan([5] * 25, max_tokens=60, workers=2) == plan_batches([5] * 25, max_tokens=60)
    assert plan([5, 5], max_tokens=1000, workers=2) == [[0, 1]]
    # A single batch is split into parts that are large enough.
    sizes = [[len(batch) for batch in plan([5] * 40, max_tokens=1000, workers=w, min_sentences=16)] for w in (1, 2, 8)]
    assert sizes == [[40], [20, 20], [20, 20]]


def test_threads_change_nothing(translator: Translator) -> None:
    lines = [source for source, _ in HELD_OUT[:100]]
    before = torch.get_num_threads()
    by_one = translator.translate(lines, batch_tokens=400, alignments=True)
    try:
        torch.set_num_threads(2)
        by_two = translator.translate(lines, batch_tokens=400, alignments=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert [(one.text, one.alignment) for one in by_one] == [(one.text, one.alignment) for one in by_two]
    for one, other in zip(by_one, by_two, strict=True):
        # Float32 sums of some ten log-probabilities.
        assert one.score == pytest.approx(other.score, abs=1e-4)
