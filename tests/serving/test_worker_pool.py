"""The worker pool: what becomes of a batch when its worker dies, and how the workers of a model change together."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from nmt_cli.artifacts.manifest import model_digest
from nmt_cli.errors import DeviceError, ModelError
from nmt_cli.serving import worker_pool
from nmt_cli.serving.models import ServedModel
from nmt_cli.serving.queue import QueuedSentence
from nmt_cli.serving.request_errors import RequestError
from nmt_cli.serving.router import ModelRouter
from nmt_cli.serving.server_metrics import ServerMetrics
from nmt_cli.serving.worker_model import AskedSentence, EngineSettings, SearchTask, SentenceTask
from nmt_cli.serving.worker_process import WorkerFailed, WorkerProcess
from tests.serving.servers import MODEL_SETTINGS, asked_sentence, save_model

pytestmark = pytest.mark.anyio
GREEDY = SearchTask(beam=1, nbest=1, length_penalty=0.6, max_extra_tokens=5, prefix="")
Saying = Callable[[Sequence[AskedSentence]], list[dict[str, Any]]]


class FakeWorker(WorkerProcess):
    """A worker without a process: it answers with the digest of its model, and lives until it is killed.

    `sayings` are what the next batches get in place of that. `prepare` is done before the model is read.
    """

    num_started = 0
    sayings: ClassVar[list[Saying]]
    prepare: ClassVar[Callable[[FakeWorker, Path], Awaitable[None]] | None] = None

    def __init__(self) -> None:
        self.exit_code = asyncio.get_running_loop().create_future()
        self.number = type(self).num_started = type(self).num_started + 1

    @classmethod
    async def start(cls, model: Path, engine: EngineSettings) -> WorkerProcess:
        worker = cls()
        if cls.prepare is not None:
            await cls.prepare(worker, model)
        worker.digest = model_digest(model)
        return worker

    async def ask(
        self, sentences: Sequence[AskedSentence], task: SentenceTask, *, timeout_seconds: float
    ) -> list[dict[str, Any]]:
        if self.exit_code.done():
            raise WorkerFailed("a worker process was killed (SIGKILL)")
        if self.sayings:
            return self.sayings.pop(0)(sentences)
        return [{"text": self.digest, "num_pieces": 1} for _ in sentences]

    def kill(self) -> None:
        if not self.exit_code.done():
            self.exit_code.set_result(-signal.SIGKILL)

    async def close(self) -> None:
        self.kill()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    """The kind of worker that the pools of a test start; failed starts are tried again soon."""

    class Fake(FakeWorker):
        sayings: ClassVar[list[Saying]] = []

    monkeypatch.setattr(worker_pool, "WorkerProcess", Fake)
    monkeypatch.setattr(worker_pool, "_MIN_PAUSE_SECONDS", 0.01)
    return Fake


@pytest.fixture
def may_answer(fake: type[FakeWorker], monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """An event for which workers wait before they answer `the slow sea`."""
    ask, event = fake.ask, asyncio.Event()

    async def wait(self: FakeWorker, sentences: Sequence[AskedSentence], task: SentenceTask, **options: Any) -> Any:
        if sentences == [asked_sentence("the slow sea")]:
            await event.wait()
        return await ask(self, sentences, task, **options)

    monkeypatch.setattr(fake, "ask", wait)
    return event


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model that a test may change."""
    return save_model(tmp_path / "model", "en", "de", seed=1)


@asynccontextmanager
async def serving(directory: Path, *, workers: int = 1) -> AsyncIterator[ServedModel]:
    """A model that is loaded, whose workers end with the block."""
    model = ServedModel(directory, replace(MODEL_SETTINGS, workers=workers), ServerMetrics())
    await model.load()
    try:
        yield model
    finally:
        await asyncio.wait_for(model.pool.close(), 60)


def submit(model: ServedModel, text: str = "the sea") -> asyncio.Future[dict[str, Any]]:
    result: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    model.queue.submit([QueuedSentence(asked_sentence(text), 2, GREEDY, "one", result)])
    return result


async def answers_of(model: ServedModel, *, number: int = 1) -> set[str]:
    """The workers' answers to so many sentences: the digests of their models."""
    return {one["text"] for one in await asyncio.wait_for(asyncio.gather(*(submit(model) for _ in range(number))), 60)}


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_true():
            await asyncio.sleep(0.001)


