"""The worker pool: what becomes of a batch when its worker dies, and how the workers of a model change together."""

from __future__ import annotations

import asyncio
import resource
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from nmt_cli.artifacts.manifest import RUN_FILE, model_digest
from nmt_cli.errors import DeviceError, ModelError
from nmt_cli.serving import worker_pool
from nmt_cli.serving.errors import RequestError
from nmt_cli.serving.metrics import ServerMetrics
from nmt_cli.serving.models import ModelRouter, ServedModel
from nmt_cli.serving.queue import QueuedSentence
from nmt_cli.serving.worker_model import EngineSettings, SearchTask, SentenceTask
from nmt_cli.serving.worker_process import WorkerFailed, WorkerProcess
from tests.serving.servers import MODEL_SETTINGS, save_model

pytestmark = pytest.mark.anyio
GREEDY = SearchTask(beam=1, nbest=1, length_penalty=0.6, max_extra_tokens=5, prefix="", alignments=False)
Saying = Callable[[Sequence[str]], list[dict[str, Any]]]


class FakeWorker(WorkerProcess):
    """A worker without a process: it answers with the digest of its model, and lives until its `death`.

    `sayings` are what the next batches get in place of that. `prepare` is done before the model is read.
    """

    num_started = 0
    sayings: ClassVar[list[Saying]]
    prepare: ClassVar[Callable[[FakeWorker, Path], Awaitable[None]] | None] = None

    def __init__(self) -> None:
        self.death = asyncio.Event()
        self.number = type(self).num_started = type(self).num_started + 1

    @classmethod
    async def start(cls, model: Path, engine: EngineSettings) -> WorkerProcess:
        worker = cls()
        if cls.prepare is not None:
            await cls.prepare(worker, model)
        worker.digest, worker.min_wide_tokens = model_digest(model), 16
        return worker

    async def ask(self, lines: Sequence[str], task: SentenceTask, *, timeout_seconds: float) -> list[dict[str, Any]]:
        if self.death.is_set():
            raise WorkerFailed(await self.ended())
        if self.sayings:
            return self.sayings.pop(0)(lines)
        return [{"text": self.digest, "num_pieces": 1} for _ in lines]

    async def ended(self) -> str:
        await self.death.wait()
        return "a worker process was killed (SIGKILL)"

    def kill(self) -> None:
        self.death.set()

    async def close(self) -> None:
        self.death.set()


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

    async def wait(self: FakeWorker, lines: Sequence[str], task: SentenceTask, **options: Any) -> Any:
        if lines == ["the slow sea"]:
            await event.wait()
        return await ask(self, lines, task, **options)

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
    model.queue.submit([QueuedSentence(text, 2, GREEDY, "one", result)])
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


def answer_too_few(lines: Sequence[str]) -> list[dict[str, Any]]:
    return []


def lose_worker(lines: Sequence[str]) -> list[dict[str, Any]]:
    raise WorkerFailed("a worker process was killed (SIGKILL)")


def answer_nonsense(lines: Sequence[str]) -> list[dict[str, Any]]:
    raise KeyError("answers")


def tell_that_the_model_is_gone(lines: Sequence[str]) -> list[dict[str, Any]]:
    raise ModelError("the model was replaced, and this one is gone", hint="have it loaded again")


@pytest.mark.parametrize("wrong", [answer_too_few, answer_nonsense])
async def test_a_mistake_with_a_batch_is_told_and_the_next_batch_is_done(
    wrong: Saying, models: dict[str, Path], fake: type[FakeWorker], caplog: pytest.LogCaptureFixture
) -> None:
    fake.sayings.append(wrong)
    async with serving(models["en-de"]) as model:
        assert model.queue.min_wide_tokens == 16
        with pytest.raises(RequestError, match="the server raised an unexpected error with this text") as error:
            await asyncio.wait_for(submit(model, "secret"), 60)
        assert (error.value.status, error.value.code, error.value.retry_after_seconds) == (503, "failed", 1)
        assert error.value.hint == "leave the text out; the server's log says more"
        assert await answers_of(model) == {model.digest}
        assert (model.pool.num_ready, fake.num_started) == (1, 2)
    assert "an unexpected error with a batch of en-de; its worker is replaced" in caplog.messages
    assert "secret" not in caplog.text


