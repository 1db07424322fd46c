"""What a worker does, without its process; and what is not waited for."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nmt_cli.bundle import directory as bundle
from nmt_cli.decoding.attention_maps import AttentionMaps
from nmt_cli.decoding.translator import Translation, Translator
from nmt_cli.errors import DataError, DeviceError, ModelError, NmtError, UsageError
from nmt_cli.serving.batcher import Sentence
from nmt_cli.serving.jobs import Attend, Engine, Search, Vary
from nmt_cli.serving.limits import Limits
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.models import ServedModel
from nmt_cli.serving.refusals import Refused
from nmt_cli.serving.translation import Asker, ClientGone
from nmt_cli.serving.translation import Translation as ServedTranslation
from nmt_cli.serving.worker import Model
from tests.serving.models import OPERATION, save_model

SEARCH = Search(beam=2, nbest=2, length_penalty=0.6, max_extra_tokens=5, prefix="", alignments=False)
LIMITS = Limits(characters=1000, texts=9, sentences=9, queue=9, requests=9, timeout_seconds=0.2, alternatives=3, beam=8)


def test_the_server_learns_which_sentences_ctranslate2_keeps_apart(models: dict[str, Path]) -> None:
    pytest.importorskip("ctranslate2")

    async def run() -> int:
        engine = Engine("ctranslate2", "cpu", "int8", 1)
        model = ServedModel(models["en-de"], replace(OPERATION, engine=engine), Metrics())
        await model.load()
        await model.crew.close()
        return model.batcher.narrow

    assert asyncio.run(run()) == 16


@pytest.mark.parametrize("name", ["torch", "ctranslate2"])
def test_either_engine_answers_as_decode_does(models: dict[str, Path], name: str) -> None:
    if name == "ctranslate2":
        pytest.importorskip("ctranslate2")
    lines = ["the old sea", "a small house stands"]
    model = Model(models["en-de"], Engine(name, "cpu", "fp32", 1))
    translator = Translator.from_pretrained(models["en-de"], engine=name, device="cpu", precision="fp32")
    expected = translator.translate(lines, nbest=2, length_penalty=0.6)
    found = model.answer(lines, SEARCH)
    assert [one["text"] for one in found] == [one.text for one in expected]
    assert [one["alternatives"][0]["text"] for one in found] == [one.alternatives[0].text for one in expected]
    attended = json.loads(model.answer(["the sea"], Attend("das Meer"))[0]["map"])
    assert attended["rows"] == ["das", "Meer", "</s>"]
    again = AttentionMaps.from_pretrained(models["en-de"]).cross_words("the sea", "das Meer").as_json()
    assert np.allclose(attended["weights"], again["weights"], atol=2e-3)  # of numbers rounded to three places


def test_a_torch_worker_shows_the_attention_of_the_model_that_it_has(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(models["en-de"], Engine("torch", "cpu", "bf16", 1))
    monkeypatch.setattr(AttentionMaps, "from_pretrained", None)  # no second one is read
    (found,) = model.answer(["the sea"], Attend("das Meer"))
    assert np.allclose(np.sum(json.loads(found["map"])["weights"], axis=-1), 1, atol=2e-3)


def test_a_worker_refuses_a_beginning_too_long_for_its_model(models: dict[str, Path]) -> None:
    model = Model(models["en-de"], Engine("torch", "cpu", "fp32", 1))
    with pytest.raises(DataError, match="the prefix has 80 pieces, and the model takes 63") as error:
        model.answer(["the sea"], Vary("x " * 40, 3, 2))
    assert (error.value.where, error.value.hint) == ("prefix", "give a shorter one")
    with pytest.raises(DataError, match="the text has 80 pieces"):
        model.answer(["x " * 40], Vary("", 3, 2))
    with pytest.raises(DataError, match="the prefix has 80 pieces") as error:
        model.answer(["the sea"], replace(SEARCH, prefix="x " * 40))
    assert error.value.where == "prefix"
    with pytest.raises(DataError, match="the translation has 80 pieces") as error:
        model.answer(["the sea"], Attend("x " * 40))
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
    model = Model(models["en-de"], Engine("torch", "cpu", "fp32", 1))

    def translate(self: Translator, *arguments: object, **options: object) -> list[Translation]:
        raise kind("the memory of cpu does not hold a sentence", where="--beam", hint="take --device cpu")

    monkeypatch.setattr(Translator, "translate", translate)
    with pytest.raises(kind, match="the memory of cpu does not hold a sentence") as error:
        model.answer(["the sea"], SEARCH)
    assert (error.value.where, error.value.hint) == (None, hint)


def test_an_engine_that_lacks_what_requests_may_ask_for_is_refused_at_once(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    directory = save_model(tmp_path / "model", "en", "de", decoding={"beam": 1, "min_tokens": 2})
    with pytest.raises(UsageError, match="the engine ctranslate2 has no minimum length in a beam search") as error:
        Model(directory, Engine("ctranslate2", "cpu", "fp32", 1))
    assert (error.value.where, error.value.hint) == ("--engine", "take --engine torch")
    Model(directory, Engine("torch", "cpu", "fp32", 1))


@pytest.mark.parametrize("name", ["torch", "ctranslate2"])
def test_a_model_whose_own_setting_is_to_draw_is_searched(tmp_path: Path, name: str) -> None:
    if name == "ctranslate2":
        pytest.importorskip("ctranslate2")
    directory = save_model(tmp_path / "model", "en", "de", decoding={"samples": 4})
    model = Model(directory, Engine(name, "cpu", "fp32", 1))
    (found,) = model.answer(["the old sea"], SEARCH)
    (varied,) = model.answer(["the old sea"], Vary("", 3, 2))
    assert len(varied["words"]) == 3
    (expected,) = Translator.from_pretrained(directory, engine=name, device="cpu").translate(
        ["the old sea"], samples=0, beam=2, nbest=2, length_penalty=0.6, max_extra_tokens=5
    )
    assert (found["text"], len(found["alternatives"])) == (expected.text, 1)


def test_words_are_never_told_of_a_model_that_came_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2")
    directory = save_model(tmp_path / "model", "en", "de", seed=1)
    model = Model(directory, Engine("ctranslate2", "cpu", "fp32", 1))
    load = bundle.load

    def late(path: Path, *, device: torch.device, dtype: torch.dtype) -> bundle.LoadedModel:
        loaded = load(path, device=device, dtype=dtype)
        save_model(directory, "en", "de", seed=4, overwrite=True)
        return loaded

    monkeypatch.setattr(bundle, "load", late)
    with pytest.raises(ModelError, match="the model was replaced, and this one is gone") as error:
        model.answer(["the sea"], Attend("das Meer"))
    assert error.value.hint == "whoever runs the server must have its models loaded again"
    monkeypatch.setattr(bundle, "load", None)  # what cannot be the same is not read
    with pytest.raises(ModelError, match="the model was replaced, and this one is gone"):
        model.answer(["the sea"], Attend("das Meer"))
    shutil.rmtree(directory)
    with pytest.raises(ModelError, match="the model was replaced, and this one is gone"):
        model.answer(["the sea"], Vary("", 3, 2))


def sentence(job: Search, *, tokens: int = 3) -> Sentence:
    return Sentence("the sea", tokens, job, "one", asyncio.get_running_loop().create_future())


def test_what_takes_too_long_or_has_no_client_leaves_the_queue(models: dict[str, Path]) -> None:
    async def run() -> None:
        model = ServedModel(models["en-de"], OPERATION, Metrics())  # nobody works
        translation = ServedTranslation(LIMITS)
        asker, other = Asker("one", asyncio.Future()), Asker("two", asyncio.Future())
        with pytest.raises(Refused, match="the translation took too long") as error:
            await translation.translate(["the sea\nthe sea"], model, SEARCH, by_sentence=True, asker=asker)
        assert (error.value.status, error.value.retry_after_seconds) == (503, 1)
        asker.gone.set_result(None)
        with pytest.raises(ClientGone):
            await translation.translate(["the sea"], model, SEARCH, by_sentence=True, asker=asker)
        with pytest.raises(Refused, match="10 sentences are too many"):
            await translation.translate(["sea\n" * 10], model, SEARCH, by_sentence=True, asker=asker)
        model.batcher.submit(late := [sentence(SEARCH, tokens=9999) for _ in range(2)])
        model.batcher.done([sentence(SEARCH, tokens=9999)], seconds=2)
        with pytest.raises(Refused, match=r"the server is 4 s behind, and a request may take 0\.2 s") as error:
            await translation.translate(["the sea"], model, SEARCH, by_sentence=True, asker=other)
        assert (error.value.status, error.value.retry_after_seconds) == (503, 2)
        for one in late:
            one.result.cancel()
        # All nine places are free again.
        waiting = asyncio.ensure_future(
            translation.translate(["sea\n" * 9], model, SEARCH, by_sentence=True, asker=other)
        )
        await asyncio.sleep(0)
        assert len(await asyncio.wait_for(model.batcher.take(), 5)) == 9
        waiting.cancel()

    asyncio.run(run())
