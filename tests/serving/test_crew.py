"""What becomes of a batch when the server itself is wrong, with a worker that needs no process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.serving import crew
from nmt_cli.serving.batcher import Batcher, Sentence
from nmt_cli.serving.jobs import Engine, Job, Search
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.models import ServedModel
from nmt_cli.serving.process import WorkerProcess
from nmt_cli.serving.refusals import Refused
from tests.serving.models import OPERATION, save_model

SEARCH = Search(beam=1, nbest=1, length_penalty=0.6, max_extra_tokens=5, prefix="", alignments=False)


class Worker(WorkerProcess):
    """Says what it is told to, one thing after another."""

    sayings: list[Callable[[Sequence[str]], list[dict[str, Any]]]]
    num_started = 0

    @classmethod
    async def start(cls, model: Path, engine: Engine) -> WorkerProcess:
        cls.num_started += 1
        return cls.__new__(cls)

    async def ask(self, lines: Sequence[str], job: Job, *, timeout_seconds: float) -> list[dict[str, Any]]:
        return self.sayings.pop(0)(lines)

    def kill(self) -> None:
        pass

    async def close(self) -> None:
        pass


def well(lines: Sequence[str]) -> list[dict[str, Any]]:
    return [{"text": line, "num_pieces": 1} for line in lines]


def too_few(lines: Sequence[str]) -> list[dict[str, Any]]:
    return []


def nonsense(lines: Sequence[str]) -> list[dict[str, Any]]:
    raise KeyError("answers")


@pytest.mark.parametrize("wrong", [too_few, nonsense])
def test_a_mistake_with_a_batch_is_told_and_the_next_batch_is_done(
    wrong: Callable[[Sequence[str]], list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(crew, "WorkerProcess", Worker)
    monkeypatch.setattr(Worker, "sayings", [wrong, well], raising=False)
    monkeypatch.setattr(Worker, "num_started", 0)

    async def run() -> None:
        metrics = Metrics()
        batcher = Batcher("en-de", max_tokens=99, max_wait_seconds=0.0, max_sentences=9, metrics=metrics)
        engine = Engine("torch", "cpu", "fp32", 1)
        posts = crew.Crew(batcher, size=1, engine=engine, timeout_seconds=9.0, metrics=metrics)
        await posts.load(Path("model"))
        first = Sentence("secret", 2, SEARCH, asyncio.Future())
        batcher.submit([first])
        with pytest.raises(Refused, match="the server made a mistake with this text") as error:
            await asyncio.wait_for(first.result, 5)
        assert (error.value.status, error.value.code, error.value.retry_after_seconds) == (503, "failed", 1)
        assert error.value.hint == "leave the text out; the server's log says more"
        second = Sentence("the sea", 2, SEARCH, asyncio.Future())
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