async def test_a_sentence_that_loses_two_workers_is_refused(
    models: dict[str, Path], fake: type[FakeWorker], caplog: pytest.LogCaptureFixture
) -> None:
    fake.sayings += [lose_worker, lose_worker]
    async with serving(models["en-de"]) as model:
        with pytest.raises(RequestError, match="the model died twice on this sentence") as error:
            await answers_of(model)
        assert (error.value.status, error.value.hint) == (503, "leave it out; the server's log says more")
        assert await answers_of(model) == {model.digest}
    assert caplog.messages.count("a worker of en-de is replaced: a worker process was killed (SIGKILL)") == 2


async def test_a_sentence_that_fits_no_memory_is_refused_without_the_others_of_its_batch(
    models: dict[str, Path], fake: type[FakeWorker]
) -> None:
    batches: list[list[str]] = []

    def answer_short_ones(lines: Sequence[str]) -> list[dict[str, Any]]:
        batches.append(list(lines))
        if "the long sea" in lines:
            raise DeviceError("the memory of cpu does not hold a sentence", hint="give a shorter sentence")
        return [{"text": line, "num_pieces": 1} for line in lines]

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


async def test_a_model_that_is_gone_is_not_waited_for(models: dict[str, Path], fake: type[FakeWorker]) -> None:
    fake.sayings.append(tell_that_the_model_is_gone)
    async with serving(models["en-de"]) as model:
        with pytest.raises(RequestError, match="this one is gone") as error:
            await answers_of(model)
        assert (error.value.status, error.value.retry_after_seconds) == (503, None)


async def test_a_reload_takes_what_it_read_before_the_workers_changed(directory: Path, fake: type[FakeWorker]) -> None:
    written = directory / "config.yaml"

    async def remove_config(worker: FakeWorker, model: Path) -> None:
        written.unlink(missing_ok=True)

    async with serving(directory) as model:
        assert model.queue.max_tokens == 400
        save_model(directory, "en", "de", decoding={"batch_tokens": 300}, overwrite=True)
        fake.prepare = remove_config
        await model.reload()
        assert (model.pool.num_ready, model.queue.max_tokens) == (1, 300)


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


async def test_a_run_whose_averaged_model_is_gone_is_served_by_its_other_one(
    tmp_path: Path, fake: type[FakeWorker], caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / RUN_FILE).write_text("{}")
    old = save_model(run / "averaged", "en", "de", seed=1)
    caplog.set_level("INFO")
    fake.sayings.append(lose_worker)
    async with serving(run) as model:
        assert model.directory == old
        new = save_model(run / "model", "en", "de", seed=4)
        shutil.rmtree(old)
        assert await answers_of(model) == {model_digest(new)}
        await until(lambda: "is loaded in its place" in caplog.text)
        assert (model.directory, model.pool.num_ready) == (new, 1)


async def fail_as_the_second(worker: FakeWorker, model: Path) -> None:
    if worker.number == 2:
        raise KeyError("digest")


async def test_a_mistake_while_a_worker_is_replaced_is_told_and_tried_again(
    models: dict[str, Path], fake: type[FakeWorker], caplog: pytest.LogCaptureFixture
) -> None:
    fake.prepare = fail_as_the_second
    fake.sayings.append(lose_worker)
    async with serving(models["en-de"]) as model:
        with pytest.raises(RequestError, match="the model en-de is not loaded now"):
            await answers_of(model)
        await until(lambda: "a new worker serves en-de" in caplog.text)
        assert await answers_of(model) == {model.digest}
    (record,) = [one for one in caplog.records if one.message.startswith("no new worker for")]
    assert record.message.endswith("'digest'; next try in 0.0 s")
    assert record.exc_info is not None


