"""Both engines: the same options and translations, and what each refuses."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt_cli.api import Translator
from nmt_cli.artifacts.model_directory import load_model, save_model
from nmt_cli.artifacts.weights import weights_of
from nmt_cli.decoding import engine as engine_module
from nmt_cli.decoding.translation import Translation
from nmt_cli.devices import cpu_multiplies_bf16
from nmt_cli.errors import DeviceError, ModelError, UsageError
from nmt_cli.model import cpu_linear
from nmt_cli.model.cpu_linear import QuantizedLinear, can_quantize
from tests.artifacts.builders import save_tiny, tiny_recipe
from tests.decoding.trained import HELD_OUT

LINES = [source for source, _ in HELD_OUT[:100]]
# A line with blanks around it and a blank one.
LINES[5:7] = ["", f"  {LINES[5]} "]


@pytest.fixture(scope="module")
def theirs(trained: Path) -> Translator:
    pytest.importorskip("ctranslate2")
    return Translator.from_pretrained(trained, device="cpu", engine="ctranslate2")


def assert_close(ours: Translation, theirs: Translation) -> None:
    assert ours.text == theirs.text
    assert ours.score == pytest.approx(theirs.score, abs=1e-4)
    assert ours.log_prob == pytest.approx(theirs.log_prob, abs=1e-4)
    assert ours.num_pieces == theirs.num_pieces


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam": 1},
        {"beam": 5, "length_penalty": 1.0, "length_penalty_form": "length"},
        {"length_penalty_form": "none", "batch_tokens": 200},
        {"max_extra_tokens": 0},
    ],
)
def test_both_engines_give_the_same(translator: Translator, theirs: Translator, options: dict[str, Any]) -> None:
    pairs = list(zip(translator.translate(LINES, **options), theirs.translate(LINES, **options), strict=True))
    same = [(one, other) for one, other in pairs if one.text == other.text]
    # How a search ends is CTranslate2's own: a hypothesis that would have won may not be finished.
    assert len(same) >= 0.99 * len(pairs)
    for one, other in same:
        assert_close(one, other)
    assert pairs[5] == (Translation("", 0.0, 0.0, 0),) * 2


def test_lists_words_and_alignments_are_the_same(translator: Translator, theirs: Translator) -> None:
    options: dict[str, Any] = {"nbest": 2, "word_scores": True, "alignments": True}
    num_same = 0
    for one, other in zip(*(each.translate(LINES[:60], **options) for each in (translator, theirs)), strict=True):
        ranked, others = (one, *one.alternatives), (other, *other.alternatives)
        if [a.text for a in ranked] != [b.text for b in others]:
            continue
        num_same += 1
        for a, b in zip(ranked, others, strict=True):
            assert_close(a, b)
            assert a.word_log_probs == pytest.approx(b.word_log_probs, abs=1e-4)
            assert a.alignment == b.alignment
            assert len(a.word_log_probs) == (len(a.text.split()) + 1 if a.text else 0)
    assert num_same >= 57


def test_both_engines_align_by_a_guided_head(trained: Path, translator: Translator, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    loaded = load_model(trained, device=torch.device("cpu"), dtype=torch.float32)
    save_model(
        tmp_path / "guided",
        config=loaded.config.model_copy(update={"guided_layer": 1}),
        weights=weights_of(loaded.model),
        source_spm=(trained / "source.spm").read_bytes(),
        target_spm=(trained / "target.spm").read_bytes(),
        card="",
        overwrite=False,
    )
    by_head, by_their_head = (
        Translator.from_pretrained(tmp_path / "guided", device="cpu", engine=engine).translate(LINES, alignments=True)
        for engine in ("torch", "ctranslate2")
    )
    same = [(one, other) for one, other in zip(by_head, by_their_head, strict=True) if one.text == other.text]
    assert len(same) >= 0.99 * len(LINES)
    assert all(one.alignment == other.alignment for one, other in same)
    by_mean = translator.translate(LINES, alignments=True)
    assert [one.text for one in by_mean] == [one.text for one in by_head]
    assert [one.alignment for one in by_mean] != [one.alignment for one in by_head]


def test_prefixes_are_forced_by_both(translator: Translator, theirs: Translator) -> None:
    prefixes = [" ".join(target.split()[: number % 3]) for number, (_, target) in enumerate(HELD_OUT[10:40])]
    pairs = list(zip(*(each.translate(LINES[10:40], prefixes=prefixes) for each in (translator, theirs)), strict=True))
    assert all(one.text.startswith(prefix) for (one, _), prefix in zip(pairs, prefixes, strict=True))
    same = [(one, other) for one, other in pairs if one.text == other.text]
    assert len(same) >= 29
    for one, other in same:
        assert_close(one, other)


def test_min_tokens_hold_for_both(translator: Translator, theirs: Translator) -> None:
    prefixes = ["" if number % 2 else target.split()[0] for number, (_, target) in enumerate(HELD_OUT[10:20])]
    options: dict[str, Any] = {"beam": 1, "min_tokens": 25, "prefixes": prefixes}
    for one, other in zip(*(each.translate(LINES[10:20], **options) for each in (translator, theirs)), strict=True):
        assert one.num_pieces >= 25
        assert_close(one, other)
    assert min(one.num_pieces for one in translator.translate(LINES[10:20], min_tokens=25)) >= 25


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_int8_is_near(engine: str, translator: Translator, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    elif not can_quantize():
        pytest.skip("this CPU does not multiply 8-bit integers exactly")
    monkeypatch.setattr(cpu_linear, "_SMALL_MATRIX_ELEMENTS", 0)  # matrices of the model are small
    quantised = Translator.from_pretrained(trained, device="cpu", engine=engine, precision="int8")
    assert (quantised.engine, quantised.precision, quantised.device) == (engine, "int8", "cpu")
    pairs = list(zip(translator.translate(LINES[:100]), quantised.translate(LINES[:100]), strict=True))
    assert sum(one.text == other.text for one, other in pairs) >= 80


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_a_translation_may_take_all_positions(tmp_path: Path, positions: str) -> None:
    pytest.importorskip("ctranslate2")
    recipe = tiny_recipe(
        model={"positions": positions, "max_positions": 32}, decoding={"beam": 1, "max_extra_tokens": 20}
    )
    save_tiny(tmp_path / "model", spm_folder=tmp_path, recipe=recipe)
    options: dict[str, Any] = {"word_scores": True, "alignments": True, "min_tokens": 40}
    by_torch, by_ctranslate2 = (
        Translator.from_pretrained(tmp_path / "model", device="cpu", engine=engine).translate(
            ["Haus am alten Meer", "the"], **options
        )
        for engine in ("torch", "ctranslate2")
    )
    assert by_torch[0].num_pieces == 32
    for one, other in zip(by_torch, by_ctranslate2, strict=True):
        assert_close(one, other)
        assert one.alignment == other.alignment
        assert one.alignment
        assert sum(one.word_log_probs) == pytest.approx(one.log_prob, abs=1e-4)


@pytest.mark.parametrize(("options", "setting"), [({"samples": 2}, "samples"), ({"min_tokens": 5}, "min_tokens")])
def test_settings_that_ctranslate2_does_not_have_are_refused(
    theirs: Translator, options: dict[str, Any], setting: str
) -> None:
    with pytest.raises(UsageError) as error:
        theirs.translate(["a"], **options)
    assert error.value.setting == setting


@pytest.mark.parametrize(("models", "options", "setting"), [(2, {}, "model"), (1, {"precision": "bf16"}, "precision")])
def test_models_and_precisions_that_ctranslate2_does_not_have_are_refused(
    trained: Path, models: int, options: dict[str, str], setting: str
) -> None:
    with pytest.raises(UsageError) as error:
        Translator.from_pretrained([trained] * models, engine="ctranslate2", **options)
    assert error.value.setting == setting


def test_a_model_that_ctranslate2_does_not_support_is_refused_before_it_is_converted(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    save_tiny(tmp_path / "model", spm_folder=tmp_path, recipe=tiny_recipe(model={"encoder_window": 5}))
    with pytest.raises(ModelError) as error:
        Translator.from_pretrained(tmp_path / "model", engine="ctranslate2")
    assert error.value.where == "model.encoder_window"
    assert not (tmp_path / ".model.ctranslate2").exists()


def test_int8_of_torch_is_for_cpus_that_have_it(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_linear, "can_quantize", lambda: False)
    with pytest.raises(DeviceError) as problem:
        Translator.from_pretrained(trained, precision="int8")
    assert problem.value.setting == "precision"
    monkeypatch.setattr(engine_module, "choose_device", lambda name: torch.device(name))
    with pytest.raises(UsageError, match="int8 is for CPUs"):
        Translator.from_pretrained(trained, precision="int8", device="cuda")


def test_a_model_too_small_for_int8_says_what_it_is_computed_in(trained: Path) -> None:
    if not can_quantize():
        pytest.skip("this CPU does not multiply 8-bit integers exactly")
    translator = Translator.from_pretrained(trained, device="cpu", precision="int8")
    assert translator.precision == ("bf16" if cpu_multiplies_bf16() else "fp32")


def test_int8_with_several_models_and_with_a_window(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_quantize():
        pytest.skip("this CPU does not multiply 8-bit integers exactly")
    monkeypatch.setattr(cpu_linear, "_SMALL_MATRIX_ELEMENTS", 0)
    single, twice = (
        Translator.from_pretrained(models, device="cpu", precision="int8") for models in (trained, [trained, trained])
    )
    for one, other in zip(single.translate(LINES[:20]), twice.translate(LINES[:20]), strict=True):
        assert one.text == other.text
        assert one.score == pytest.approx(other.score, abs=1e-5)
    save_tiny(tmp_path / "window", spm_folder=tmp_path, recipe=tiny_recipe(model={"encoder_window": 5}))
    windowed = Translator.from_pretrained(tmp_path / "window", device="cpu", precision="int8")
    assert (windowed.engine, windowed.precision) == ("torch", "int8")
    assert windowed.translate(LINES[:1])[0].text


def test_a_cpu_that_clips_sums_has_no_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    def clipped(linear: QuantizedLinear, x: torch.Tensor) -> torch.Tensor:
        return product(linear, x).clamp(max=50)

    product = QuantizedLinear.forward
    monkeypatch.setattr(QuantizedLinear, "forward", clipped)
    assert not can_quantize()


def test_without_the_package_the_line_to_install_it_is_told(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UsageError, match="the package ctranslate2 is not installed") as error:
        Translator.from_pretrained(trained, engine="ctranslate2")
    assert error.value.hint == 'pip install "nmt-cli[export]", or pip install ctranslate2'
    assert Translator.from_pretrained(trained, device="cpu").translate(LINES[:1])[0].text


def test_models_of_different_vocabularies_do_not_translate_together(tmp_path: Path, trained: Path) -> None:
    save_tiny(tmp_path / "other", spm_folder=tmp_path)
    with pytest.raises(ModelError, match="source pieces") as error:
        Translator.from_pretrained([trained, tmp_path / "other"], device="cpu")
    assert error.value.where == str(tmp_path / "other")


def test_models_of_different_languages_do_not_translate_together(tmp_path: Path) -> None:
    save_tiny(tmp_path / "first", spm_folder=tmp_path)
    save_tiny(tmp_path / "second", spm_folder=tmp_path, languages="en-fr")
    with pytest.raises(ModelError, match="en-fr") as error:
        Translator.from_pretrained([tmp_path / "first", tmp_path / "second"], device="cpu")
    assert error.value.where == f"{tmp_path}/second"


def test_models_of_one_vocabulary_translate_together(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("first", "second")]
    for seed, path in enumerate(paths, 1):
        save_tiny(path, spm_folder=tmp_path, seed=seed)
    lines = ["the old sea", "a small house"]
    texts = [
        [one.text for one in Translator.from_pretrained(chosen, device="cpu").translate(lines)]
        for chosen in (paths, paths[:1], paths[1:])
    ]
    assert texts[0] != texts[1]
    assert texts[1] != texts[2]
    shutil.rmtree(paths[1])
    with pytest.raises(ModelError, match="there is no model directory"):
        Translator.from_pretrained(paths, device="cpu")
