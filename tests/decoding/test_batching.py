"""Batches of similar length, smaller ones if memory runs out, and stragglers of several batches searched together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch

from nmt_cli.decoding import batching
from nmt_cli.decoding.batching import BatchedSearch, begin_search, plan_batches, plan_for_threads
from nmt_cli.decoding.search import beam
from nmt_cli.decoding.search.active_search import ActiveSearch
from nmt_cli.decoding.search.beam import BeamSearch
from nmt_cli.decoding.search.greedy_and_sampling import GreedyOrSamplingSearch
from nmt_cli.decoding.search.hypotheses import Hypothesis, HypothesisTree, SourceSentence
from nmt_cli.errors import DeviceError
from nmt_cli.model import cache as decoder_cache
from nmt_cli.model.cache import DecoderCache
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig
from tests.decoding.reference import CPU, decoding, random_model, random_rows, search, search_in_batches

VOCAB = 29
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4},
    "min tokens": {"beam": 3, "min_tokens": 5},
    "samples": {"beam": 1, "samples": 3, "seed": 7},
    "limits that many reach": {"beam": 2, "max_extra_tokens": 1},
    "an ensemble": {"beam": 3},
}


def sources(seed: int, *, has_prefixes: bool = False) -> list[SourceSentence]:
    rows = random_rows(seed, count=64, vocab=VOCAB, longest=14)
    return [
        SourceSentence(row, [4 + (number + place) % 20 for place in range(number % 5 * has_prefixes)], str(number))
        for number, row in enumerate(rows)
    ]


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[int]]]:
    """How many sentences each search had that took part in one of several; one thread puts many aside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(batching, "_STRAGGLER_SHARE", 0.6)
    counts: list[list[int]] = []
    for kind in (BeamSearch, GreedyOrSamplingSearch):

        def join(self: Any, others: Sequence[Any], *, original: Any = kind.join) -> None:
            counts.append([self.num_sentences, *(other.num_sentences for other in others)])
            original(self, others)

        monkeypatch.setattr(kind, "join", join)
    yield counts
    torch.set_num_threads(before)


def assert_same(ours: Sequence[Sequence[Hypothesis]], others: Sequence[Sequence[Hypothesis]]) -> None:
    """The same hypotheses; of two that float32 hardly tells apart either comes first."""
    for one, other in zip(ours, others, strict=True):
        assert [a.score for a in one] == pytest.approx([b.score for b in other], abs=1e-5)
        near = [sum(abs(a.score - b.score) < 1e-5 for b in one) for a in one]
        for a, b, count in zip(one, other, near, strict=True):
            if count == 1 and (a is not one[-1] or len(one) == 1):
                assert a.ids == b.ids
                assert a.piece_log_probs == pytest.approx(b.piece_log_probs, abs=1e-5)


@cache
def random_models(*seeds: int) -> list[Transformer]:
    return [random_model(seed, vocab=VOCAB, sharpness=2.0) for seed in seeds]


def settings_of(name: str) -> DecodingConfig:
    return decoding(**({"max_extra_tokens": 12} | SETTINGS[name]))


def at_once(
    models: Sequence[Transformer], asked: Sequence[SourceSentence], config: DecodingConfig
) -> list[list[Hypothesis]]:
    """What one search of all sources finds, which puts no stragglers aside."""
    return search(models, asked, config=config, nbest=config.num_candidates)


def in_batches(
    models: Sequence[Transformer], asked: Sequence[SourceSentence], config: DecodingConfig, *, batch_tokens: int
) -> list[list[Hypothesis]]:
    small = config.model_copy(update={"batch_tokens": batch_tokens * config.num_candidates})
    return BatchedSearch(models, device=CPU, cuda_search=None).search(asked, config=small, nbest=config.num_candidates)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("has_prefixes", [False, True])
def test_stragglers_are_found_as_if_searched_at_once(
    settings: str, has_prefixes: bool, joined: list[list[int]]
) -> None:
    seeds = (6, 2) if settings == "an ensemble" else (6,)
    asked = sources(6, has_prefixes=has_prefixes)
    models, config = random_models(*seeds), settings_of(settings)
    assert_same(in_batches(models, asked, config, batch_tokens=120), at_once(models, asked, config))
    assert joined


def test_a_vocabulary_too_small_for_the_beam_at_once_is_searched_batch_by_batch() -> None:
    model = random_model(5, vocab=6, sharpness=1.0)
    config = decoding(beam=4, max_extra_tokens=3)
    asked = [
        SourceSentence([4 + place % 2 for place in range(1 + number % 5)], (), str(number)) for number in range(30)
    ]
    assert_same(in_batches([model], asked, config, batch_tokens=30), at_once([model], asked, config))


