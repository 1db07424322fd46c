"""Attention maps against what the model computes with them, and how they are shown."""

from __future__ import annotations

import json
import resource
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmt_cli.artifacts import model_directory
from nmt_cli.artifacts.model_directory import LoadedModel
from nmt_cli.cli.attention import attention
from nmt_cli.decoding.attention_maps import AttentionMap, attention_between_pieces, attention_between_words
from nmt_cli.decoding.translator import LineTranslator
from nmt_cli.errors import DataError, NmtError, UsageError
from nmt_cli.model.layers import CrossAttention, SelfAttention
from nmt_cli.model.packing import pack
from nmt_cli.model.teacher_forcing import AttentionPart
from nmt_cli.tokenization.tokenizer import BOS, EOS
from tests.artifacts.builders import EN_DE, save_tiny, tiny_recipe
from tests.forks import run_forked

SOURCE, TARGET = "the old sea", "das alte Meer"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention")
    recipe = tiny_recipe(
        model={"encoder_layers": 1, "decoder_layers": 2, "encoder_window": 3}, decoding={"max_extra_tokens": 3}
    )
    save_tiny(folder / "model", spm_folder=folder, recipe=recipe)
    return folder


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return model_directory.load_model(folder / "model", device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("part", ["cross", "encoder", "decoder"])
def test_the_weights_are_those_that_mix_the_values(loaded: LoadedModel, part: AttentionPart) -> None:
    found = attention_between_pieces(loaded, SOURCE, TARGET, part=part, direction=EN_DE, device=CPU)
    model = loaded.model
    source = pack([[*loaded.source.encode([SOURCE])[0], EOS]], device=CPU)
    target = pack([[BOS, *loaded.target.encode([TARGET])[0]]], device=CPU)
    layers = model.encoder if part == "encoder" else model.decoder
    seen: list[tuple[torch.Tensor, ...]] = []
    for layer, weights_HTS in zip(layers, found.weights, strict=True):
        module = layer.cross_attention if part == "cross" else layer.self_attention
        assert isinstance(module, CrossAttention | SelfAttention)
        handle = module.register_forward_hook(lambda module, given, out: seen.append((given[0], out)))
        with torch.inference_mode():
            memory = model.encode(source)
            model.decode(target, memory, source)
            handle.remove()
            x, out = seen.pop()
            if isinstance(module, CrossAttention):
                values = module.kv(memory)[:, module.heads * module.d_k :]
            else:
                values = module.qkv(x)[:, 2 * module.heads * module.d_k :]
            v_HSV = values.unflatten(-1, (module.heads, module.d_v)).transpose(0, 1)
            mixed = (weights_HTS @ v_HSV).transpose(0, 1).flatten(1)
        torch.testing.assert_close(mixed, out, atol=1e-5, rtol=1e-5)
    assert found.weights.shape[-2:] == (len(found.rows), len(found.columns))
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(found.weights.shape[:-1]))


def test_the_map_of_the_encoder_needs_no_translation(loaded: LoadedModel) -> None:
    alone, with_target = (
        attention_between_pieces(loaded, SOURCE, target, part="encoder", direction=EN_DE, device=CPU)
        for target in (None, TARGET)
    )
    assert alone.rows == with_target.rows
    assert torch.equal(alone.weights, with_target.weights)


def test_words_have_the_attention_of_their_pieces(loaded: LoadedModel) -> None:
    words = attention_between_words(loaded, f"  {SOURCE} ", TARGET, direction=EN_DE, device=CPU)
    pieces = attention_between_pieces(loaded, SOURCE, TARGET, part="cross", direction=EN_DE, device=CPU)
    assert words.columns == ["the", "old", "sea", "</s>"]
    assert words.rows == ["das", "alte", "Meer", "</s>"]
    first = next(n for n in range(1, 9) if pieces.rows[n].startswith("\u2581"))
    second = next(n for n in range(1, 9) if pieces.columns[n].startswith("\u2581"))
    expected = pieces.weights[1, 0, :first, :second].sum(-1).mean()
    torch.testing.assert_close(words.weights[1, 0, 0, 0], expected)
    torch.testing.assert_close(words.weights.sum(-1), torch.ones(2, 2, 4))
    assert words.as_json()["weights"][1][0][0][0] == pytest.approx(float(expected), abs=6e-4)
    # Letters that the tokenizer spells in bytes are shown as they were written.
    spelt = attention_between_words(loaded, "שלום sea", TARGET, direction=EN_DE, device=CPU)
    assert spelt.columns == [
        "שלום",
        "sea",
        "</s>",
    ]


