"""Batches across requests: what goes together, who waits, who is dropped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from nmt_cli.serving.queue import BatchQueue, QueuedSentence
from nmt_cli.serving.request_errors import RequestError
from nmt_cli.serving.server_metrics import ServerMetrics
from nmt_cli.serving.worker_model import AttentionTask, SearchTask, SentenceTask
from tests.serving.servers import asked_sentence

pytestmark = pytest.mark.anyio
SEARCH = SearchTask(beam=2, nbest=1, length_penalty=0.6, max_extra_tokens=50, prefix="")
WIDE = SearchTask(beam=4, nbest=4, length_penalty=0.6, max_extra_tokens=50, prefix="das")
ATTENTION = AttentionTask("das Meer")


def batch_queue(*, max_tokens: int = 100, max_wait: float = 0.0, max_sentences: int = 50) -> BatchQueue:
    return BatchQueue(
        "en-de", max_tokens=max_tokens, max_wait_seconds=max_wait, max_sentences=max_sentences, metrics=ServerMetrics()
    )


def sentence(tokens: int, task: SentenceTask = SEARCH, *, client: str = "one") -> QueuedSentence:
    return QueuedSentence(asked_sentence(f"{tokens}"), tokens, task, client, asyncio.get_running_loop().create_future())


def sentences(number: int, *, client: str = "one") -> list[QueuedSentence]:
    return [sentence(5, client=client) for _ in range(number)]


async def take(queue: BatchQueue, number: int) -> list[list[QueuedSentence]]:
    """The next batches, each taken after the one before."""
    return [await asyncio.wait_for(queue.take(), 60) for _ in range(number)]


def tokens_of(batches: Sequence[Sequence[QueuedSentence]]) -> list[list[int]]:
    return [[one.tokens for one in batch] for batch in batches]


async def steps(number: int = 9) -> None:
    """Let every other task go on, without time for any to wait in."""
    for _ in range(number):
        await asyncio.sleep(0)


async def at_once(batch: Awaitable[list[QueuedSentence]]) -> list[QueuedSentence]:
    """A batch that no time is waited for."""
    taking = asyncio.ensure_future(batch)
    await steps()
    assert taking.done()
    return await taking


async def after(seconds: float, batch: Awaitable[list[QueuedSentence]]) -> list[QueuedSentence]:
    """A batch that is waited for so long at least, and comes."""
    started = time.monotonic()
    taken = await asyncio.wait_for(batch, 60)
    assert time.monotonic() - started >= seconds
    return taken


def later(act: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(0.05, act)


async def test_sentences_of_several_directions_share_a_batch() -> None:
    queue = batch_queue()
    queue.submit([replace(sentence(5), sentence=asked_sentence("5", "en", target)) for target in ("de", "fr", "de")])
    (batch,) = await take(queue, 1)
    assert [one.sentence.pair[1] for one in batch] == ["de", "fr", "de"]


@pytest.mark.parametrize(
    ("max_tokens", "lengths", "batches"),
    [
        # 50 a beam of 2: the oldest and the nearest in length; a fifth, of 12, would make 60.
        pytest.param(100, (10, 40, 11, 9, 12, 3, 10), [[10, 10, 11, 9], [40], [12, 3]], id="nearest in length"),
        pytest.param(10, (500, 500), [[500], [500]], id="longer than the budget"),
    ],
)
async def test_a_batch_has_the_oldest_and_its_like_within_the_budget(
    max_tokens: int, lengths: Sequence[int], batches: list[list[int]]
) -> None:
    queue = batch_queue(max_tokens=max_tokens)
    queue.submit([sentence(tokens) for tokens in lengths])
    assert tokens_of(await take(queue, len(batches))) == batches


async def test_other_searches_wait_for_a_batch_of_their_own() -> None:
    queue = batch_queue()
    queue.submit([sentence(5, task) for task in (SEARCH, WIDE, SEARCH, ATTENTION, ATTENTION)])
    batches = [[one.task for one in batch] for batch in await take(queue, 4)]
    assert batches == [[SEARCH, SEARCH], [WIDE], [ATTENTION], [ATTENTION]]


async def test_a_batch_waits_for_others_but_not_longer_than_it_may() -> None:
    queue = batch_queue(max_wait=0.2)
    queue.learn_speed(sentences(5), seconds=6000)
    queue.submit(sentences(1))
    later(lambda: queue.submit(sentences(1)))
    assert len(await after(0.19, queue.take())) == 2
    queue.submit(sentences(10))  # full: 10 x 5 x beam 2
    assert len(await at_once(queue.take())) == 10


@pytest.mark.parametrize("number", [1, 8])
async def test_few_clients_are_not_waited_for_once_all_are_back(number: int) -> None:
    queue = batch_queue(max_wait=600)
    queue.learn_speed(sentences(number), seconds=6000)
    taking = asyncio.ensure_future(queue.take())
    for _ in range(number):
        await asyncio.sleep(0.01)
        assert not taking.done()
        queue.submit(sentences(1))
    assert len(await at_once(taking)) == number


@pytest.mark.parametrize(
    ("max_tokens", "lengths", "shares"),
    [
        (1000, [5] * 8, [[5] * 4, [5] * 4]),
        (1000, [5], [[5]]),
        (1000, [5] * 33, [[5] * 17, [5] * 16]),
        pytest.param(80, [5] * 20, [[5] * 8, [5] * 8], id="more than two batches"),
    ],
)
async def test_free_workers_share_all_that_waits(max_tokens: int, lengths: list[int], shares: list[list[int]]) -> None:
    queue = batch_queue(max_tokens=max_tokens)
    taking = [asyncio.ensure_future(queue.take()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.submit([sentence(tokens) for tokens in lengths])
    await steps()
    assert tokens_of([one.result() for one in taking if one.done()]) == shares
    for one in taking:
        one.cancel()


@pytest.mark.parametrize(
    ("budget", "arrivals", "turns"),
    [
        pytest.param(
            10,
            [["many"] * 5, ["few", "other", "other"]],
            "many many few other many other many many",
            id="one in a batch",
        ),
        pytest.param(20, [["many"] * 4 + ["few"]], "many+many few+many", id="two in a batch"),
    ],
)
async def test_clients_take_turns_whoever_has_sent_more(budget: int, arrivals: list[list[str]], turns: str) -> None:
    queue = batch_queue(max_tokens=budget)  # of 10: one sentence of 5 tokens with a beam of 2
    batches: list[list[QueuedSentence]] = []
    for place, clients in enumerate(arrivals):
        if place:
            batches += await take(queue, 1)
        queue.submit([sentence(5, client=client) for client in clients])
    batches += await take(queue, len(turns.split()) - len(batches))
    assert " ".join("+".join(one.client for one in batch) for batch in batches) == turns


async def test_cancelled_sentences_are_dropped_and_make_room() -> None:
    queue = batch_queue(max_sentences=2)
    gone, kept = sentence(4), sentence(5)
    queue.submit([gone, kept])
    gone.result.cancel()
    queue.submit([sentence(6)])
    assert sorted(one.tokens for one in await queue.take()) == [5, 6]


async def test_a_full_queue_refuses_all_of_a_request_and_says_when_to_come_back() -> None:
    queue = batch_queue(max_sentences=3)
    queue.submit(sentences(2))
    with pytest.raises(RequestError, match="2 sentences are waiting already") as error:
        queue.submit(sentences(2))
    queue.submit(sentences(1))
    refused = error.value
    assert (refused.status, refused.retry_after_seconds, refused.hint) == (503, 1, "try again in 1 s")


async def test_what_waits_is_reckoned_in_seconds_once_a_batch_was_full() -> None:
    queue = batch_queue(max_tokens=20)  # 10 a beam of 2
    queue.submit(sentences(6))
    for size, seconds in ((1, 0.0), (2, 12.0), (2, 12.0)):
        queue.learn_speed(sentences(size), seconds=2.0 * size)
        assert queue.queued_seconds == seconds
    # Long sentences take long, which says nothing against short ones.
    queue.learn_speed([sentence(50)], seconds=20.0)
    assert queue.queued_seconds == 12.0


async def test_sentences_of_a_lost_worker_go_first_and_alone() -> None:
    queue = batch_queue(max_wait=5)
    queue.submit([sentence(5), sentence(6)])
    queue.submit([sentence(7) for _ in range(6)])
    lost = await queue.take()
    queue.submit([sentence(8)])
    queue.give_back(lost)
    assert tokens_of(await take(queue, 2)) == [[5], [6]]
