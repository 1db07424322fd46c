"""The model directory is written whole, read strictly, and found."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor

from nmt_cli.artifacts import model_directory, weights
from nmt_cli.artifacts.manifest import write_manifest
from nmt_cli.artifacts.model_directory import (
    LoadedModel,
    SavedModelConfig,
    dump_saved_config,
    load_model,
    load_saved_config,
)
from nmt_cli.artifacts.run import model_of_latest_run
from nmt_cli.errors import ModelError
from nmt_cli.model.packing import pack
from nmt_cli.model.transformer import Transformer
from nmt_cli.training.master_weights import MasterWeights
from tests.artifacts.builders import (
    save_tiny,
    spm_bytes,
    tiny_config,
    tiny_model,
    tiny_recipe,
    write_checkpoint,
    write_run,
)
from tests.forks import run_forked

CPU = torch.device("cpu")


def load_on_cpu(path: Path) -> LoadedModel:
    return load_model(path, device=CPU, dtype=torch.float32)


def logits(model: Transformer) -> Tensor:
    source = pack([[5, 6, 7, 3], [8, 3]], device=CPU)
    target = pack([[2, 9, 10], [2, 11, 12, 13]], device=CPU)
    with torch.inference_mode():
        return model.logits(model.decode(target, model.encode(source), source))


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


@pytest.mark.parametrize("tying", ["all", "target", "none"])
@pytest.mark.parametrize("positions", ["sinusoidal", "sinusoidal-halves", "learned"])
def test_the_loaded_model_computes_what_the_saved_one_did(tmp_path: Path, tying: str, positions: str) -> None:
    recipe = tiny_recipe(model={"tying": tying, "positions": positions, "norm": "pre", "attention_bias": True})
    saved = save_tiny(tmp_path / "m", spm_folder=tmp_path, recipe=recipe)
    loaded = load_on_cpu(tmp_path / "m")
    assert torch.equal(logits(loaded.model), logits(saved))
    assert not loaded.model.training
    assert loaded.config == tiny_config(recipe, updates=[7])
    assert loaded.source.decode(loaded.target.encode(["a small sea"])) == ["a small sea"]


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned"])
def test_in_bf16_weights_are_rounded_and_training_and_decoding_have_the_tables_of_float32(
    tmp_path: Path, positions: str
) -> None:
    recipe = tiny_recipe(model={"positions": positions})
    trained = save_tiny(tmp_path / "m", spm_folder=tmp_path, recipe=recipe).eval()
    exact = {name: buffer.clone() for name, buffer in trained.named_buffers()}
    MasterWeights(trained, precision="bf16")
    loaded = load_model(tmp_path / "m", device=CPU, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    for model in (trained, loaded.model):
        buffers = dict(model.named_buffers())
        assert buffers.keys() == exact.keys()
        assert all(torch.equal(buffers[name], exact[name]) for name in exact)
    assert bool(exact) == (positions != "learned")
    assert logits(loaded.model).dtype == torch.bfloat16
    assert torch.equal(logits(loaded.model), logits(trained))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    model = tiny_model(tiny_recipe())
    with torch.no_grad():
        model.output_weight[-1, -1] = value
    save_tiny(tmp_path / "m", spm_folder=tmp_path, model=model)
    with pytest.raises(ModelError, match="the tensor output_weight has values that are not finite") as caught:
        load_model(tmp_path / "m", device=CPU, dtype=torch.float32)
    assert caught.value.where == str(tmp_path / "m" / "model.safetensors")


def test_two_vocabularies_keep_their_sizes(tmp_path: Path) -> None:
    recipe = tiny_recipe(model={"tying": "none"})
    model = tiny_model(recipe, source_vocab=300, target_vocab=310)
    model_directory.save_model(
        tmp_path / "m",
        config=tiny_config(recipe, source_vocab=300, target_vocab=310, updates=[1]),
        weights=weights.weights_of(model),
        source_spm=spm_bytes(),
        target_spm=spm_bytes(310),
        card="",
        overwrite=False,
    )
    loaded = load_on_cpu(tmp_path / "m")
    assert (loaded.source.vocab_size, loaded.target.vocab_size) == (300, 310)
    assert torch.equal(logits(loaded.model), logits(model))


@pytest.mark.parametrize("text", ["5e-4", "1e3", "0o14", "no"])
def test_the_configuration_survives_yaml(tmp_path: Path, text: str) -> None:
    recipe = tiny_recipe(
        name=text,
        description=text,
        training={"optimizer": {"name": "adamw", "epsilon": 1e-9, "weight_decay": 5e-4}},
    )
    languages = {"source": "no", "target": "en"}
    config = tiny_config(recipe, updates=[1, 20, 300]).model_dump() | {"languages": languages}
    save_tiny(tmp_path / "m", spm_folder=tmp_path)
    (tmp_path / "m" / "config.yaml").write_text(dump_saved_config(SavedModelConfig.model_validate(config)))
    assert load_saved_config(tmp_path / "m").model_dump() == config


@pytest.mark.parametrize("file", ["config.yaml", "model.safetensors", "source.spm", "target.spm"])
def test_every_file_is_checked(tmp_path: Path, file: str) -> None:
    save_tiny(tmp_path / "m", spm_folder=tmp_path)
    path = tmp_path / "m" / file
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ModelError, match=f"{file} was changed .* or comes from another directory") as caught:
        load_on_cpu(tmp_path / "m")
    assert caught.value.where == str(path)
    assert "nmt average runs/NAME" in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("d_ff: 24", "d_ff: 25", "feed_forward.inner.weight has shape [24, 16], but should have [25, 16]"),
        ("e: 300\n  target: 300", "e: 301\n  target: 301", "source.spm has 300 pieces, but config.yaml says 301"),
        ("  target: 300", "  target: 301", "tying: all needs one vocabulary, not 300 and 301 pieces"),
        ("d_ff: 24", "d_fff: 24", "recipe.model.d_fff"),
        ("format: 1", "format: [", "this is not YAML"),
        ("source: en", 'source: "e\\e[31mn"', "languages.source is 'e\\x1b[31mn', but should match"),
        # Memory for this would be more than any machine has: nothing is made before shapes are compared.
        ("d_ff: 24", "d_ff: 100000000000", "shape [24, 16], but should have [100000000000, 16]"),
        ("max_positions: 64", "max_positions: 2000000000", "recipe.model.max_positions is 2000000000, but should be"),
    ],
)
def test_a_configuration_that_does_not_fit_is_explained(tmp_path: Path, old: str, new: str, message: str) -> None:
    save_tiny(tmp_path / "m", spm_folder=tmp_path)
    file = tmp_path / "m" / "config.yaml"
    file.write_text(file.read_text().replace(old, new))
    write_manifest(tmp_path / "m", {"kind": "model", "updates": [7]})  # as another version might have written it
    with pytest.raises(ModelError) as caught:
        load_on_cpu(tmp_path / "m")
    assert message in caught.value.message
    assert caught.value.where
    assert str(tmp_path / "m") in caught.value.where


@pytest.mark.parametrize("file", ["source.spm"])
def test_a_tokenizer_that_was_damaged_before_it_was_hashed_is_an_error_of_the_model(tmp_path: Path, file: str) -> None:
    save_tiny(tmp_path / "m", spm_folder=tmp_path)
    path = tmp_path / "m" / file
    for before, after in (("\u2581".encode(), b"\xe2\x96\xff"), (path.read_bytes()[:200], b"")):
        path.write_bytes(path.read_bytes().replace(before, after))
        write_manifest(tmp_path / "m", {"kind": "model", "updates": [7]})
        with pytest.raises(ModelError, match=f"{file} is not a SentencePiece model") as caught:
            load_on_cpu(tmp_path / "m")
        assert caught.value.where == str(path)
        assert caught.value.hint.startswith("remove the directory, and copy or import it again")


def test_what_another_toolkit_made_is_no_model_of_ours(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.pt").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"other is not a model directory: it has no config.yaml"):
        load_on_cpu(tmp_path / "other")
    with pytest.raises(ModelError, match=r"model.pt is a file, not a model directory"):
        load_on_cpu(tmp_path / "other" / "model.pt")
    (tmp_path / "marian").mkdir()
    (tmp_path / "marian" / "model.npz").write_bytes(b"x")
    with pytest.raises(ModelError, match="is a Marian model, which must be imported first") as caught:
        load_on_cpu(tmp_path / "marian")
    assert caught.value.hint.startswith(f"nmt import {tmp_path}/marian --languages en-de -o models/")


def test_our_other_directories_say_what_to_type(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "x"
    write_run(run, updates=1)
    cases = {
        run / "checkpoints" / "update-00000100": f"nmt average {run}/checkpoints/update-00000100 -o MODEL",
        tmp_path / "nowhere": "check the path",
        tmp_path / "exported": "--engine ctranslate2",
    }
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "model.bin").write_bytes(b"")
    for path, hint in cases.items():
        with pytest.raises(ModelError) as caught:
            load_on_cpu(path)
        assert hint in caught.value.hint
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "manifest.json").write_text('{"kind": ["model"]}')
    with pytest.raises(ModelError, match="strange is not a model directory"):
        load_on_cpu(tmp_path / "strange")


def test_only_an_old_model_is_replaced_and_only_when_asked(tmp_path: Path) -> None:
    save_tiny(tmp_path / "m", spm_folder=tmp_path, seed=1)
    with pytest.raises(ModelError, match="exists already") as caught:
        save_tiny(tmp_path / "m", spm_folder=tmp_path, seed=2)
    assert "--overwrite" in caught.value.hint
    saved = save_tiny(tmp_path / "m", spm_folder=tmp_path, seed=2, overwrite=True)
    assert torch.equal(logits(load_on_cpu(tmp_path / "m").model), logits(saved))
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("x")
    with pytest.raises(ModelError, match="is not a model directory, so it is not replaced"):
        save_tiny(precious, spm_folder=tmp_path, overwrite=True)
    assert names(precious) == ["thesis.tex"]
    (tmp_path / "empty").mkdir()
    save_tiny(tmp_path / "empty", spm_folder=tmp_path)


def full_disk(tensors: Mapping[str, Tensor], file: Path, **options: object) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def no_room_to_sync(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("stage", ["write", "fsync"])
def test_a_full_disk_is_said_and_the_old_model_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    old = save_tiny(tmp_path / "m", spm_folder=tmp_path, seed=1)
    if stage == "write":
        monkeypatch.setattr(weights, "save_file", full_disk)
    else:
        monkeypatch.setattr(os, "fsync", no_room_to_sync)
    with pytest.raises(ModelError) as caught:
        save_tiny(tmp_path / "m", spm_folder=tmp_path, seed=2, overwrite=True)
    assert caught.value.message == "cannot write m: the disk is full"
    assert caught.value.where == str(tmp_path / "m")
    assert "free some space" in caught.value.hint
    assert torch.equal(logits(load_on_cpu(tmp_path / "m").model), logits(old))
    assert names(tmp_path) == ["m", "shared.spm"]


KILLED_WHILE_SAVING = """
import os, signal, sys
from pathlib import Path
from tests.artifacts.builders import save_tiny
syncs = 0
def fsync(descriptor):
    global syncs
    syncs += 1
    if syncs == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