async def test_a_worker_that_is_late_with_its_batch_is_not_counted_as_ready(
    directory: Path, may_answer: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, loop = ServerMetrics(), asyncio.get_running_loop()
    model = ServedModel(directory, replace(MODEL_SETTINGS, batch_timeout_seconds=600), metrics)
    await model.load()
    result = submit(model, "the slow sea")
    await asyncio.sleep(0.05)
    now = loop.time()
    with monkeypatch.context() as clock:
        clock.setattr(loop, "time", lambda: now + 200)
        assert ModelRouter([model]).are_ready
        clock.setattr(loop, "time", lambda: now + 301)
        assert not ModelRouter([model]).are_ready
        assert 'nmt_workers_ready{model="en-de"} 0.0' in metrics.render().decode()
    may_answer.set()
    await result
    assert ModelRouter([model]).are_ready
    assert 'nmt_workers_ready{model="en-de"} 1.0' in metrics.render().decode()
    await model.pool.close()


async def test_a_lack_of_open_files_is_not_taken_for_a_missing_model(
    models: dict[str, Path], fake: type[FakeWorker], caplog: pytest.LogCaptureFixture
) -> None:
    fake.sayings.append(lose_worker)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(models["en-de"]) as model:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            with pytest.raises(RequestError, match="the model en-de is not loaded now"):
                await answers_of(model)
            assert "Too many open files" in caplog.text
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await until(lambda: "a new worker serves en-de" in caplog.text)
        assert await answers_of(model) == {model.digest}
    assert "is gone, or another model by now" not in caplog.text


async def test_no_worker_is_left_if_another_could_not_start(models: dict[str, Path], fake: type[FakeWorker]) -> None:
    started: list[FakeWorker] = []

    async def note(worker: FakeWorker, model: Path) -> None:
        started.append(worker)
        await fail_as_the_second(worker, model)

    fake.prepare = note
    with pytest.raises(KeyError):
        async with serving(models["en-de"], workers=2):
            pass
    assert [worker.death.is_set() for worker in started] == [True, False]


@pytest.mark.parametrize("is_asked_first", [True, False])
async def test_a_worker_dies_as_a_sentence_comes(
    models: dict[str, Path], fake: type[FakeWorker], is_asked_first: bool
) -> None:
    async with serving(models["en-de"]) as model:
        await asyncio.sleep(0.01)
        result = asyncio.get_running_loop().create_future()
        sentence = QueuedSentence("the sea", 2, GREEDY, "one", result)
        acts: list[Callable[[], None]] = [lambda: model.queue.submit([sentence]), only_worker(model).death.set]
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


async def test_a_dead_worker_is_not_counted_and_is_waited_for_while_it_is_cleared(
    models: dict[str, Path], fake: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_clearing, may_end, num_cleared = asyncio.Event(), asyncio.Event(), 0

    async def close_slowly(self: FakeWorker) -> None:
        nonlocal num_cleared
        is_clearing.set()
        await may_end.wait()
        num_cleared += 1

    async with serving(models["en-de"]) as model:
        monkeypatch.setattr(fake, "close", close_slowly)
        assert model.pool.num_ready == 1
        only_worker(model).death.set()
        await is_clearing.wait()
        assert model.pool.num_ready == model.pool.num_answering == 0
        ending = asyncio.ensure_future(model.pool.close())
        await asyncio.sleep(0.01)
        assert not ending.done()
        may_end.set()
        await ending
    assert (fake.num_started, num_cleared) == (1, 1)


async def test_a_worker_that_dies_as_it_answers_is_replaced_before_anybody_asks(
    models: dict[str, Path], fake: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = fake.ask

    async def die(self: FakeWorker, lines: Sequence[str], task: SentenceTask, **options: Any) -> list[dict[str, Any]]:
        answers = await ask(self, lines, task, **options)
        self.death.set()
        await asyncio.sleep(0.01)  # the server learns of it before it reads the answer
        return answers

    monkeypatch.setattr(fake, "ask", die)
    async with serving(models["en-de"]) as model:
        assert await answers_of(model) == {model.digest}
        await until(lambda: fake.num_started == 2)


async def test_workers_that_die_before_they_see_a_batch_are_replaced_after_pauses_that_grow(
    models: dict[str, Path], fake: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die_young(worker: FakeWorker, model: Path) -> None:
        if worker.number < 9:
            worker.death.set()

    fake.prepare = die_young
    monkeypatch.setattr(worker_pool, "_MAX_PAUSE_SECONDS", 0.05)
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with serving(models["en-de"]) as model:
        await until(lambda: fake.num_started == 9)
        assert loop.time() - started >= 0.01 + 0.02 + 0.04 + 4 * 0.05
        assert await answers_of(model) == {model.digest}


async def test_a_server_that_ends_while_the_model_changes_answers_first(
    directory: Path, fake: type[FakeWorker], may_answer: asyncio.Event
) -> None:
    async with serving(directory, workers=2) as model:
        first = model.digest
        slow = submit(model, "the slow sea")
        await asyncio.sleep(0.01)
        save_model(directory, "en", "de", seed=4, overwrite=True)
        fake.sayings.append(lose_worker)
        # The lost worker's sentence is done by those that come, while the old one is still at its own.
        assert await answers_of(model) != {first}
        ending = asyncio.ensure_future(model.pool.close())
        await asyncio.sleep(0.05)
        assert not ending.done()
        may_answer.set()
        assert (await asyncio.wait_for(slow, 60))["text"] == first
        await asyncio.wait_for(ending, 60)


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


async def test_workers_that_start_while_the_pool_closes_are_closed(
    directory: Path, fake: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_start, may_close, started = asyncio.Event(), asyncio.Event(), []

    async def start_late(worker: FakeWorker, model: Path) -> None:
        started.append(worker)
        if worker.number > 1:
            await may_start.wait()

    async def close_late(self: FakeWorker) -> None:
        self.death.set()
        await may_close.wait()

    fake.prepare = start_late
    monkeypatch.setattr(fake, "close", close_late)
    async with serving(directory) as model:
        save_model(directory, "en", "de", seed=4, overwrite=True)
        reloading = asyncio.ensure_future(model.reload())
        await until(lambda: len(started) == 2)
        closing = asyncio.ensure_future(model.pool.close())
        await asyncio.sleep(0.01)
        may_start.set()
        await asyncio.sleep(0.01)
        may_close.set()
        await closing
        await asyncio.gather(reloading, return_exceptions=True)
        alive = [worker.number for worker in started if not worker.death.is_set()]
        for worker in started:
            worker.death.set()
        assert (alive, reloading.cancelled(), model.pool.num_ready) == ([], True, 0)


async def test_a_model_whose_load_is_given_up_waits_for_the_end_of_every_worker(
    models: dict[str, Path], fake: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    async def start(model: Path, engine: EngineSettings) -> WorkerProcess:
        worker = fake()
        try:
            await worker.death.wait()
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
    with pytest.raises(ModelError, match="the model was replaced while it was loaded") as error:
        await model.load()
    assert error.value.hint == "load it again, now that all of it is there"
    assert model.pool.num_ready == 0
    await model.reload()
    assert (model.pool.num_ready, model.digest) == (1, model_digest(directory))
    await model.pool.close()


async def test_a_model_that_cannot_be_loaded_again_is_told_at_once(
    directory: Path, fake: type[FakeWorker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_pool, "_MIN_PAUSE_SECONDS", 0.05)
    fake.sayings.append(lose_worker)
    async with serving(directory) as model:
        elsewhere = directory.rename(directory.with_name("elsewhere"))
        with pytest.raises(RequestError, match="the model en-de is not loaded now") as error:
            await answers_of(model)
        assert (error.value.status, error.value.code, error.value.retry_after_seconds) == (503, "not_loaded", 1)
        assert error.value.hint == "try again in 1 s; the server's log says why"
        assert model.pool.refusal is not None
        assert model.pool.refusal.message == error.value.message
        elsewhere.rename(directory)
        await until(lambda: "a new worker serves en-de" in caplog.text)
        assert model.pool.refusal is None
        assert await answers_of(model) == {model.digest}


async def test_the_first_replacement_is_waited_for(models: dict[str, Path], fake: type[FakeWorker]) -> None:
    async def take_long(worker: FakeWorker, model: Path) -> None:
        if worker.number > 1:
            await asyncio.sleep(0.1)

    fake.prepare = take_long
    async with serving(models["en-de"]) as model:
        only_worker(model).death.set()
        await asyncio.sleep(0.01)
        assert (model.pool.num_ready, model.pool.refusal) == (0, None)
        assert await answers_of(model) == {model.digest}


async def test_whatever_workers_do_when_the_server_ends_is_given_up(
    models: dict[str, Path], fake: type[FakeWorker], may_answer: asyncio.Event
) -> None:
    async with serving(models["en-de"]) as model:
        submit(model, "the slow sea")
        await asyncio.sleep(0.01)
