"""What becomes of a batch when the server itself is wrong, with a worker that needs no process."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.bundle.kinds import RUN_FILE
from nmt_cli.errors import ModelError
from nmt_cli.serving import crew, process
from nmt_cli.serving.batcher import Sentence
from nmt_cli.serving.identity import digest_of
from nmt_cli.serving.jobs import Engine, Job, Search
from nmt_cli.serving.limits import Limits
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.models import ServedModel
from nmt_cli.serving.process import WorkerLost, WorkerProcess
from nmt_cli.serving.refusals import Refused
from nmt_cli.serving.translation import Asker, Translation
from tests.serving.models import OPERATION, save_model

SEARCH = Search(beam=1, nbest=1, length_penalty=0.6, max_extra_tokens=5, prefix="", alignments=False)


class Worker(WorkerProcess):
    """Says what it is told to, one thing after another."""

    sayings: list[Callable[[Sequence[str]], list[dict[str, Any]]]]
    num_started = 0

    @classmethod
    async def start(cls, model: Path, engine: Engine) -> WorkerProcess:
        cls.num_started += 1
        worker = cls.__new__(cls)
        worker.digest = digest_of(model)
        worker.narrow = 0
        return worker

    async def ask(self, lines: Sequence[str], job: Job, *, timeout_seconds: float) -> list[dict[str, Any]]:
        return self.sayings.pop(0)(lines)

    async def ended(self) -> str:
        await asyncio.Event().wait()
        return "never"

    def kill(self) -> None:
        pass

    async def close(self) -> None:
        pass


def well(lines: Sequence[str]) -> list[dict[str, Any]]:
    return [{"text": line, "num_pieces": 1} for line in lines]


def too_few(lines: Sequence[str]) -> list[dict[str, Any]]:
    return []


def lost(lines: Sequence[str]) -> list[dict[str, Any]]:
    raise WorkerLost("it was killed by signal 9")


def nonsense(lines: Sequence[str]) -> list[dict[str, Any]]:
    raise KeyError("answers")


@pytest.mark.parametrize("wrong", [too_few, nonsense])
def test_a_mistake_with_a_batch_is_told_and_the_next_batch_is_done(
    wrong: Callable[[Sequence[str]], list[dict[str, Any]]],
    models: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(crew, "WorkerProcess", Worker)
    monkeypatch.setattr(Worker, "sayings", [wrong, well], raising=False)
    monkeypatch.setattr(Worker, "num_started", 0)

    async def run() -> None:
        served = ServedModel(models["en-de"], OPERATION, Metrics())
        batcher, posts = served.batcher, served.crew
        await served.load()
        first = Sentence("secret", 2, SEARCH, "one", asyncio.Future())
        batcher.submit([first])
        with pytest.raises(Refused, match="the server made a mistake with this text") as error:
            await asyncio.wait_for(first.result, 5)
        assert (error.value.status, error.value.code, error.value.retry_after_seconds) == (503, "failed", 1)
        assert error.value.hint == "leave the text out; the server's log says more"
        second = Sentence("the sea", 2, SEARCH, "one", asyncio.Future())
        batcher.submit([second])
        assert (await asyncio.wait_for(second.result, 5))["text"] == "the sea"
        assert (posts.num_ready, Worker.num_started) == (1, 2)
        await posts.close()

    asyncio.run(run())
    assert "a mistake with a batch of en-de; its worker is replaced" in caplog.messages
    assert "secret" not in caplog.text


def test_a_swap_takes_what_it_read_before_the_workers_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = save_model(tmp_path / "model", "en", "de")
    written = directory / "config.yaml"

    class LastReader(Worker):
        @classmethod
        async def start(cls, model: Path, engine: Engine) -> WorkerProcess:
            written.unlink()
            return await super().start(model, engine)

    monkeypatch.setattr(crew, "WorkerProcess", LastReader)

    async def run() -> None:
        model = ServedModel(directory, OPERATION, Metrics())
        assert model.batcher.max_tokens == 400
        written.write_text(written.read_text().replace("batch_tokens: 400", "batch_tokens: 300"))
        await model.swap()
        assert (model.crew.num_ready, model.batcher.max_tokens) == (1, 300)
        await model.crew.close()

    asyncio.run(run())


async def answers_of(model: ServedModel, *, number: int) -> set[str]:
    """What the workers make of so many sentences."""
    sentences = [
        Sentence("the sea", 2, SEARCH, "one", asyncio.get_running_loop().create_future()) for _ in range(number)
    ]
    model.batcher.submit(sentences)
    return {one["text"] for one in await asyncio.wait_for(asyncio.gather(*(one.result for one in sentences)), 5)}


class Teller(Worker):
    """Says which model it has, after what it is told to."""

    async def ask(self, lines: Sequence[str], job: Job, *, timeout_seconds: float) -> list[dict[str, Any]]:
        if self.sayings:
            return await super().ask(lines, job, timeout_seconds=timeout_seconds)
        return [{"text": self.digest, "num_pieces": 1} for _ in lines]


async def until(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """Wait for a text in the log."""
    async with asyncio.timeout(5):
        while text not in caplog.text:
            await asyncio.sleep(0.01)


def test_a_model_replaced_on_disk_never_works_beside_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = save_model(tmp_path / "model", "en", "de", seed=1)
    caplog.set_level("INFO")
    monkeypatch.setattr(crew, "WorkerProcess", Teller)
    monkeypatch.setattr(Worker, "sayings", [], raising=False)

    async def run() -> None:
        model = ServedModel(directory, replace(OPERATION, workers=2), Metrics())
        await model.load()
        first = model.digest
        save_model(directory, "en", "de", seed=4, overwrite=True)
        assert await answers_of(model, number=9) == {first}
        Worker.sayings.append(lost)
        await answers_of(model, number=9)
        await until("is loaded in its place", caplog)
        assert model.digest == digest_of(directory) != first
        assert await answers_of(model, number=9) == {model.digest}
        assert model.crew.num_ready == 2
        # What cannot take its place does not: the other worker goes on.
        second = model.digest
        save_model(directory, "de", "en", seed=1, overwrite=True)
        Worker.sayings.append(lost)
        assert await answers_of(model, number=9) == {second}
        await until(f"{directory} now translates de-en; next try in", caplog)
        assert await answers_of(model, number=9) == {second}
        assert model.crew.num_ready == 1
        await model.crew.close()

    asyncio.run(run())
    assert f"{directory} is gone, or another model by now: all workers change" in caplog.messages


def test_a_run_whose_averaged_model_is_gone_is_served_by_its_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / RUN_FILE).write_text("{}")
    old = save_model(run / "averaged", "en", "de", seed=1)
    caplog.set_level("INFO")
    monkeypatch.setattr(crew, "WorkerProcess", Teller)
    monkeypatch.setattr(Worker, "sayings", [lost], raising=False)

    async def serve() -> None:
        model = ServedModel(run, OPERATION, Metrics())
        await model.load()
        assert model.directory == old
        new = save_model(run / "model", "en", "de", seed=4)
        shutil.rmtree(old)
        assert await answers_of(model, number=1) == {digest_of(new)}
        await until("is loaded in its place", caplog)
        assert (model.directory, model.crew.num_ready) == (new, 1)
        await model.crew.close()

    asyncio.run(serve())


class SecondFails(Worker):
    """The second that is started cannot be, for a reason that nobody foresaw."""

    @classmethod
    async def start(cls, model: Path, engine: Engine) -> WorkerProcess:
        worker = await super().start(model, engine)
        if cls.num_started == 2:
            raise KeyError("digest")
        return worker


def test_a_mistake_while_a_worker_is_replaced_is_told_and_tried_again(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(crew, "WorkerProcess", SecondFails)
    monkeypatch.setattr(SecondFails, "num_started", 0)
    monkeypatch.setattr(SecondFails, "sayings", [lost, well], raising=False)
    monkeypatch.setattr(crew, "_FIRST_PAUSE_SECONDS", 0.01)

    async def run() -> None:
        model = ServedModel(models["en-de"], OPERATION, Metrics())
        await model.load()
        with pytest.raises(Refused, match="the model en-de is not loaded now"):
            await answers_of(model, number=1)
        await until("a new worker serves en-de", caplog)
        assert await answers_of(model, number=1) == {"the sea"}
        await model.crew.close()

    asyncio.run(run())
    (record,) = [one for one in caplog.records if one.message.startswith("no new worker for")]
    assert record.message.endswith("'digest'; next try in 0.0 s")
    assert record.exc_info is not None


class Mortal(Worker):
    """Dies once `death` is set."""

    death: asyncio.Event

    @classmethod
    async def start(cls, model: Path, engine: Engine) -> WorkerProcess:
        worker = await super().start(model, engine)
        assert isinstance(worker, Mortal)
        worker.death = asyncio.Event()
        return worker

    async def ask(self, lines: Sequence[str], job: Job, *, timeout_seconds: float) -> list[dict[str, Any]]:
        if self.death.is_set():
            raise WorkerLost(await self.ended())
        return well(lines)

    async def ended(self) -> str:
        await self.death.wait()
        return "it was killed by signal 9"

    async def close(self) -> None:
        self.death.set()


async def until_started(kind: type[Worker], number: int) -> None:
    """Wait for so many workers in all."""
    async with asyncio.timeout(5):
        while kind.num_started < number:
            await asyncio.sleep(0.001)


def only_worker(model: ServedModel) -> Mortal:
    worker = model.crew._posts[0].worker
    assert isinstance(worker, Mortal)
    return worker


@pytest.mark.parametrize("num_steps", range(4))
@pytest.mark.parametrize("is_asked_first", [True, False])
def test_a_worker_dies_at_whatever_moment_a_sentence_comes(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, num_steps: int, is_asked_first: bool
) -> None:
    monkeypatch.setattr(crew, "WorkerProcess", Mortal)
    monkeypatch.setattr(Mortal, "num_started", 0)

    async def run() -> None:
        model = ServedModel(models["en-de"], OPERATION, Metrics())
        await model.load()
        await asyncio.sleep(0.01)
        worker = only_worker(model)
        asked = Sentence("the sea", 2, SEARCH, "one", asyncio.Future())
        acts: list[Callable[[], None]] = [lambda: model.batcher.submit([asked]), worker.death.set]
        for act in acts if is_asked_first else acts[::-1]:
            act()
            for _ in range(num_steps):
                await asyncio.sleep(0)
        assert (await asyncio.wait_for(asked.result, 5))["text"] == "the sea"
        await until_started(Mortal, 2)
        assert await answers_of(model, number=9) == {"the sea"}
        await asyncio.wait_for(model.crew.close(), 5)

    asyncio.run(run())


@pytest.mark.parametrize("num_steps", range(4))
def test_a_worker_dies_at_whatever_moment_it_is_retired(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, num_steps: int
) -> None:
    monkeypatch.setattr(crew, "WorkerProcess", Mortal)

    async def run() -> None:
        model = ServedModel(models["en-de"], OPERATION, Metrics())
        await model.load()
        await asyncio.sleep(0.01)
        only_worker(model).death.set()
        for _ in range(num_steps):
            await asyncio.sleep(0)
        await asyncio.wait_for(model.crew.close(), 5)
        await asyncio.sleep(0.01)
        assert len(asyncio.all_tasks()) == 1  # nobody watches any more

    asyncio.run(run())


def test_a_worker_that_dies_as_it_answers_is_replaced_before_anybody_asks(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Last(Mortal):
        async def ask(self, lines: Sequence[str], job: Job, *, timeout_seconds: float) -> list[dict[str, Any]]:
            self.death.set()
            await asyncio.sleep(0.01)  # the server learns of it before it reads the answer
            return well(lines)

    monkeypatch.setattr(crew, "WorkerProcess", Last)
    monkeypatch.setattr(Last, "num_started", 0)

    async def run() -> None:
        model = ServedModel(models["en-de"], OPERATION, Metrics())
        await model.load()
        assert await answers_of(model, number=1) == {"the sea"}
        await until_started(Last, 2)
        await model.crew.close()

    asyncio.run(run())


def test_workers_that_die_before_they_see_a_batch_are_replaced_after_pauses_that_grow(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Still(Mortal):
        @classmethod
        async def start(cls, model: Path, engine: Engine) -> WorkerProcess:
            worker = await super().start(model, engine)
            assert isinstance(worker, Mortal)
            if cls.num_started < 9:
                worker.death.set()
            return worker

    monkeypatch.setattr(crew, "WorkerProcess", Still)
    monkeypatch.setattr(Still, "num_started", 0)
    monkeypatch.setattr(crew, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(crew, "_LONGEST_PAUSE_SECONDS", 0.05)

    async def run() -> float:
        loop = asyncio.get_running_loop()
        model = ServedModel(models["en-de"], OPERATION, Metrics())
        started = loop.time()
        await model.load()
        await until_started(Still, 9)
        seconds = loop.time() - started
        assert await answers_of(model, number=1) == {"the sea"}
        await model.crew.close()
        return seconds

    assert asyncio.run(run()) >= 0.01 + 0.02 + 0.04 + 4 * 0.05


def test_no_worker_is_left_where_another_could_not_start(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class Half(SecondFails):
        async def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(crew, "WorkerProcess", Half)
    monkeypatch.setattr(SecondFails, "num_started", 0)

    async def run() -> None:
        model = ServedModel(models["en-de"], replace(OPERATION, workers=2), Metrics())
        with pytest.raises(KeyError):
            await model.load()

    asyncio.run(run())
    assert len(closed) == 1


def test_a_server_that_ends_while_the_model_changes_answers_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = save_model(tmp_path / "model", "en", "de", seed=1)

    async def run() -> None:
        is_over = asyncio.Event()

        class Slow(Teller):
            async def ask(self, lines: Sequence[str], job: Job, *, timeout_seconds: float) -> list[dict[str, Any]]:
                if lines == ["the slow sea"]:
                    await is_over.wait()
                return await super().ask(lines, job, timeout_seconds=timeout_seconds)

        monkeypatch.setattr(crew, "WorkerProcess", Slow)
        monkeypatch.setattr(Worker, "sayings", [], raising=False)
        model = ServedModel(directory, replace(OPERATION, workers=2), Metrics())
        await model.load()
        first = model.digest
        slow = Sentence("the slow sea", 3, SEARCH, "one", asyncio.Future())
        model.batcher.submit([slow])
        await asyncio.sleep(0.01)
        save_model(directory, "en", "de", seed=4, overwrite=True)
        Worker.sayings.append(lost)
        # The lost worker's sentence is done by those that come, while the old one is still at its own.
        assert await answers_of(model, number=1) != {first}
        ending = asyncio.ensure_future(model.crew.close())
        await asyncio.sleep(0.05)
        assert not ending.done()
        is_over.set()
        assert (await asyncio.wait_for(slow.result, 5))["text"] == first
        await asyncio.wait_for(ending, 5)

    asyncio.run(run())


def test_a_model_that_is_gone_is_not_waited_for(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(lines: Sequence[str]) -> list[dict[str, Any]]:
        raise ModelError("the model was replaced, and this one is gone", hint="have it loaded again")

    monkeypatch.setattr(crew, "WorkerProcess", Worker)
    monkeypatch.setattr(Worker, "sayings", [gone], raising=False)

    async def run() -> None:
        model = ServedModel(models["en-de"], OPERATION, Metrics())
        await model.load()
        with pytest.raises(Refused, match="this one is gone") as error:
            await answers_of(model, number=1)
        assert (error.value.status, error.value.retry_after_seconds) == (503, None)
        await model.crew.close()

    asyncio.run(run())


def test_a_model_replaced_while_it_is_loaded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = save_model(tmp_path / "model", "en", "de", seed=1)

    class Late(Worker):
        @classmethod
        async def start(cls, model: Path, engine: Engine) -> WorkerProcess:
            save_model(directory, "en", "de", seed=4, overwrite=True)
            return await super().start(model, engine)

    monkeypatch.setattr(crew, "WorkerProcess", Late)

    async def run() -> None:
        model = ServedModel(directory, OPERATION, Metrics())
        with pytest.raises(ModelError, match="the model was replaced while it was loaded") as error:
            await model.load()
        assert error.value.hint == "load it again, now that all of it is there"
        assert model.crew.num_ready == 0
        await model.swap()
        assert (model.crew.num_ready, model.digest) == (1, digest_of(directory))
        await model.crew.close()

    asyncio.run(run())


def test_a_model_that_cannot_be_loaded_again_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = save_model(tmp_path / "model", "en", "de")
    monkeypatch.setattr(crew, "WorkerProcess", Teller)
    monkeypatch.setattr(Worker, "sayings", [lost], raising=False)
    monkeypatch.setattr(crew, "_FIRST_PAUSE_SECONDS", 0.05)
    limits = Limits(
        characters=99, texts=9, sentences=9, queue=9, requests=9, timeout_seconds=30, alternatives=3, beam=8
    )

    async def run() -> None:
        model = ServedModel(directory, OPERATION, Metrics())
        await model.load()
        directory.rename(tmp_path / "elsewhere")
        translation, asker = Translation(limits), Asker("one", asyncio.Future())

        for _ in range(2):  # what waits when it is noticed, and what comes then
            asked = translation.translate(["sea"], model, SEARCH, by_sentence=True, asker=asker)
            with pytest.raises(Refused, match="the model en-de is not loaded now") as error:
                await asyncio.wait_for(asked, 5)
            assert (error.value.status, error.value.code, error.value.retry_after_seconds) == (503, "not_loaded", 1)
            assert error.value.hint == "try again in 1 s; the server's log says why"
        (tmp_path / "elsewhere").rename(directory)
        await until("a new worker serves en-de", caplog)
        assert await answers_of(model, number=1) == {model.digest}
        await model.crew.close()

    asyncio.run(run())


def test_the_first_replacement_is_waited_for(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Mortal):
        @classmethod
        async def start(cls, model: Path, engine: Engine) -> WorkerProcess:
            if cls.num_started:
                await asyncio.sleep(0.1)
            return await super().start(model, engine)

    monkeypatch.setattr(crew, "WorkerProcess", Slow)
    monkeypatch.setattr(Slow, "num_started", 0)

    async def run() -> None:
        model = ServedModel(models["en-de"], OPERATION, Metrics())
        await model.load()
        only_worker(model).death.set()
        await asyncio.sleep(0.01)
        assert (model.crew.num_ready, model.crew.refusal) == (0, None)
        assert await answers_of(model, number=1) == {"the sea"}
        await model.crew.close()

    asyncio.run(run())


def test_whatever_workers_do_when_the_server_ends_is_given_up(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(Worker):
        async def ask(self, lines: Sequence[str], job: Job, *, timeout_seconds: float) -> list[dict[str, Any]]:
            await asyncio.Event().wait()
            return []

    monkeypatch.setattr(crew, "WorkerProcess", Busy)

    async def run() -> None:
        model = ServedModel(models["en-de"], OPERATION, Metrics())
        await model.load()
        model.batcher.submit([Sentence("the sea", 3, SEARCH, "one", asyncio.Future())])
        await asyncio.sleep(0.01)
        await asyncio.wait_for(model.crew.close(), 5)

    asyncio.run(run())


def test_a_worker_that_does_not_load_is_given_up(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    # It leaves something, and does not end with its input.
    hangs = "import time, tempfile; tempfile.mkdtemp(); time.sleep(60)"
    monkeypatch.setattr(process, "_START", hangs)
    monkeypatch.setattr(process, "_LOADING_SECONDS", 0.5)
    with pytest.raises(WorkerLost, match=r"the model was not loaded within 0\.5 s"):
        asyncio.run(WorkerProcess.start(models["en-de"], OPERATION.engine))
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_is_killed_leaves_no_files(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    writes = "import tempfile; tempfile.NamedTemporaryFile(delete=False).write(b'much')"
    monkeypatch.setattr(process, "_START", f"{writes}; {process._START}")

    async def run() -> None:
        worker = await WorkerProcess.start(models["en-de"], OPERATION.engine)
        assert [len(list(folder.iterdir())) for folder in tmp_path.iterdir()] == [1]
        worker.kill()
        await worker.ended()
        await worker.close()
        assert list(tmp_path.iterdir()) == []

    asyncio.run(run())