def test_a_drawing_has_a_panel_for_each_layer_and_head() -> None:
    weights = torch.full((2, 3, 2, 2), 0.5)
    found = AttentionMap("cross", ["<b>", "&"], ["c", "d"], weights)
    root = ElementTree.fromstring(found.as_svg(layers=[0, 1], heads=[0, 2, None]))
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    titles = [text for text in texts if text and text.startswith("layer")]
    assert titles == [
        f"layer {layer}, {head}" for layer in (1, 2) for head in ("head 1", "head 3", "mean of all heads")
    ]
    assert texts.count("<b>") == 6
    cells = [cell for cell in root.iter("{http://www.w3.org/2000/svg}rect") if cell.get("class") == "cell"]
    assert len(cells) == 24
    assert {cell.get("fill-opacity") for cell in cells} == {"0.500"}


def test_the_command(folder: Path) -> None:
    command = [sys.executable, "-m", "nmt_cli", "attention", "-m", "model", SOURCE]
    shown = run_forked([*command, TARGET, "--words"], cwd=folder)
    assert shown.returncode == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert [panel["title"] for panel in told["panels"]] == [f"layer {layer}, mean of all heads" for layer in (1, 2)]
    assert (told["rows"], told["columns"]) == (["das", "alte", "Meer", "</s>"], ["the", "old", "sea", "</s>"])
    assert sum(told["panels"][0]["weights"][0]) == pytest.approx(1, abs=4e-3)
    drawn = run_forked([*command, "--head", "all", "-o", "a.svg"], cwd=folder)
    assert drawn.returncode == 0, drawn.stderr
    assert drawn.stderr.splitlines()[-1] == "a.svg: written"
    assert (folder / "a.svg").read_text().startswith("<svg ")


def test_nothing_is_left_of_a_drawing_that_does_not_fit(folder: Path) -> None:
    small_files, output = (1000, resource.RLIM_INFINITY), folder / "large.svg"
    resource.setrlimit(resource.RLIMIT_FSIZE, small_files)
    try:
        with pytest.raises(DataError, match=r"cannot write large\.svg"):
            attention(SOURCE, TARGET, model=folder / "model", output=output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert not output.exists()


@pytest.mark.parametrize(
    ("source", "options", "error", "message", "hint"),
    [
        (SOURCE, {"layer": 3}, UsageError, "--layer is 3, and the model has 2", "a layer from 1 to 2"),
        (SOURCE, {"part": "encoder", "layer": 2}, UsageError, "--layer is 2, and the model has 1", "a layer from 1"),
        (SOURCE, {"head": "3"}, UsageError, "--head is 3, and the model has 2", "a head from 1 to 2, mean or all"),
        (SOURCE, {"head": "x"}, UsageError, "--head is x, and the model has 2", "a head from 1 to 2, mean or all"),
        (SOURCE, {"part": "encoder", "words": True}, UsageError, "--words is about", "leave --words out"),
        (SOURCE, {"output": Path("other.png")}, UsageError, "other.png would not be an SVG by its name", "-o other"),
        (SOURCE, {"output": Path("there.svg")}, UsageError, "exists already", "add --overwrite"),
        (
            SOURCE,
            {"translation": TARGET, "output": Path("there.svg/a.svg")},
            DataError,
            "cannot write a.svg",
            "with -o",
        ),
        ("sea " * 90, {"translation": TARGET}, DataError, "pieces, and the model takes 63", "give a shorter sentence"),
        (SOURCE, {"translation": " "}, DataError, "the translation is blank", "for example nmt attention"),
        (" ", {}, DataError, "the sentence is blank", "for example nmt attention"),
        ("caf\udce9", {}, DataError, "the byte 0xe9, which is not UTF-8", "write the text in UTF-8"),
        (SOURCE, {"translation": "caf\udce9"}, DataError, "the byte 0xe9", "write the text in UTF-8"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_anything_is_translated(
    source: str,
    options: dict[str, Any],
    error: type[NmtError],
    message: str,
    hint: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LineTranslator, "translate", None)
    monkeypatch.chdir(folder)
    Path("there.svg").write_text("")
    with pytest.raises(error) as refused:
        attention(source, **({"model": Path("model")} | options))
    assert message in refused.value.message
    assert hint in refused.value.hint


def test_the_models_own_blank_translation_is_not_taken_for_the_source(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LineTranslator, "translate", lambda self, lines, **_: [SimpleNamespace(text="")])
    with pytest.raises(DataError, match="the translation is blank"):
        attention(SOURCE, model=folder / "model")