@pytest.mark.parametrize("settings", ["greedy", "beam"])
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned"])
def test_stragglers_in_groups_of_slots_and_with_rare_checks(
    settings: str, positions: str, joined: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in bf16, where slots are seen in groups, and as on a GPU, where the host looks now and then."""
    config = settings_of(settings)
    models = [random_model(7, vocab=VOCAB, sharpness=2.0, positions=positions)]
    asked = sources(7)
    expected = at_once(models, asked, config)
    monkeypatch.setattr(decoder_cache, "_shape_multiple_of", lambda x: 16)
    monkeypatch.setattr(beam, "STEPS_BETWEEN_CHECKS", {"cpu": 2})
    monkeypatch.setattr(batching, "_STRAGGLER_SHARE", 0.5)
    assert_same(in_batches(models, asked, config, batch_tokens=120), expected)
    assert joined


def test_what_is_aside_keeps_to_the_budget(joined: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    original = DecoderCache.join

    def join(self: DecoderCache, others: Sequence[DecoderCache]) -> None:
        original(self, others)
        held.append(self.layers[0].cross_keys.shape[0] * self.layers[0].cross_keys.shape[2])

    monkeypatch.setattr(DecoderCache, "join", join)
    rows = [[5 + number % 20] * (40 if number < 10 else 2) for number in range(300)]
    model = random_model(8, vocab=VOCAB, sharpness=2.0)
    in_batches([model], [SourceSentence(row) for row in rows], decoding(beam=1), batch_tokens=200)
    assert held
    assert max(held) <= 200


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("greedy", RuntimeError("could not create a primitive")),
        ("beam", torch.OutOfMemoryError("CUDA out of memory")),
        ("samples", RuntimeError("could not create a primitive")),
    ],
)
@pytest.mark.parametrize("place", ["a step of several", "the end", "what was found", "after some were found"])
def test_nothing_is_lost_if_memory_runs_out_among_stragglers(
    settings: str,
    place: str,
    problem: Exception,
    joined: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    has_failed = False

    def fails_once(original: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal has_failed
            if not has_failed and when(*arguments, **options):
                has_failed = True
                raise problem
            return original(*arguments, **options)

        return run

    match place:
        case "a step of several":
            step = fails_once(Transformer.step, lambda model, ids, cache: len(cache.num_tokens.unique()) > 1)
            monkeypatch.setattr(Transformer, "step", step)
        case "the end":
            finish = fails_once(batching.Stragglers.finish, lambda aside: len(aside.sentences) > 3)
            monkeypatch.setattr(batching.Stragglers, "finish", finish)
        case "after some were found":
            # What a first search together found is in hand when a second one fails.
            in_hand: list[int] = []
            original_run, together = batching.Stragglers.run, batching.Stragglers._run_together

            def run(aside: batching.Stragglers, one: Any) -> dict[int, list[Hypothesis]]:
                in_hand.clear()
                return original_run(aside, one)

            def run_together(aside: batching.Stragglers, *, share: float) -> dict[int, list[Hypothesis]]:
                results = together(aside, share=share)
                in_hand.extend(results)
                return results

            monkeypatch.setattr(batching.Stragglers, "run", run)
            second = fails_once(run_together, lambda aside, share: share == 0 and bool(in_hand))
            monkeypatch.setattr(batching.Stragglers, "_run_together", second)
        case _:
            monkeypatch.setattr(
                HypothesisTree, "_hypotheses", fails_once(HypothesisTree._hypotheses, lambda *found: len(joined) > 1)
            )
    models, asked, config = random_models(6), sources(6), settings_of(settings)
    assert_same(in_batches(models, asked, config, batch_tokens=120), at_once(models, asked, config))
    assert has_failed
    assert "nothing is lost" in caplog.text


def test_after_an_error_no_thread_begins_another_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    original = begin_search

    def begin(models: Sequence[Transformer], chosen: Mapping[int, SourceSentence], **options: Any) -> Any:
        begun.append(len(chosen))
        if len(begun) == 2:
            raise ValueError("broken")
        return original(models, chosen, **options)

    monkeypatch.setattr(batching, "begin_search", begin)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="broken"):
            in_batches([random_model(9, vocab=VOCAB)], sources(9), decoding(beam=1), batch_tokens=30)
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

    def begin(models: Sequence[Transformer], sources: Mapping[int, SourceSentence], **options: Any) -> ActiveSearch:
        tried.append(len(sources))
        if len(sources) > 3:
            raise problem
        return begin_search(models, sources, **options)

    monkeypatch.setattr(batching, "begin_search", begin)
    config = decoding(beam=2, batch_tokens=40)
    rows = [[4 + number] for number in range(20)]
    model = random_model(0, vocab=30, sharpness=2.0)
    found = search_in_batches(model, rows, config=config)
    assert_same(found, [search([model], [SourceSentence(row)], config=config)[0] for row in rows])
    # Ten sentences are tried once, five once; after that no batch is so large.
    assert sorted(tried, reverse=True)[:3] == [10, 5, 2]
    told = "out of memory with {} sentences at once: batches are half as large from here on; nothing is lost"
    assert caplog.messages == [told.format(number) for number in (10, 5)]


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

    monkeypatch.setattr(batching, "begin_search", begin)
    config = decoding(beam=beam, batch_tokens=400)
    with pytest.raises(error, match=message) as told:
        search_in_batches(random_model(0, vocab=9), [[4], [5]], config=config)
    if isinstance(told.value, DeviceError):
        assert told.value.setting == "beam"
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
    shared = plan_for_threads(lengths, max_tokens=8000, threads=2)
    assert (len(whole), len(shared)) == (3, 4)
    assert sorted(index for batch in shared for index in batch) == list(range(900))
    costs = [len(batch) * (max(lengths[index] for index in batch) + 1) for batch in shared]
    assert max(costs) <= 1.25 * sum(costs) / len(costs)
    assert plan_for_threads(lengths, max_tokens=8000, threads=1) == whole
    assert [len(plan_for_threads(lengths, max_tokens=8000, threads=threads)) for threads in (3, 8)] == [3, 8]
    # Small batches would take more time for their steps than they give back.
    assert plan_for_threads([5] * 25, max_tokens=60, threads=2) == plan_batches([5] * 25, max_tokens=60)
    assert plan_for_threads([5, 5], max_tokens=1000, threads=2) == [[0, 1]]
