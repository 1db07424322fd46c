"""Batches across requests: what goes together, who waits, who is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from nmt_cli.serving.errors import RequestError
from nmt_cli.serving.metrics import ServerMetrics
from nmt_cli.serving.queue import BatchQueue, QueuedSentence
from nmt_cli.serving.settings import EngineSettings
from nmt_cli.serving.workers.messages import (
    AttentionJob,
    Job,
    NextWordsJob,
    SearchJob,
    encode_message,
    job_fields,
    job_from_fields,
)

T = TypeVar("T")
SEARCH = SearchJob(beam=2, nbest=1, length_penalty=0.6, max_extra_tokens=50, prefix="", alignments=False)
WIDE = SearchJob(beam=4, nbest=4, length_penalty=0.6, max_extra_tokens=50, prefix="das", alignments=True)


def batch_queue(*, max_tokens: int = 100, max_wait: float = 0.0, max_sentences: int = 50) -> BatchQueue:
    return BatchQueue(
        "en-de", max_tokens=max_tokens, max_wait_seconds=max_wait, max_sentences=max_sentences, metrics=ServerMetrics()
    )


def sentence(tokens: int, job: Job = SEARCH, *, client: str = "one") -> QueuedSentence:
    return QueuedSentence(f"{tokens}", tokens, job, client, asyncio.get_running_loop().create_future())


def run(test: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await asyncio.wait_for(test(), 10)

    return asyncio.run(main())


def test_a_batch_has_the_oldest_and_those_nearest_in_length_within_the_budget() -> None:
    async def test() -> list[list[int]]:
        queue = batch_queue(max_tokens=100)  # 50 a beam of 2
        queue.submit([sentence(tokens) for tokens in (10, 40, 11, 9, 12, 3, 10)])
        return [[one.tokens for one in await queue.take()] for _ in range(3)]

    taken = run(test)
    assert taken[0] == [10, 10, 11, 9]  # a fifth, of 12, would make 60
    assert taken[1] == [40]
    assert taken[2] == [12, 3]
    assert sum(len(batch) for batch in taken[:3]) == 7


def test_other_searches_wait_for_a_batch_of_their_own() -> None:
    async def test() -> list[list[Job]]:
        queue = batch_queue()
        attend = AttentionJob("das Meer")
        queue.submit([sentence(5), sentence(5, WIDE), sentence(5), sentence(5, attend), sentence(5, attend)])
        return [[one.job for one in await queue.take()] for _ in range(4)]

    attend = AttentionJob("das Meer")
    assert run(test) == [[SEARCH, SEARCH], [WIDE], [attend], [attend]]


def test_what_is_not_searched_together_is_in_batches_of_its_own() -> None:
    async def test() -> list[list[int]]:
        queue = batch_queue(max_tokens=1000)
        queue.narrow = 16
        queue.submit([sentence(tokens) for tokens in (15, 16, 3, 40, 15)])
        return [[one.tokens for one in await queue.take()] for _ in range(2)]

    assert run(test) == [[15, 15, 3], [16, 40]]


def test_a_sentence_longer_than_the_budget_goes_alone() -> None:
    async def test() -> list[int]:
        queue = batch_queue(max_tokens=10)
        queue.submit([sentence(500), sentence(500)])
        return [one.tokens for one in await queue.take()]

    assert run(test) == [500]


def test_a_batch_waits_for_others_but_not_longer_than_it_may() -> None:
    async def test() -> tuple[int, float, int, float]:
        loop = asyncio.get_running_loop()
        queue = batch_queue(max_wait=0.2)
        queue.done([sentence(5) for _ in range(5)], seconds=60)
        queue.submit([sentence(5)])
        loop.call_later(0.05, lambda: queue.submit([sentence(5)]))
        started = loop.time()
        first = len(await queue.take())
        waited = loop.time() - started
        queue.submit([sentence(5) for _ in range(10)])  # full: 10 x 5 x beam 2
        started = loop.time()
        return first, waited, len(await queue.take()), loop.time() - started

    first, waited, second, at_once = run(test)
    assert (first, second) == (2, 10)
    assert waited >= 0.19
    assert at_once < 0.1


def test_a_worker_waits_for_a_share_of_the_time_that_batches_take() -> None:
    async def test() -> tuple[float, int, float]:
        loop = asyncio.get_running_loop()
        queue = batch_queue(max_wait=5)
        queue.submit([sentence(5)])
        started = loop.time()
        await queue.take()  # nothing is known yet
        at_once = loop.time() - started
        queue.done([sentence(5) for _ in range(5)], seconds=1.6)
        queue.submit([sentence(5)])
        await asyncio.sleep(0.2)  # it has waited for longer than that, and those just answered come back now
        loop.call_later(0.05, lambda: queue.submit([sentence(5)]))
        started = loop.time()
        return at_once, len(await queue.take()), loop.time() - started

    at_once, together, waited = run(test)
    assert at_once < 0.1
    assert together == 2
    assert 0.19 <= waited < 1


@pytest.mark.parametrize("number", [1, 8])
def test_few_clients_are_not_waited_for_once_all_are_back(number: int) -> None:
    async def test() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        queue = batch_queue(max_wait=5)
        queue.done([sentence(5) for _ in range(number)], seconds=60)
        taking = asyncio.ensure_future(queue.take())
        for _ in range(number):
            await asyncio.sleep(0.01)
            assert not taking.done()
            queue.submit([sentence(5)])
        started = loop.time()
        return len(await taking), loop.time() - started

    together, waited = run(test)
    assert together == number
    assert waited < 1


def test_those_who_do_not_come_back_are_waited_for_once() -> None:
    async def test() -> list[float]:
        loop = asyncio.get_running_loop()
        queue = batch_queue(max_wait=0.2)
        queue.done([sentence(5) for _ in range(3)], seconds=60)
        seconds = []
        for _ in range(2):
            queue.submit([sentence(5)])
            started = loop.time()
            await queue.take()
            seconds.append(loop.time() - started)
        return seconds

    first, second = run(test)
    assert first >= 0.19
    assert second < 0.1


def test_nobody_comes_back_who_left_before_the_answer() -> None:
    async def test() -> float:
        loop = asyncio.get_running_loop()
        queue = batch_queue(max_wait=5)
        typed = sentence(5)
        queue.submit([typed])
        batch = await queue.take()
        typed.result.cancel()  # there is more text by now
        queue.submit([sentence(6)])
        queue.done(batch, seconds=60)
        started = loop.time()
        await queue.take()
        return loop.time() - started

    assert run(test) < 1


@pytest.mark.parametrize(("number", "shares"), [(8, [4, 4]), (1, [1]), (5, [3, 2]), (32, [16, 16]), (33, [17, 16])])
def test_free_workers_share_what_waits(number: int, shares: list[int]) -> None:
    async def test() -> list[int]:
        queue = batch_queue(max_tokens=1000, max_sentences=99)
        taking = [asyncio.ensure_future(queue.take()) for _ in range(2)]
        await asyncio.sleep(0)
        queue.submit([sentence(5) for _ in range(number)])
        done, waiting = await asyncio.wait(taking, timeout=0.1)
        for one in waiting:
            one.cancel()
        return sorted((len(one.result()) for one in done), reverse=True)

    assert run(test) == shares


@pytest.mark.parametrize(
    ("max_tokens", "lengths", "shares"),
    [(1000, [15] * 4 + [40] * 12, [[15] * 4, [40] * 12]), (80, [5] * 20, [[5] * 8, [5] * 8])],
    ids=["two kinds", "more than two batches"],
)
def test_free_workers_share_all_that_waits_not_a_batch_of_it(
    max_tokens: int, lengths: list[int], shares: list[list[int]]
) -> None:
    async def test() -> list[list[int]]:
        queue = batch_queue(max_tokens=max_tokens)
        queue.narrow = 16
        taking = [asyncio.ensure_future(queue.take()) for _ in range(2)]
        await asyncio.sleep(0)
        queue.submit([sentence(tokens) for tokens in lengths])
        return [[one.tokens for one in batch] for batch in await asyncio.gather(*taking)]

    assert run(test) == shares


def test_clients_take_turns_whoever_has_sent_more() -> None:
    async def test() -> list[str]:
        queue = batch_queue(max_tokens=10)  # one of 5 tokens a beam of 2
        queue.submit([sentence(5, client="many") for _ in range(5)])
        led = [(await queue.take())[0].client]
        queue.submit([sentence(5, client="few")])
        queue.submit([sentence(5, client="other") for _ in range(2)])
        return led + [(await queue.take())[0].client for _ in range(7)]

    assert run(test) == ["many", "many", "few", "other", "many", "other", "many", "many"]


def test_a_batch_has_the_sentence_whose_turn_it_is_whoever_is_of_its_length() -> None:
    async def test() -> list[list[str]]:
        queue = batch_queue(max_tokens=20)  # two
        queue.submit([sentence(5, client="many") for _ in range(4)])
        queue.submit([sentence(5, client="few")])
        return [[one.client for one in await queue.take()] for _ in range(2)]

    assert run(test) == [["many", "many"], ["few", "many"]]


def test_a_client_that_was_gone_takes_its_turn_as_one_that_came_now() -> None:
    async def test() -> list[str]:
        queue = batch_queue(max_tokens=10)  # one
        left = sentence(5, client="back")
        queue.submit([sentence(5, client="first"), left])
        await queue.take()
        left.result.cancel()
        for name in ("stayed", "back"):
            queue.submit([sentence(5, client=name)])
        return [(await queue.take())[0].client for _ in range(2)]

    assert run(test) == ["stayed", "back"]


def test_cancelled_sentences_are_dropped_and_make_room() -> None:
    async def test() -> list[int]:
        queue = batch_queue(max_sentences=2)
        gone, kept = sentence(4), sentence(5)
        queue.submit([gone, kept])
        gone.result.cancel()
        queue.submit([sentence(6)])
        return sorted(one.tokens for one in await queue.take())

    assert run(test) == [5, 6]


def test_a_full_queue_refuses_all_of_a_request_and_says_when_to_come_back() -> None:
    async def test() -> RequestError:
        queue = batch_queue(max_sentences=3)
        queue.submit([sentence(5), sentence(5)])
        with pytest.raises(RequestError) as error:
            queue.submit([sentence(5), sentence(5)])
        queue.submit([sentence(5)])
        return error.value

    refused = run(test)
    assert (refused.status, refused.message) == (503, "2 sentences are waiting already")
    assert refused.retry_after_seconds == 1
    assert refused.hint == "try again in 1 s"


def test_what_waits_is_reckoned_in_seconds_once_a_batch_was_full() -> None:
    async def test() -> list[float]:
        queue = batch_queue(max_tokens=20)  # 10 a beam of 2
        queue.submit([sentence(5) for _ in range(6)])
        found = []
        for size in (1, 2, 2):
            queue.done([sentence(5) for _ in range(size)], seconds=2.0 * size)
            found.append(queue.queued_seconds)
        # Long sentences take long, which says nothing against short ones.
        queue.done([sentence(50)], seconds=20.0)
        return [*found, queue.queued_seconds]

    assert run(test) == [0.0, 12.0, 12.0, 12.0]


def test_other_words_cost_as_much_as_all_their_searches() -> None:
    async def test() -> list[int]:
        jobs: list[Job] = [SEARCH, WIDE, NextWordsJob("", number=3, beam=4), AttentionJob("das Meer")]
        return [sentence(5, job).work for job in jobs]

    assert run(test) == [10, 20, 60, 5]


def test_what_goes_alone_does_not_wait_for_others() -> None:
    async def test() -> float:
        loop = asyncio.get_running_loop()
        queue = batch_queue(max_wait=5)
        queue.done([sentence(5)], seconds=60)
        queue.submit([sentence(5, AttentionJob("das Meer"))])
        started = loop.time()
        await queue.take()
        return loop.time() - started

    assert run(test) < 1


@pytest.mark.parametrize("num_steps", range(4))
def test_a_worker_is_retired_at_whatever_moment_a_sentence_comes(num_steps: int) -> None:
    async def test() -> bool:
        queue = batch_queue(max_wait=5)
        queue.done([sentence(5)], seconds=60)
        first, second = sentence(5), sentence(5)
        queue.submit([first])
        taking = asyncio.ensure_future(queue.take())
        await asyncio.sleep(0.01)
        queue.submit([second])
        for _ in range(num_steps):
            await asyncio.sleep(0)
        for one in (first, second):
            one.result.cancel()
        taking.cancel()
        done, _ = await asyncio.wait([taking], timeout=1)
        return bool(done)

    assert run(test)


def test_sentences_that_nobody_wants_are_not_counted_as_waiting() -> None:
    async def test() -> bytes:
        metrics = ServerMetrics()
        queue = BatchQueue("en-de", max_tokens=100, max_wait_seconds=0, max_sentences=9, metrics=metrics)
        gone = sentence(5)
        queue.submit([gone])
        gone.result.cancel()
        taking = asyncio.ensure_future(queue.take())
        await asyncio.sleep(0.01)
        taking.cancel()
        return metrics.render()

    assert b'nmt_queue_sentences{model="en-de"} 0.0' in run(test)


def test_sentences_of_a_lost_worker_go_first_and_alone() -> None:
    async def test() -> list[list[int]]:
        queue = batch_queue(max_wait=5)
        queue.submit([sentence(5), sentence(6)])
        queue.submit([sentence(7) for _ in range(6)])
        lost = await queue.take()
        queue.submit([sentence(8)])
        queue.give_back(lost)
        return [[one.tokens for one in await queue.take()] for _ in range(2)]

    assert run(test) == [[5], [6]]


def test_jobs_travel_as_json() -> None:
    for job in (SEARCH, AttentionJob("das Meer")):
        assert job_from_fields(job_fields(job)) == job
    assert encode_message({"a": "ü"}) == b'\x00\x00\x00\x0f{"a": "\\u00fc"}'
    assert EngineSettings("torch", "cpu", "fp32", 1).threads == 1
