"""Models on a local hub in the layout of OPUS-MT's and NLLB's repositories, and `nmt` as a process that uses it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from subprocess import PIPE, CompletedProcess, Popen
from typing import Any

import torch

from nmt_cli.artifacts.weights import read_tensors
from tests.forks import Forked, run_forked
from tests.hub import Hub
from tests.interchange.builders import SHAPE, write_m2m100, write_marian

NAME = "Helsinki-NLP/opus-mt-en-de"
NLLB = "facebook/nllb-200-distilled-600M"
# Keys that OPUS-MT's repositories have beside those that are read, some of them of versions of transformers long ago.
_OLD_KEYS: dict[str, Any] = {
    "_name_or_path": "/tmp/Helsinki-NLP/opus-mt-en-de",
    "_num_labels": 3,
    "activation_dropout": 0.0,
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "architectures": ["MarianMTModel"],
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "classif_dropout": 0.0,
    "classifier_dropout": 0.0,
    "decoder_layerdrop": 0.0,
    "dropout": 0.1,
    "encoder_layerdrop": 0.0,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
    "gradient_checkpointing": False,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
    "max_length": 512,
    "model_type": "marian",
    "normalize_before": False,
    "normalize_embedding": False,
    "num_beams": 6,
    "static_position_embeddings": True,
    "transformers_version": "2.8.0",
    "use_cache": True,
}
_CARD = "---\nlanguage:\n- en\n- de\nlicense: cc-by-4.0\ntags:\n- translation\n---\n\n### opus-mt-en-de\n"


def write_opus(folder: Path) -> Any:
    """A random model as OPUS-MT's first repositories hold it: pickled weights, and config.json alone; the model."""
    model = write_marian(folder)
    weights = {name: tensor.clone() for name, tensor in read_tensors(folder / "model.safetensors", hint="").items()}
    for side in ("encoder", "decoder"):
        weights[f"model.{side}.embed_tokens.weight"] = weights["model.shared.weight"]
    torch.save(weights, folder / "pytorch_model.bin")
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names = (*SHAPE, "vocab_size", "pad_token_id", "decoder_start_token_id")
    read = {name: settings[name] for name in names if name in settings}
    config = (
        _OLD_KEYS | read | {"bad_words_ids": [[settings["pad_token_id"]]], "num_hidden_layers": read["encoder_layers"]}
    )
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"target_lang": "de", "source_lang": "en"}', encoding="utf-8")
    for name in ("model.safetensors", "generation_config.json"):
        (folder / name).unlink()
    for name in ("tf_model.h5", "rust_model.ot", ".gitattributes", "metadata.json"):
        (folder / name).write_bytes(b"of another program")
    (folder / "README.md").write_text(_CARD, encoding="utf-8")
    return model


def write_hub(folder: Path) -> None:
    """Write the files of a hub with the model NAME, an NLLB in several files and a BERT."""
    write_opus(folder / NAME)
    write_m2m100(folder / NLLB, is_nllb=True, max_shard_size="100KB")
    (folder / NLLB / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n\n# NLLB-200\n", encoding="utf-8")
    (folder / "google" / "bert").mkdir(parents=True)
    (folder / "google" / "bert" / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")


class _WithTransformers(Forked[str]):
    """A process that has imported what an import compares a model with."""

    imported = ("transformers.models.marian.modeling_marian", "transformers.models.marian.tokenization_marian")


class Machine:
    """A machine with empty caches in a folder of its own, on which `nmt` uses a hub."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.folder, self.hub = folder, hub
        folder.mkdir(exist_ok=True)
        self.environment = {
            **os.environ,
            **hub.environment(folder / "home"),
            "NO_COLOR": "1",
            "HF_HUB_ETAG_TIMEOUT": "60",
        }

    @property
    def models(self) -> Path:
        """The folder of imported models in the cache of nmt."""
        return self.folder / "home" / "nmt" / "models"

    def nmt(self, *arguments: str, text: str = "", **environment: str) -> CompletedProcess[str]:
        """The finished command, after `text` on its stdin."""
        command, variables = [sys.executable, "-m", "nmt_cli", *arguments], self.environment | environment
        return run_forked(command, cwd=self.folder, env=variables, input=text, kind=_WithTransformers)

    def start(self, *arguments: str) -> Popen[str]:
        """A command that runs; its stdin, stdout and stderr are pipes."""
        command = [sys.executable, "-m", "nmt_cli", *arguments]
        return _WithTransformers(
            command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=self.folder, env=self.environment, text=True
        )

    def refusal(self, *arguments: str, **environment: str) -> list[str]:
        """The three lines of a command that a model stops: code 5, nothing on stdout, nothing half in the cache."""
        done = self.nmt(*arguments, **environment)
        assert (done.returncode, done.stdout) == (5, ""), done.stderr
        assert not [path for path in self.models.rglob("*") if path.suffix == ".partial"]
        lines = done.stderr.splitlines()[-3:]
        assert [line[:7] for line in lines] == ["error: ", "at:    ", "fix:   "], done.stderr
        return [line[7:] for line in lines]
