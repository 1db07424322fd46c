"""What a worker answers with a model, what it refuses, and what is left of its process."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nmt_cli import processes
from nmt_cli.api import Translator
from nmt_cli.artifacts import model_directory
from nmt_cli.artifacts.manifest import model_digest
from nmt_cli.decoding.attention_maps import attention_between_words
from nmt_cli.decoding.translation import Translation
from nmt_cli.decoding.translator import LineTranslator
from nmt_cli.errors import DataError, DeviceError, ModelError, NmtError, UsageError
from nmt_cli.serving import worker_process
from nmt_cli.serving.worker_model import (
    AttentionTask,
    EngineSettings,
    NextWordsTask,
    SearchTask,
    SentenceTask,
    WorkerModel,
)
from nmt_cli.serving.worker_process import WorkerFailed, WorkerProcess
from tests.artifacts.builders import EN_DE
from tests.serving.servers import asked_sentence, save_model

pytestmark = pytest.mark.anyio
TWO_BEST = SearchTask(beam=2, nbest=2, length_penalty=0.6, max_extra_tokens=5, prefix="")
TORCH = EngineSettings("torch", "cpu", "fp32", 1)
CTRANSLATE2 = EngineSettings("ctranslate2", "cpu", "fp32", 1)


@pytest.fixture(scope="module")
def model(models: dict[str, Path]) -> WorkerModel:
    return WorkerModel(models["en-de"], TORCH)


@pytest.fixture(params=[TORCH, CTRANSLATE2], ids=["torch", "ctranslate2"])
def engine(request: pytest.FixtureRequest) -> EngineSettings:
    engine: EngineSettings = request.param
    pytest.importorskip(engine.name)
    return engine


def test_either_engine_answers_as_decode_does(models: dict[str, Path], engine: EngineSettings) -> None:
    lines = ["the old sea", "a small house stands"]
    model = WorkerModel(models["en-de"], engine)
    translator = Translator.from_pretrained(models["en-de"], engine=engine.name, device="cpu", precision="fp32")
    expected = translator.translate(lines, nbest=2, length_penalty=0.6, stop_loops=True)
    found = model.answer([*map(asked_sentence, lines)], TWO_BEST)
    assert [one["text"] for one in found] == [one.text for one in expected]
    assert [one["alternatives"][0]["text"] for one in found] == [one.alternatives[0].text for one in expected]
    attended = json.loads(model.answer([asked_sentence("the sea")], AttentionTask("das Meer"))[0]["map"])
    assert attended["rows"] == ["das", "Meer", "</s>"]
    device = torch.device("cpu")
    loaded = model_directory.load_model(models["en-de"], device=device, dtype=torch.float32)
    again = attention_between_words(loaded, "the sea", "das Meer", direction=EN_DE, device=device).as_json()
    assert np.allclose(attended["weights"], again["weights"], atol=2e-3)  # of numbers rounded to three places


@pytest.mark.parametrize(
    ("line", "task", "name"),
    [
        ("the sea", NextWordsTask("x " * 40, 3, 2), "prefix"),
        ("x " * 40, NextWordsTask("", 3, 2), "text"),
        ("the sea", replace(TWO_BEST, prefix="x " * 40), "prefix"),
        ("the sea", AttentionTask("x " * 40), "translation"),
    ],
)
def test_a_text_too_long_for_the_model_is_refused_by_its_field(
    model: WorkerModel, line: str, task: SentenceTask, name: str
) -> None:
    with pytest.raises(DataError, match=f"the {name} has 80 pieces, and the model takes 63") as error:
        model.answer([asked_sentence(line)], task)
    assert (error.value.where, error.value.hint) == (name, "give a shorter one")


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (DeviceError, "give a shorter sentence, or ask for a smaller beam"),
        (UsageError, "leave out how to search: the model's own settings do"),
    ],
)
def test_no_error_names_an_option_of_the_command_line(
    kind: type[NmtError], hint: str, model: WorkerModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def translate(self: LineTranslator, *arguments: object, **options: object) -> list[Translation]:
        raise kind("the memory of cpu does not hold a sentence", setting="beam", hint="take `device: cpu`")

    monkeypatch.setattr(LineTranslator, "translate", translate)
    with pytest.raises(kind, match="the memory of cpu does not hold a sentence") as error:
        model.answer([asked_sentence("the sea")], TWO_BEST)
    assert (error.value.where, error.value.hint) == (None, hint)


def test_an_engine_that_lacks_what_requests_may_ask_for_is_refused_at_once(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    directory = save_model(tmp_path / "model", "en", "de", decoding={"beam": 1, "min_tokens": 2})
    with pytest.raises(UsageError, match="the engine ctranslate2 has no minimum length in a beam search") as error:
        WorkerModel(directory, CTRANSLATE2)
    assert (error.value.setting, error.value.hint) == ("engine", "take `engine: torch`")
    WorkerModel(directory, TORCH)


def test_a_model_whose_own_setting_is_to_sample_is_searched(tmp_path: Path, engine: EngineSettings) -> None:
    directory = save_model(tmp_path / "model", "en", "de", decoding={"samples": 4})
    model = WorkerModel(directory, engine)
    (found,) = model.answer([asked_sentence("the old sea")], TWO_BEST)
    (varied,) = model.answer([asked_sentence("the old sea")], NextWordsTask("", 3, 2))
    assert len(varied["words"]) == 3
    (expected,) = Translator.from_pretrained(directory, engine=engine.name, device="cpu").translate(
        ["the old sea"], samples=0, beam=2, nbest=2, length_penalty=0.6, max_extra_tokens=5
    )
    assert (found["text"], len(found["alternatives"])) == (expected.text, 1)


def test_words_are_never_told_of_a_model_that_came_later(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    directory = save_model(tmp_path / "model", "en", "de", seed=1)
    model = WorkerModel(directory, CTRANSLATE2)
    save_model(directory, "en", "de", seed=4, overwrite=True)
    with pytest.raises(ModelError, match="the model was replaced, and this one is gone"):
        model.answer([asked_sentence("the sea")], AttentionTask("das Meer"))
    shutil.rmtree(directory)
    with pytest.raises(ModelError, match="the model was replaced, and this one is gone"):
        model.answer([asked_sentence("the sea")], NextWordsTask("", 3, 2))


# It neither answers nor ends by itself.
HANGS = "import time; time.sleep(60)"


async def test_a_worker_that_does_not_load_is_given_up(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_WORKER_CODE", HANGS)
    monkeypatch.setattr(worker_process, "_LOADING_SECONDS", 0.5)
    with pytest.raises(WorkerFailed, match=r"no answer within 0\.5 s"):
        await WorkerProcess.start(models["en-de"], TORCH)


async def test_a_worker_is_closed_at_once_within_a_batch(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_WORKER_CODE", HANGS)
    monkeypatch.setattr(processes, "_SECONDS_TO_END", 600.0)
    process = WorkerProcess(models["en-de"], TORCH)
    asking = asyncio.ensure_future(process.ask([asked_sentence("the sea")], TWO_BEST, timeout_seconds=99))
    while process._answer is None or not process._answer.running():
        await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.wait_for(process.close(), 30)


async def test_a_worker_that_makes_a_mistake_is_ended(
    models: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    process = await WorkerProcess.start(models["en-de"], TORCH)
    assert process.digest == model_digest(models["en-de"])
    with pytest.raises(WorkerFailed, match="a worker process raised an unexpected error"):
        await process.ask([1], TWO_BEST, timeout_seconds=99)  # type: ignore[list-item]  # the mistake
    assert "AttributeError: 'int' object has no attribute 'text'" in caplog.text
    assert await process.exit_code == -signal.SIGKILL
    with pytest.raises(WorkerFailed, match="SIGKILL"):
        await process.ask([asked_sentence("the sea")], TWO_BEST, timeout_seconds=99)
    await process.close()