def only_worker(model: ServedModel) -> FakeWorker:
    worker = model.pool._slots[0].worker
    assert isinstance(worker, FakeWorker)
    return worker


def answer_too_few(sentences: Sequence[AskedSentence]) -> list[dict[str, Any]]:
    return []


def lose_worker(sentences: Sequence[AskedSentence]) -> list[dict[str, Any]]:
    raise WorkerFailed("a worker process was killed (SIGKILL)")


def answer_nonsense(sentences: Sequence[AskedSentence]) -> list[dict[str, Any]]:
    raise KeyError("answers")


@pytest.mark.parametrize("wrong", [lose_worker, answer_too_few, answer_nonsense])
async def test_a_sentence_that_loses_two_workers_is_refused(
    wrong: Saying, models: dict[str, Path], fake: type[FakeWorker], caplog: pytest.LogCaptureFixture
) -> None:
    fake.sayings += [wrong, wrong]
    async with serving(models["en-de"]) as model:
        with pytest.raises(RequestError, match="the model died twice on this sentence") as error:
            await asyncio.wait_for(submit(model, "secret"), 60)
        assert (error.value.status, error.value.code, error.value.retry_after_seconds) == (503, "failed", 1)
        assert await answers_of(model) == {model.digest}
        assert (model.pool.num_ready, fake.num_started) == (1, 3)
    assert caplog.text.count("a worker of en-de is replaced: ") == 2
    assert "secret" not in caplog.text


async def test_a_sentence_that_fits_no_memory_is_refused_without_the_others_of_its_batch(
    models: dict[str, Path], fake: type[FakeWorker]
) -> None:
    batches: list[list[str]] = []

    def answer_short_ones(sentences: Sequence[AskedSentence]) -> list[dict[str, Any]]:
        texts = [sentence.text for sentence in sentences]
        batches.append(texts)
        if "the long sea" in texts:
            raise DeviceError("the memory of cpu does not hold a sentence", hint="give a shorter sentence")
        return [{"text": text, "num_pieces": 1} for text in texts]

    fake.sayings += [answer_short_ones] * 4
    async with serving(models["en-de"]) as model:
        lines = ["the sea", "the long sea", "a house"]
        results = [submit(model, line) for line in lines]
        outcomes = await asyncio.wait_for(asyncio.gather(*results, return_exceptions=True), 60)
    assert batches == [lines, *([line] for line in lines)]
    first, refused, last = outcomes
    assert isinstance(first, dict)
    assert isinstance(last, dict)
    assert (first["text"], last["text"]) == ("the sea", "a house")
    assert isinstance(refused, RequestError)
    assert (refused.status, refused.code, fake.num_started) == (503, "failed", 1)


