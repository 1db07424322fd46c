"""Workers: what one answers, what becomes of its batch when it dies, and how a pool changes its model."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nmt_cli.artifacts import model_directory as bundle
from nmt_cli.artifacts.manifest import RUN_FILE, model_digest
from nmt_cli.decoding.attention_maps import AttentionMaps
from nmt_cli.decoding.translation import Translation
from nmt_cli.decoding.translator import Translator
from nmt_cli.errors import DataError, DeviceError, ModelError, NmtError, UsageError
from nmt_cli.serving.errors import ClientGone, RequestError
from nmt_cli.serving.metrics import ServerMetrics
from nmt_cli.serving.models import ServedModel
from nmt_cli.serving.queue import QueuedSentence
from nmt_cli.serving.settings import EngineSettings, RequestLimits
from nmt_cli.serving.texts import Caller, TextTranslator
from nmt_cli.serving.texts import TextTranslator as ServedTranslation
from nmt_cli.serving.workers import client, pool
from nmt_cli.serving.workers.client import WorkerFailed, WorkerProcess
from nmt_cli.serving.workers.messages import AttentionJob, Job, NextWordsJob, SearchJob
from nmt_cli.serving.workers.worker import WorkerModel
from tests.serving.servers import MODEL_SETTINGS, save_model

TWO_BEST = SearchJob(beam=2, nbest=2, length_penalty=0.6, max_extra_tokens=5, prefix="", alignments=False)
LIMITS = RequestLimits(
    characters=1000, texts=9, sentences=9, queue=9, requests=9, timeout_seconds=0.2, alternatives=3, beam=8
)
GREEDY = SearchJob(beam=1, nbest=1, length_penalty=0.6, max_extra_tokens=5, prefix="", alignments=False)


def test_the_server_learns_which_sentences_ctranslate2_keeps_apart(models: dict[str, Path]) -> None:
    pytest.importorskip("ctranslate2")

    async def run() -> int:
        engine = EngineSettings("ctranslate2", "cpu", "int8", 1)
        model = ServedModel(models["en-de"], replace(MODEL_SETTINGS, engine=engine), ServerMetrics())
        await model.load()
        await model.pool.close()
        return model.queue.narrow

    assert asyncio.run(run()) == 16


@pytest.mark.parametrize("name", ["torch", "ctranslate2"])
def test_either_engine_answers_as_decode_does(models: dict[str, Path], name: str) -> None:
    if name == "ctranslate2":
        pytest.importorskip("ctranslate2")
    lines = ["the old sea", "a small house stands"]
    model = WorkerModel(models["en-de"], EngineSettings(name, "cpu", "fp32", 1))
    translator = Translator.from_pretrained(models["en-de"], engine=name, device="cpu", precision="fp32")
    expected = translator.translate(lines, nbest=2, length_penalty=0.6)
    found = model.answer(lines, TWO_BEST)
    assert [one["text"] for one in found] == [one.text for one in expected]
    assert [one["alternatives"][0]["text"] for one in found] == [one.alternatives[0].text for one in expected]
    attended = json.loads(model.answer(["the sea"], AttentionJob("das Meer"))[0]["map"])
    assert attended["rows"] == ["das", "Meer", "</s>"]
    again = AttentionMaps.from_pretrained(models["en-de"]).cross_words("the sea", "das Meer").as_json()
    assert np.allclose(attended["weights"], again["weights"], atol=2e-3)  # of numbers rounded to three places


def test_a_torch_worker_shows_the_attention_of_the_model_that_it_has(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = WorkerModel(models["en-de"], EngineSettings("torch", "cpu", "bf16", 1))
    monkeypatch.setattr(AttentionMaps, "from_pretrained", None)  # no second one is read
    (found,) = model.answer(["the sea"], AttentionJob("das Meer"))
    assert np.allclose(np.sum(json.loads(found["map"])["weights"], axis=-1), 1, atol=2e-3)


def test_a_worker_refuses_a_beginning_too_long_for_its_model(models: dict[str, Path]) -> None:
    model = WorkerModel(models["en-de"], EngineSettings("torch", "cpu", "fp32", 1))
    with pytest.raises(DataError, match="the prefix has 80 pieces, and the model takes 63") as error:
        model.answer(["the sea"], NextWordsJob("x " * 40, 3, 2))
    assert (error.value.where, error.value.hint) == ("prefix", "give a shorter one")
    with pytest.raises(DataError, match="the text has 80 pieces"):
        model.answer(["x " * 40], NextWordsJob("", 3, 2))
    with pytest.raises(DataError, match="the prefix has 80 pieces") as error:
        model.answer(["the sea"], replace(TWO_BEST, prefix="x " * 40))
    assert error.value.where == "prefix"
    with pytest.raises(DataError, match="the translation has 80 pieces") as error:
        model.answer(["the sea"], AttentionJob("x " * 40))
    assert error.value.where == "translation"


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (DeviceError, "give a shorter sentence, or ask for a smaller beam"),
        (UsageError, "leave out how to search: the model's own settings do"),
    ],
)
def test_no_error_names_an_option_of_the_command_line(
    kind: type[NmtError], hint: str, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = WorkerModel(models["en-de"], EngineSettings("torch", "cpu", "fp32", 1))

    def translate(self: Translator, *arguments: object, **options: object) -> list[Translation]:
        raise kind("the memory of cpu does not hold a sentence", setting="beam", hint="take `device: cpu`")

    monkeypatch.setattr(Translator, "translate", translate)
    with pytest.raises(kind, match="the memory of cpu does not hold a sentence") as error:
        model.answer(["the sea"], TWO_BEST)
    assert (error.value.where, error.value.hint) == (None, hint)


def test_an_engine_that_lacks_what_requests_may_ask_for_is_refused_at_once(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    directory = save_model(tmp_path / "model", "en", "de", decoding={"beam": 1, "min_tokens": 2})
    with pytest.raises(UsageError, match="the engine ctranslate2 has no minimum length in a beam search") as error:
        WorkerModel(directory, EngineSettings("ctranslate2", "cpu", "fp32", 1))
    assert (error.value.setting, error.value.hint) == ("engine", "take `engine: torch`")
    WorkerModel(directory, EngineSettings("torch", "cpu", "fp32", 1))


@pytest.mark.parametrize("name", ["torch", "ctranslate2"])
def test_a_model_whose_own_setting_is_to_draw_is_searched(tmp_path: Path, name: str) -> None:
    if name == "ctranslate2":
        pytest.importorskip("ctranslate2")
    directory = save_model(tmp_path / "model", "en", "de", decoding={"samples": 4})
    model = WorkerModel(directory, EngineSettings(name, "cpu", "fp32", 1))
    (found,) = model.answer(["the old sea"], TWO_BEST)
    (varied,) = model.answer(["the old sea"], NextWordsJob("", 3, 2))
    assert len(varied["words"]) == 3
    (expected,) = Translator.from_pretrained(directory, engine=name, device="cpu").translate(
        ["the old sea"], samples=0, beam=2, nbest=2, length_penalty=0.6, max_extra_tokens=5
    )
    assert (found["text"], len(found["alternatives"])) == (expected.text, 1)


def test_words_are_never_told_of_a_model_that_came_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2")
    directory = save_model(tmp_path / "model", "en", "de", seed=1)
    model = WorkerModel(directory, EngineSettings("ctranslate2", "cpu", "fp32", 1))
    load = bundle.load_model

    def late(path: Path, *, device: torch.device, dtype: torch.dtype) -> bundle.LoadedModel:
        loaded = load(path, device=device, dtype=dtype)
        save_model(directory, "en", "de", seed=4, overwrite=True)
        return loaded

    monkeypatch.setattr(bundle, "load_model", late)
    with pytest.raises(ModelError, match="the model was replaced, and this one is gone") as error:
        model.answer(["the sea"], AttentionJob("das Meer"))
    assert error.value.hint == "whoever runs the server must have its models loaded again"
    monkeypatch.setattr(bundle, "load_model", None)  # what cannot be the same is not read
    with pytest.raises(ModelError, match="the model was replaced, and this one is gone"):
        model.answer(["the sea"], AttentionJob("das Meer"))
    shutil.rmtree(directory)
    with pytest.raises(ModelError, match="the model was replaced, and this one is gone"):
        model.answer(["the sea"], NextWordsJob("", 3, 2))


def queued_sentence(job: SearchJob, *, tokens: int = 3) -> QueuedSentence:
    return QueuedSentence("the sea", tokens, job, "one", asyncio.get_running_loop().create_future())


def test_what_takes_too_long_or_has_no_client_leaves_the_queue(models: dict[str, Path]) -> None:
    async def run() -> None:
        model = ServedModel(models["en-de"], MODEL_SETTINGS, ServerMetrics())  # nobody works
        translation = ServedTranslation(LIMITS)
        caller, other = Caller("one", asyncio.Future()), Caller("two", asyncio.Future())
        with pytest.raises(RequestError, match="the translation took too long") as error:
            await translation.translate(["the sea\nthe sea"], model, TWO_BEST, by_sentence=True, caller=caller)
        assert (error.value.status, error.value.retry_after_seconds) == (503, 1)
        caller.gone.set_result(None)
        with pytest.raises(ClientGone):
            await translation.translate(["the sea"], model, TWO_BEST, by_sentence=True, caller=caller)
        with pytest.raises(RequestError, match="10 sentences are too many"):
            await translation.translate(["sea\n" * 10], model, TWO_BEST, by_sentence=True, caller=caller)
        model.queue.submit(late := [queued_sentence(TWO_BEST, tokens=9999) for _ in range(2)])
        model.queue.done([queued_sentence(TWO_BEST, tokens=9999)], seconds=2)
        with pytest.raises(RequestError, match=r"the server is 4 s behind, and a request may take 0\.2 s") as error:
            await translation.translate(["the sea"], model, TWO_BEST, by_sentence=True, caller=other)
        assert (error.value.status, error.value.retry_after_seconds) == (503, 2)
        for one in late:
            one.result.cancel()
        # All nine places are free again.
        waiting = asyncio.ensure_future(
            translation.translate(["sea\n" * 9], model, TWO_BEST, by_sentence=True, caller=other)
        )
        await asyncio.sleep(0)
        assert len(await asyncio.wait_for(model.queue.take(), 5)) == 9
        waiting.cancel()

    asyncio.run(run())


class FakeWorker(WorkerProcess):
    """Says what it is told to, one thing after another."""

    sayings: list[Callable[[Sequence[str]], list[dict[str, Any]]]]
    num_started = 0

    @classmethod
    async def start(cls, model: Path, engine: EngineSettings) -> WorkerProcess:
        cls.num_started += 1
        worker = cls.__new__(cls)
        worker.digest = model_digest(model)
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


def answer_well(lines: Sequence[str]) -> list[dict[str, Any]]:
    return [{"text": line, "num_pieces": 1} for line in lines]


def answer_too_few(lines: Sequence[str]) -> list[dict[str, Any]]:
    return []


def lose_worker(lines: Sequence[str]) -> list[dict[str, Any]]:
    raise WorkerFailed("it was killed by signal 9")


def answer_nonsense(lines: Sequence[str]) -> list[dict[str, Any]]:
    raise KeyError("answers")


@pytest.mark.parametrize("wrong", [answer_too_few, answer_nonsense])
def test_a_mistake_with_a_batch_is_told_and_the_next_batch_is_done(
    wrong: Callable[[Sequence[str]], list[dict[str, Any]]],
    models: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(pool, "WorkerProcess", FakeWorker)
    monkeypatch.setattr(FakeWorker, "sayings", [wrong, answer_well], raising=False)
    monkeypatch.setattr(FakeWorker, "num_started", 0)

    async def run() -> None:
        served = ServedModel(models["en-de"], MODEL_SETTINGS, ServerMetrics())
        queue, slots = served.queue, served.pool
        await served.load()
        first = QueuedSentence("secret", 2, GREEDY, "one", asyncio.Future())
        queue.submit([first])
        with pytest.raises(RequestError, match="the server made a mistake with this text") as error:
            await asyncio.wait_for(first.result, 5)
        assert (error.value.status, error.value.code, error.value.retry_after_seconds) == (503, "failed", 1)
        assert error.value.hint == "leave the text out; the server's log says more"
        second = QueuedSentence("the sea", 2, GREEDY, "one", asyncio.Future())
        queue.submit([second])
        assert (await asyncio.wait_for(second.result, 5))["text"] == "the sea"
        assert (slots.num_ready, FakeWorker.num_started) == (1, 2)
        await slots.close()

    asyncio.run(run())
    assert "a mistake with a batch of en-de; its worker is replaced" in caplog.messages
    assert "secret" not in caplog.text


def test_a_swap_takes_what_it_read_before_the_workers_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = save_model(tmp_path / "model", "en", "de")
    written = directory / "config.yaml"

    class LastReader(FakeWorker):
        @classmethod
        async def start(cls, model: Path, engine: EngineSettings) -> WorkerProcess:
            written.unlink()
            return await super().start(model, engine)

    monkeypatch.setattr(pool, "WorkerProcess", LastReader)

    async def run() -> None:
        model = ServedModel(directory, MODEL_SETTINGS, ServerMetrics())
        assert model.queue.max_tokens == 400
        written.write_text(written.read_text().replace("batch_tokens: 400", "batch_tokens: 300"))
        await model.swap()
        assert (model.pool.num_ready, model.queue.max_tokens) == (1, 300)
        await model.pool.close()

    asyncio.run(run())


async def answers_of(model: ServedModel, *, number: int) -> set[str]:
    """What the workers make of so many sentences."""
    sentences = [
        QueuedSentence("the sea", 2, GREEDY, "one", asyncio.get_running_loop().create_future()) for _ in range(number)
    ]
    model.queue.submit(sentences)
    return {one["text"] for one in await asyncio.wait_for(asyncio.gather(*(one.result for one in sentences)), 5)}


class Teller(FakeWorker):
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
    monkeypatch.setattr(pool, "WorkerProcess", Teller)
    monkeypatch.setattr(FakeWorker, "sayings", [], raising=False)

    async def run() -> None:
        model = ServedModel(directory, replace(MODEL_SETTINGS, workers=2), ServerMetrics())
        await model.load()
        first = model.digest
        save_model(directory, "en", "de", seed=4, overwrite=True)
        assert await answers_of(model, number=9) == {first}
        FakeWorker.sayings.append(lose_worker)
        await answers_of(model, number=9)
        await until("is loaded in its place", caplog)
        assert model.digest == model_digest(directory) != first
        assert await answers_of(model, number=9) == {model.digest}
        assert model.pool.num_ready == 2
        # What cannot take its place does not: the other worker goes on.
        second = model.digest
        save_model(directory, "de", "en", seed=1, overwrite=True)
        FakeWorker.sayings.append(lose_worker)
        assert await answers_of(model, number=9) == {second}
        await until(f"{directory} now translates de-en; next try in", caplog)
        assert await answers_of(model, number=9) == {second}
        assert model.pool.num_ready == 1
        await model.pool.close()

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
    monkeypatch.setattr(pool, "WorkerProcess", Teller)
    monkeypatch.setattr(FakeWorker, "sayings", [lose_worker], raising=False)

    async def serve() -> None:
        model = ServedModel(run, MODEL_SETTINGS, ServerMetrics())
        await model.load()
        assert model.directory == old
        new = save_model(run / "model", "en", "de", seed=4)
        shutil.rmtree(old)
        assert await answers_of(model, number=1) == {model_digest(new)}
        await until("is loaded in its place", caplog)
        assert (model.directory, model.pool.num_ready) == (new, 1)
        await model.pool.close()

    asyncio.run(serve())


class SecondFails(FakeWorker):
    """The second that is started cannot be, for a reason that nobody foresaw."""

    @classmethod
    async def start(cls, model: Path, engine: EngineSettings) -> WorkerProcess:
        worker = await super().start(model, engine)
        if cls.num_started == 2:
            raise KeyError("digest")
        return worker


def test_a_mistake_while_a_worker_is_replaced_is_told_and_tried_again(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool, "WorkerProcess", SecondFails)
    monkeypatch.setattr(SecondFails, "num_started", 0)
    monkeypatch.setattr(SecondFails, "sayings", [lose_worker, answer_well], raising=False)
    monkeypatch.setattr(pool, "_FIRST_PAUSE_SECONDS", 0.01)

    async def run() -> None:
        model = ServedModel(models["en-de"], MODEL_SETTINGS, ServerMetrics())
        await model.load()
        with pytest.raises(RequestError, match="the model en-de is not loaded now"):
            await answers_of(model, number=1)
        await until("a new worker serves en-de", caplog)
        assert await answers_of(model, number=1) == {"the sea"}
        await model.pool.close()

    asyncio.run(run())
    (record,) = [one for one in caplog.records if one.message.startswith("no new worker for")]
    assert record.message.endswith("'digest'; next try in 0.0 s")
    assert record.exc_info is not None


class Mortal(FakeWorker):
    """Dies once `death` is set."""

    death: asyncio.Event

    @classmethod
    async def start(cls, model: Path, engine: EngineSettings) -> WorkerProcess:
        worker = await super().start(model, engine)
        assert isinstance(worker, Mortal)
        worker.death = asyncio.Event()
        return worker

    async def ask(self, lines: Sequence[str], job: Job, *, timeout_seconds: float) -> list[dict[str, Any]]:
        if self.death.is_set():
            raise WorkerFailed(await self.ended())
        return answer_well(lines)

    async def ended(self) -> str:
        await self.death.wait()
        return "it was killed by signal 9"

    async def close(self) -> None:
        self.death.set()


async def until_started(kind: type[FakeWorker], number: int) -> None:
    """Wait for so many workers in all."""
    async with asyncio.timeout(5):
        while kind.num_started < number:
            await asyncio.sleep(0.001)


def only_worker(model: ServedModel) -> Mortal:
    worker = model.pool._slots[0].worker
    assert isinstance(worker, Mortal)
    return worker


@pytest.mark.parametrize("num_steps", range(4))
@pytest.mark.parametrize("is_asked_first", [True, False])
def test_a_worker_dies_at_whatever_moment_a_sentence_comes(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, num_steps: int, is_asked_first: bool
) -> None:
    monkeypatch.setattr(pool, "WorkerProcess", Mortal)
    monkeypatch.setattr(Mortal, "num_started", 0)

    async def run() -> None:
        model = ServedModel(models["en-de"], MODEL_SETTINGS, ServerMetrics())
        await model.load()
        await asyncio.sleep(0.01)
        worker = only_worker(model)
        asked = QueuedSentence("the sea", 2, GREEDY, "one", asyncio.Future())
        acts: list[Callable[[], None]] = [lambda: model.queue.submit([asked]), worker.death.set]
        for act in acts if is_asked_first else acts[::-1]:
            act()
            for _ in range(num_steps):
                await asyncio.sleep(0)
        assert (await asyncio.wait_for(asked.result, 5))["text"] == "the sea"
        await until_started(Mortal, 2)
        assert await answers_of(model, number=9) == {"the sea"}
        await asyncio.wait_for(model.pool.close(), 5)

    asyncio.run(run())


@pytest.mark.parametrize("num_steps", range(4))
def test_a_worker_dies_at_whatever_moment_it_is_retired(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, num_steps: int
) -> None:
    monkeypatch.setattr(pool, "WorkerProcess", Mortal)

    async def run() -> None:
        model = ServedModel(models["en-de"], MODEL_SETTINGS, ServerMetrics())
        await model.load()
        await asyncio.sleep(0.01)
        only_worker(model).death.set()
        for _ in range(num_steps):
            await asyncio.sleep(0)
        await asyncio.wait_for(model.pool.close(), 5)
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
            return answer_well(lines)

    monkeypatch.setattr(pool, "WorkerProcess", Last)
    monkeypatch.setattr(Last, "num_started", 0)

    async def run() -> None:
        model = ServedModel(models["en-de"], MODEL_SETTINGS, ServerMetrics())
        await model.load()
        assert await answers_of(model, number=1) == {"the sea"}
        await until_started(Last, 2)
        await model.pool.close()

    asyncio.run(run())


def test_workers_that_die_before_they_see_a_batch_are_replaced_after_pauses_that_grow(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Still(Mortal):
        @classmethod
        async def start(cls, model: Path, engine: EngineSettings) -> WorkerProcess:
            worker = await super().start(model, engine)
            assert isinstance(worker, Mortal)
            if cls.num_started < 9:
                worker.death.set()
            return worker

    monkeypatch.setattr(pool, "WorkerProcess", Still)
    monkeypatch.setattr(Still, "num_started", 0)
    monkeypatch.setattr(pool, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(pool, "_LONGEST_PAUSE_SECONDS", 0.05)

    async def run() -> float:
        loop = asyncio.get_running_loop()
        model = ServedModel(models["en-de"], MODEL_SETTINGS, ServerMetrics())
        started = loop.time()
        await model.load()
        await until_started(Still, 9)
        seconds = loop.time() - started
        assert await answers_of(model, number=1) == {"the sea"}
        await model.pool.close()
        return seconds

    assert asyncio.run(run()) >= 0.01 + 0.02 + 0.04 + 4 * 0.05


def test_no_worker_is_left_where_another_could_not_start(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class Half(SecondFails):
        async def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(pool, "WorkerProcess", Half)
    monkeypatch.setattr(SecondFails, "num_started", 0)

    async def run() -> None:
        model = ServedModel(models["en-de"], replace(MODEL_SETTINGS, workers=2), ServerMetrics())
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

        monkeypatch.setattr(pool, "WorkerProcess", Slow)
        monkeypatch.setattr(FakeWorker, "sayings", [], raising=False)
        model = ServedModel(directory, replace(MODEL_SETTINGS, workers=2), ServerMetrics())
        await model.load()
        first = model.digest
        slow = QueuedSentence("the slow sea", 3, GREEDY, "one", asyncio.Future())
        model.queue.submit([slow])
        await asyncio.sleep(0.01)
        save_model(directory, "en", "de", seed=4, overwrite=True)
        FakeWorker.sayings.append(lose_worker)
        # The lost worker's sentence is done by those that come, while the old one is still at its own.
        assert await answers_of(model, number=1) != {first}
        ending = asyncio.ensure_future(model.pool.close())
        await asyncio.sleep(0.05)
        assert not ending.done()
        is_over.set()
        assert (await asyncio.wait_for(slow.result, 5))["text"] == first
        await asyncio.wait_for(ending, 5)

    asyncio.run(run())


def test_a_model_that_is_gone_is_not_waited_for(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(lines: Sequence[str]) -> list[dict[str, Any]]:
        raise ModelError("the model was replaced, and this one is gone", hint="have it loaded again")

    monkeypatch.setattr(pool, "WorkerProcess", FakeWorker)
    monkeypatch.setattr(FakeWorker, "sayings", [gone], raising=False)

    async def run() -> None:
        model = ServedModel(models["en-de"], MODEL_SETTINGS, ServerMetrics())
        await model.load()
        with pytest.raises(RequestError, match="this one is gone") as error:
            await answers_of(model, number=1)
        assert (error.value.status, error.value.retry_after_seconds) == (503, None)
        await model.pool.close()

    asyncio.run(run())


def test_a_model_replaced_while_it_is_loaded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = save_model(tmp_path / "model", "en", "de", seed=1)

    class Late(FakeWorker):
        @classmethod
        async def start(cls, model: Path, engine: EngineSettings) -> WorkerProcess:
            save_model(directory, "en", "de", seed=4, overwrite=True)
            return await super().start(model, engine)

    monkeypatch.setattr(pool, "WorkerProcess", Late)

    async def run() -> None:
        model = ServedModel(directory, MODEL_SETTINGS, ServerMetrics())
        with pytest.raises(ModelError, match="the model was replaced while it was loaded") as error:
            await model.load()
        assert error.value.hint == "load it again, now that all of it is there"
        assert model.pool.num_ready == 0
        await model.swap()
        assert (model.pool.num_ready, model.digest) == (1, model_digest(directory))
        await model.pool.close()

    asyncio.run(run())


def test_a_model_that_cannot_be_loaded_again_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = save_model(tmp_path / "model", "en", "de")
    monkeypatch.setattr(pool, "WorkerProcess", Teller)
    monkeypatch.setattr(FakeWorker, "sayings", [lose_worker], raising=False)
    monkeypatch.setattr(pool, "_FIRST_PAUSE_SECONDS", 0.05)
    limits = RequestLimits(
        characters=99, texts=9, sentences=9, queue=9, requests=9, timeout_seconds=30, alternatives=3, beam=8
    )

    async def run() -> None:
        model = ServedModel(directory, MODEL_SETTINGS, ServerMetrics())
        await model.load()
        directory.rename(tmp_path / "elsewhere")
        translation, caller = TextTranslator(limits), Caller("one", asyncio.Future())

        for _ in range(2):  # what waits when it is noticed, and what comes then
            asked = translation.translate(["sea"], model, GREEDY, by_sentence=True, caller=caller)
            with pytest.raises(RequestError, match="the model en-de is not loaded now") as error:
                await asyncio.wait_for(asked, 5)
            assert (error.value.status, error.value.code, error.value.retry_after_seconds) == (503, "not_loaded", 1)
            assert error.value.hint == "try again in 1 s; the server's log says why"
        (tmp_path / "elsewhere").rename(directory)
        await until("a new worker serves en-de", caplog)
        assert await answers_of(model, number=1) == {model.digest}
        await model.pool.close()

    asyncio.run(run())


def test_the_first_replacement_is_waited_for(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Mortal):
        @classmethod
        async def start(cls, model: Path, engine: EngineSettings) -> WorkerProcess:
            if cls.num_started:
                await asyncio.sleep(0.1)
            return await super().start(model, engine)

    monkeypatch.setattr(pool, "WorkerProcess", Slow)
    monkeypatch.setattr(Slow, "num_started", 0)

    async def run() -> None:
        model = ServedModel(models["en-de"], MODEL_SETTINGS, ServerMetrics())
        await model.load()
        only_worker(model).death.set()
        await asyncio.sleep(0.01)
        assert (model.pool.num_ready, model.pool.refusal) == (0, None)
        assert await answers_of(model, number=1) == {"the sea"}
        await model.pool.close()

    asyncio.run(run())


def test_whatever_workers_do_when_the_server_ends_is_given_up(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(FakeWorker):
        async def ask(self, lines: Sequence[str], job: Job, *, timeout_seconds: float) -> list[dict[str, Any]]:
            await asyncio.Event().wait()
            return []

    monkeypatch.setattr(pool, "WorkerProcess", Busy)

    async def run() -> None:
        model = ServedModel(models["en-de"], MODEL_SETTINGS, ServerMetrics())
        await model.load()
        model.queue.submit([QueuedSentence("the sea", 3, GREEDY, "one", asyncio.Future())])
        await asyncio.sleep(0.01)
        await asyncio.wait_for(model.pool.close(), 5)

    asyncio.run(run())


def test_a_worker_that_does_not_load_is_given_up(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    # It leaves something, and does not end with its input.
    hangs = "import time, tempfile; tempfile.mkdtemp(); time.sleep(60)"
    monkeypatch.setattr(client, "_WORKER_COMMAND", hangs)
    monkeypatch.setattr(client, "_LOADING_SECONDS", 0.5)
    with pytest.raises(WorkerFailed, match=r"the model was not loaded within 0\.5 s"):
        asyncio.run(WorkerProcess.start(models["en-de"], MODEL_SETTINGS.engine))
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_is_killed_leaves_no_files(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    writes = "import tempfile; tempfile.NamedTemporaryFile(delete=False).write(b'much')"
    monkeypatch.setattr(client, "_WORKER_COMMAND", f"{writes}; {client._WORKER_COMMAND}")

    async def run() -> None:
        worker = await WorkerProcess.start(models["en-de"], MODEL_SETTINGS.engine)
        assert [len(list(folder.iterdir())) for folder in tmp_path.iterdir()] == [1]
        worker.kill()
        await worker.ended()
        await worker.close()
        assert list(tmp_path.iterdir()) == []

    asyncio.run(run())
