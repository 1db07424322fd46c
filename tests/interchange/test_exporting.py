"""Exports of random models: every architecture that a target takes agrees with ours, and what differs is refused."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from nmt_cli.api import Translator
from nmt_cli.artifacts.manifest import write_manifest
from nmt_cli.artifacts.model_card import render_card
from nmt_cli.artifacts.run import open_run
from nmt_cli.decoding.ctranslate2 import model as our_ctranslate2
from nmt_cli.devices import Quantization
from nmt_cli.errors import DataError, ModelError
from nmt_cli.interchange.exporting import Target, export
from nmt_cli.interchange.marian_weights import marian_weights
from nmt_cli.interchange.other_programs import CTranslate2Program
from nmt_cli.interchange.verification import TOLERANCE, Agreement
from nmt_cli.model import weight_layout
from nmt_cli.tokenization.tokenizer import BOS, EOS
from tests.artifacts.builders import save_tiny, write_run
from tests.interchange.builders import load, recipe_with, save_sharp

BOTH: tuple[Target, ...] = ("ctranslate2", "huggingface")
# tests/test_variants.py has each setting alone.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "biases, silu, learned positions": {"attention_bias": True, "activation": "silu", "positions": "learned"},
    "narrow heads, gelu": {"d_k": 4, "d_v": 6, "activation": "gelu"},
    "output bias, tensor2tensor's positions": {"output_bias": True, "positions": "sinusoidal-halves"},
}
# What MarianMTModel has no place for.
FOR_CTRANSLATE2: dict[str, dict[str, Any]] = {
    "all that is newer": {"norm": "pre", "norm_type": "rms", "activation": "swiglu", "positions": "rotary"},
    "rotary, wide keys": {"positions": "rotary", "d_k": 12, "d_v": 6},
    "pre-norm": {"norm": "pre", "norm_epsilon": 1e-3},
    "wide heads": {"d_k": 12, "d_v": 4},
    "heads that do not divide": {"heads": 3, "d_k": 8, "d_v": 8},
}


def exported(
    model: Path,
    to: Target,
    *,
    quantization: Quantization = "float32",
    lines: list[str] | None = None,
    overwrite: bool = False,
) -> tuple[Path, Agreement]:
    pytest.importorskip("ctranslate2" if to == "ctranslate2" else "transformers")
    output = model.with_name(to)
    agreement = export(model, output, to=to, quantization=quantization, lines=lines, overwrite=overwrite)
    assert agreement is not None
    return output, agreement


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("to", BOTH)
def test_every_architecture_agrees(to: Target, name: str, tmp_path: Path) -> None:
    _, agreement = exported(save_sharp(tmp_path / "m", recipe_with(ARCHITECTURES[name])), to)
    # Marian's norm_epsilon is 1e-5 and this model's 1e-6: of a piece with a log-probability of -10 that is 1e-4.
    assert agreement.largest_difference < 2e-4
    assert agreement.num_lines == 20


@pytest.mark.parametrize("name", FOR_CTRANSLATE2)
def test_ctranslate2_takes_more(name: str, tmp_path: Path) -> None:
    model = save_sharp(tmp_path / "m", recipe_with(FOR_CTRANSLATE2[name]))
    _, agreement = exported(model, "ctranslate2")
    assert agreement.largest_difference < 5e-5
    with pytest.raises(ModelError, match="MarianMTModel has no place for") as caught:
        exported(model, "huggingface")
    assert caught.value.hint == "nmt export --to ctranslate2 may take it; nmt decode does"
    assert not (tmp_path / "huggingface").exists()


@pytest.mark.parametrize("to", BOTH)
def test_a_model_that_samples_by_default_is_compared_by_search(to: Target, tmp_path: Path) -> None:
    _, agreement = exported(save_sharp(tmp_path / "m", recipe_with({"max_positions": 96}, samples=2, beam=1)), to)
    assert agreement.largest_difference < TOLERANCE


@pytest.mark.parametrize("to", BOTH)
def test_weights_that_came_over_wrongly_are_refused(
    to: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = weight_layout.attention_projections

    def wrong(module: Any, *, width: int) -> weight_layout.AttentionProjections:
        parts = right(module, width=width)
        return weight_layout.AttentionProjections(
            weight_layout.Affine(parts.q.weight * 1.01, parts.q.bias), parts.k, parts.v, parts.output
        )

    module = "decoding.ctranslate2.model" if to == "ctranslate2" else "interchange.marian_weights"
    monkeypatch.setattr(f"nmt_cli.{module}.attention_projections", wrong)
    with pytest.raises(ModelError, match="is not the same model as ours: it gives other scores") as caught:
        exported(save_sharp(tmp_path / "m"), to)
    assert "nothing was written" in caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "spm"]


def test_reduced_precisions_are_smaller_and_leave_the_model_as_it_was(tmp_path: Path) -> None:
    model = save_sharp(tmp_path / "m")
    sizes: dict[str, int] = {}
    precisions: list[Quantization] = ["float32", "float16", "int16", "int8"]
    for quantization in precisions:
        output, agreement = exported(model, "ctranslate2", quantization=quantization, overwrite=True)
        sizes[quantization] = (output / "model.bin").stat().st_size
        assert agreement.mean_difference < (TOLERANCE if quantization == "float32" else 0.1)
    assert max(sizes["int8"], sizes["float16"]) < sizes["float32"]
    loaded = load(model)
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    (tmp_path / "again").mkdir()
    our_ctranslate2.write_ctranslate2(loaded, tmp_path / "again", quantization="int8")
    assert all(torch.equal(tensor, before[name]) for name, tensor in loaded.model.state_dict().items())


def test_a_reduced_precision_that_destroys_the_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = CTranslate2Program.log_probs

    def wrong(self: CTranslate2Program, *arguments: Any) -> list[list[float]]:
        scale = 1.0 if self.name.endswith("(float32)") else 3.0
        return [[value * scale for value in row] for row in right(self, *arguments)]

    monkeypatch.setattr(CTranslate2Program, "log_probs", wrong)
    with pytest.raises(
        ModelError, match=r"\(int8.*\) changes the model too much: log-probabilities per piece"
    ) as caught:
        exported(save_sharp(tmp_path / "m"), "ctranslate2", quantization="int8")
    assert caught.value.hint == "export in another precision, such as `precision: float32`"


@pytest.mark.parametrize("to", BOTH)
def test_the_code_in_the_card_runs_and_the_models_own_card_follows_without_our_commands(
    to: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_sharp(tmp_path / "m")
    write_run(tmp_path / "run", updates=4)
    run = open_run(tmp_path / "run")
    own = render_card(
        run, config=run.saved_config_of([400]), num_parameters=1, commands=[["nmt", "train", "tiny.yaml"]]
    )
    assert "nmt decode -m MODEL" in own
    (model / "README.md").write_text(own, encoding="utf-8")
    output, _ = exported(model, to)
    card = (output / "README.md").read_text(encoding="utf-8")
    front, ours = yaml.safe_load(card.split("---\n")[1]), yaml.safe_load(own.split("---\n")[1])
    library = "ctranslate2" if to == "ctranslate2" else "transformers"
    assert front == ours | {"library_name": library, "pipeline_tag": "translation"}
    for command in ("nmt decode", "nmt score", "nmt_cli", "MODEL"):
        assert command not in card
    for heading in ("# For ", "# tiny: en to de", "## How it was made", "## Scores", "## Limits"):
        assert f"\n{heading}" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    monkeypatch.chdir(output)
    exec(code, {})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("own", "rest"),
    [("---\n: [\n---\nText.\n", "Text.\n"), ("# Mine\n\n## Use\n\nSo.\n", "# Mine\n\n")],
)
def test_a_card_of_ones_own_is_taken_as_it_is(own: str, rest: str, tmp_path: Path) -> None:
    model = save_sharp(tmp_path / "m")
    (model / "README.md").write_text(own, encoding="utf-8")
    output, _ = exported(model, "ctranslate2")
    card = (output / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlanguage:\n- en\n- de\nlibrary_name: ctranslate2\n")
    assert card.endswith(f"The rest is the card of that model.\n\n{rest}")


def test_the_huggingface_files_say_how_to_decode(tmp_path: Path) -> None:
    output, _ = exported(save_sharp(tmp_path / "m", recipe_with(beam=5, length_penalty=0.8)), "huggingface")
    generation = json.loads((output / "generation_config.json").read_text(encoding="utf-8"))
    assert (generation["num_beams"], generation["length_penalty"]) == (5, 0.8)
    assert (generation["decoder_start_token_id"], generation["forced_eos_token_id"]) == (2, None)
    weights = marian_weights(load(tmp_path / "m").model)
    assert weights["model.shared.weight"].shape == (300, 16)  # without the rows that pad ours


@pytest.mark.parametrize("to", BOTH)
def test_lines_of_ones_own_are_compared(to: Target, tmp_path: Path) -> None:
    model = save_sharp(tmp_path / "m")
    words = ["a", "small", "house", "stands", "by", "the", "old", "sea"]
    lines = [" ".join(words[place % 8] for place in range(number, number + number % 7 + 1)) for number in range(12)]
    _, agreement = exported(model, to, lines=[*lines, "", *lines])
    assert agreement.num_lines == len(set(lines))
    with pytest.raises(DataError, match="1 of its 3 lines can be compared, and 10 are needed") as caught:
        exported(model, to, lines=["a small house", "", "old " * 200], overwrite=True)
    assert "leave `input` out" in caught.value.hint


def test_without_transformers_an_export_is_written_and_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = save_sharp(tmp_path / "m")
    monkeypatch.setitem(sys.modules, "transformers", None)
    output = tmp_path / "x"
    assert export(model, output, to="huggingface", quantization="float32", lines=None, overwrite=False) is None
    assert "not compared with transformers: the package transformers is not installed" in caplog.text
    assert "It was not compared with its model." in (output / "README.md").read_text(encoding="utf-8")


def test_only_an_export_of_the_same_kind_is_replaced(tmp_path: Path) -> None:
    model = save_sharp(tmp_path / "m")
    exported(model, "ctranslate2")
    exported(model, "ctranslate2", overwrite=True)
    for other in (model, tmp_path / "spm"):
        with pytest.raises(
            ModelError, match="exists and is not a CTranslate2 model of nmt export, so it is not replaced"
        ):
            export(model, other, to="ctranslate2", quantization="float32", lines=None, overwrite=True)
    (tmp_path / "empty").mkdir()
    export(model, tmp_path / "empty", to="ctranslate2", quantization="float32", lines=None, overwrite=False)
    (tmp_path / "project" / "thesis").mkdir(parents=True)
    (tmp_path / "project" / "config.json").write_text("{}")
    for name in ("source.spm", "target.spm", "README.md"):  # as a clone of OPUS-MT's has them
        (tmp_path / "project" / name).write_text("---\nlicense: mit\n---\nNot by `nmt export`\n")
    with pytest.raises(ModelError, match="exists and is not a Hugging Face model of nmt export"):
        export(model, tmp_path / "project", to="huggingface", quantization="float32", lines=None, overwrite=True)
    assert (tmp_path / "project" / "thesis").is_dir()


def test_the_licence_in_a_model_directory_goes_with_it(tmp_path: Path) -> None:
    model = save_sharp(tmp_path / "m")
    (model / "LICENSE").write_text("mine", encoding="utf-8")
    output, _ = exported(model, "ctranslate2")
    assert (output / "LICENSE").read_text(encoding="utf-8") == "mine"


def test_transformers_searches_for_at_least_as_many_pieces_as_the_recipe_asks_for(tmp_path: Path) -> None:
    recipe = recipe_with({"output_bias": True}, min_tokens=5)
    model = load(save_sharp(tmp_path / "m", recipe)).model
    assert model.output_bias is not None
    with torch.no_grad():
        model.output_bias[EOS] = 20
    save_tiny(tmp_path / "ends", spm_folder=tmp_path, recipe=recipe, model=model)
    output, _ = exported(tmp_path / "ends", "huggingface")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.MarianTokenizer.from_pretrained(output)
    batch = tokenizer(["a small house"], return_tensors="pt")
    (found,) = transformers.MarianMTModel.from_pretrained(output).generate(**batch).tolist()
    start, *pieces, end = found
    assert (start, len(pieces), end) == (BOS, 5, EOS)
    (ours,) = Translator.from_pretrained(tmp_path / "ends", device="cpu").translate(["a small house"])
    assert ours.text == tokenizer.decode(pieces)


def test_a_model_of_a_newer_nmt_is_named_as_such(tmp_path: Path) -> None:
    model = save_sharp(tmp_path / "m")
    config = (model / "config.yaml").read_text(encoding="utf-8")
    changes = {"format: 1": "format: 2", "    norm: post": "    norm: post\n    rotary: true"}
    for old, new in changes.items():
        newer = config.replace(old, new, 1).replace("nmt_version: 0.1.0", "nmt_version: 9.0.0")
        (model / "config.yaml").write_text(newer, encoding="utf-8")
        write_manifest(model, {"kind": "model", "updates": [7]})
        with pytest.raises(ModelError, match=r"config.yaml was written by nmt 9.0.0, and this is ") as caught:
            exported(model, "ctranslate2")
        assert caught.value.hint == "pip install nmt-cli==9.0.0"