save_tiny(Path(sys.argv[1]) / "m", spm_folder=Path(sys.argv[1]) / "spm", seed=2, overwrite=True)
"""


@pytest.mark.parametrize("sync", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_kill_9_while_saving_leaves_the_old_model(tmp_path: Path, repository: Path, sync: int) -> None:
    old = save_tiny(tmp_path / "m", spm_folder=tmp_path / "spm", seed=1)
    command = [sys.executable, "-c", KILLED_WHILE_SAVING, str(tmp_path), str(sync)]
    assert run_forked(command, cwd=repository).returncode == -signal.SIGKILL
    assert torch.equal(logits(load_on_cpu(tmp_path / "m").model), logits(old))


def test_the_newest_model_is_the_one_finished_last(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for run in ("a", "b", "unfinished"):
        write_run(runs / run)
    for age, (run, name) in enumerate([("b", "averaged"), ("a", "model")]):
        save_tiny(runs / run / name, spm_folder=tmp_path, update=100)
        os.utime(runs / run / name / "manifest.json", (1_000_000 + age, 1_000_000 + age))
    assert model_of_latest_run(runs) == runs / "a" / "model"
    save_tiny(runs / "b" / "model", spm_folder=tmp_path, update=100)
    assert model_of_latest_run(runs) == runs / "b" / "averaged"
    save_tiny(runs / "b" / "model", spm_folder=tmp_path, update=200, overwrite=True)
    assert model_of_latest_run(runs) == runs / "b" / "model"


def test_without_a_model_the_error_names_the_whole_path_and_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=f"there is no model: {runs} holds no runs") as caught:
        model_of_latest_run(Path("runs"))
    assert caught.value.hint == "name a model with -m MODEL, or train one: nmt train RECIPE"
    save_tiny(Path("models/my model"), spm_folder=tmp_path)
    with pytest.raises(ModelError) as caught:
        model_of_latest_run(Path("runs"))
    assert caught.value.hint.startswith("name a model with -m 'models/my model', or ")
    write_run(runs / "x")
    write_checkpoint(runs / "x", 1, weights={"w": torch.zeros(1)})
    with pytest.raises(ModelError, match=r"no run in .* has a finished model") as caught:
        model_of_latest_run(runs)
    assert f"nmt average {runs / 'x'}" in caught.value.hint