async def test_a_model_replaced_on_disk_never_works_beside_the_old_one(
    directory: Path, fake: type[FakeWorker], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving(directory, workers=2) as model:
        first = model.digest
        save_model(directory, "en", "de", seed=4, overwrite=True)
        assert await answers_of(model, number=9) == {first}
        fake.sayings.append(lose_worker)
        await answers_of(model, number=9)
        await until(lambda: "is loaded in its place" in caplog.text)
        assert model.digest == model_digest(directory) != first
        assert await answers_of(model, number=9) == {model.digest}
        assert model.pool.num_ready == 2
        # What cannot take its place does not: the other worker goes on.
        second = model.digest
        save_model(directory, "de", "en", seed=1, overwrite=True)
        fake.sayings.append(lose_worker)
        assert await answers_of(model, number=9) == {second}
        await until(lambda: f"{directory} now translates de-en; next try in" in caplog.text)
        assert await answers_of(model, number=9) == {second}
        assert model.pool.num_ready == 1
    assert f"{directory} is gone, or another model by now: all workers change" in caplog.messages


async def fail_as_the_second(worker: FakeWorker, model: Path) -> None:
    if worker.number == 2:
        raise KeyError("digest")


async def test_no_worker_is_left_if_another_could_not_start(models: dict[str, Path], fake: type[FakeWorker]) -> None:
    started: list[FakeWorker] = []

    async def note(worker: FakeWorker, model: Path) -> None:
        started.append(worker)
        await fail_as_the_second(worker, model)

    fake.prepare = note
    with pytest.raises(KeyError):
        async with serving(models["en-de"], workers=2):
            pass
    assert [worker.exit_code.done() for worker in started] == [True, False]


@pytest.mark.parametrize("is_asked_first", [True, False])
async def test_a_worker_dies_as_a_sentence_comes(
    models: dict[str, Path], fake: type[FakeWorker], is_asked_first: bool
) -> None:
    async with serving(models["en-de"]) as model:
        await asyncio.sleep(0.01)
        result = asyncio.get_running_loop().create_future()
        sentence = QueuedSentence(asked_sentence("the sea"), 2, GREEDY, "one", result)
        acts: list[Callable[[], None]] = [lambda: model.queue.submit([sentence]), only_worker(model).kill]
        for act in acts if is_asked_first else acts[::-1]:
            act()
        assert (await asyncio.wait_for(result, 60))["text"] == model.digest
        await until(lambda: fake.num_started == 2)
        assert await answers_of(model, number=9) == {model.digest}


@pytest.mark.parametrize("num_steps", range(6))
async def test_a_sentence_that_comes_as_the_model_changes_is_answered(
    directory: Path, fake: type[FakeWorker], num_steps: int
) -> None:
    async with serving(directory) as model:
        await asyncio.sleep(0.01)
        workers = await model.pool.start_workers(directory, model.digest)
        result = submit(model)
        for _ in range(num_steps):
            await asyncio.sleep(0)
        await model.pool.replace_workers(directory, workers)
        assert (await asyncio.wait_for(result, 60))["text"] == model.digest


async def test_the_new_model_is_the_one_of_new_requests_while_an_old_worker_ends_its_batch(
    directory: Path, fake: type[FakeWorker], may_answer: asyncio.Event
) -> None:
    async with serving(directory) as model:
        slow = submit(model, "the slow sea")
        await asyncio.sleep(0.01)
        save_model(directory, "en", "de", seed=4, decoding={"batch_tokens": 300}, overwrite=True)
        reloading = asyncio.ensure_future(model.reload())
        (new,) = await answers_of(model)
        found = (model.digest, model.queue.max_tokens, slow.done())
        may_answer.set()
        await reloading
        assert found == (new, 300, False)
        assert (await slow)["text"] != new


async def test_a_model_whose_load_is_given_up_waits_for_the_end_of_every_worker(
    models: dict[str, Path], fake: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    async def start(model: Path, engine: EngineSettings) -> WorkerProcess:
        worker = fake()
        try:
            await worker.exit_code
        finally:
            await asyncio.sleep(0.01 * worker.number)
            ended.append(worker.number)
        return worker

    monkeypatch.setattr(fake, "start", start)
    settings = replace(MODEL_SETTINGS, workers=2)
    router = ModelRouter([ServedModel(model, settings, ServerMetrics()) for model in models.values()])
    loading = asyncio.ensure_future(router.load())
    await until(lambda: fake.num_started == 4)
    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)
    assert (loading.cancelled(), sorted(ended)) == (True, [1, 2, 3, 4])


async def test_a_model_replaced_while_it_is_loaded_is_refused(directory: Path, fake: type[FakeWorker]) -> None:
    async def replace_model(worker: FakeWorker, model: Path) -> None:
        save_model(directory, "en", "de", seed=4, overwrite=True)

    fake.prepare = replace_model
    model = ServedModel(directory, MODEL_SETTINGS, ServerMetrics())
    with pytest.raises(ModelError, match="the model was replaced while it was loaded"):
        await model.load()
    assert model.pool.num_ready == 0


async def test_a_model_that_cannot_be_loaded_again_is_told_at_once(
    directory: Path, fake: type[FakeWorker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_pool, "_MIN_PAUSE_SECONDS", 0.05)
    fake.sayings.append(lose_worker)
    async with serving(directory) as model:
        elsewhere = directory.rename(directory.with_name("elsewhere"))
        with pytest.raises(RequestError, match="the model en-de is not loaded now") as error:
            await answers_of(model)
        assert (error.value.status, error.value.code, error.value.retry_after_seconds) == (503, "not_loaded", 10)
        elsewhere.rename(directory)
        await until(lambda: "a new worker serves en-de" in caplog.text)
        assert model.pool.refusal is None
        assert await answers_of(model) == {model.digest}


async def test_whatever_workers_do_when_the_server_ends_is_given_up(
    models: dict[str, Path], fake: type[FakeWorker], may_answer: asyncio.Event
) -> None:
    async with serving(models["en-de"]) as model:
        submit(model, "the slow sea")
        await asyncio.sleep(0.01)
