"""Our names for the commonest options, keys and commands of other toolkits; docs/how-to/other-toolkits.md has more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from nmt_cli.errors import RecipeError, nearest_word

PAGE = "docs/how-to/other-toolkits.md"
# An option of a command begins with --, and a key of a recipe has a section.
_OWN_NAMES: Mapping[str, str] = {
    "accum_count": "training.batch_tokens",
    "activation_dropout": "model.ffn_dropout",
    "arch": "nmt train RECIPE",
    "batch_size": "training.batch_tokens",
    "beam_size": "--beam",
    "best_checkpoint_metric": "validation.metric",
    "bpe_dropout": "tokenizer.dropout",
    "convert": "nmt export",
    "early_stopping": "training.patience",
    "encoder_embed_dim": "model.d_model",
    "encoder_ffn_embed_dim": "model.d_ff",
    "ema_decay": "training.ema",
    "epochs": "training.updates",
    "eval_steps": "validation.every",
    "evaluate": "nmt score",
    "ffn_dim": "model.d_ff",
    "fit": "nmt train",
    "fp16": "training.precision",
    "generate": "nmt decode",
    "grad_clip": "training.clip_norm",
    "hidden_size": "model.d_model",
    "keep_last_epochs": "training.keep_last",
    "layers": "model.encoder_layers",
    "learning_rate": "training.schedule",
    "lenpen": "--length-penalty",
    "log_interval": "training.log_every",
    "lr": "training.schedule",
    "lr_scheduler": "training.schedule",
    "max_epoch": "training.updates",
    "max_grad_norm": "training.clip_norm",
    "max_len_b": "--max-extra-tokens",
    "max_steps": "training.updates",
    "max_tokens": "training.batch_tokens",
    "max_update": "training.updates",
    "mini_batch": "training.batch_tokens",
    "n_best": "--nbest",
    "normalize_before": "model.norm",
    "num_beams": "--beam",
    "num_heads": "model.heads",
    "num_layers": "model.encoder_layers",
    "path": "--model",
    "pre_norm": "model.norm",
    "preprocess": "nmt prepare",
    "report_every": "training.log_every",
    "restore_file": "the same nmt train, which continues a run",
    "save_dir": "--output",
    "save_interval_updates": "training.checkpoint_every",
    "share_all_embeddings": "model.tying",
    "source_lang": "--languages",
    "tied_embeddings": "model.tying",
    "train_from": "the same nmt train, which continues a run",
    "train_steps": "training.updates",
    "trainpref": "--train",
    "translate": "nmt decode",
    "update_freq": "training.batch_tokens",
    "valid_steps": "validation.every",
    "vocab_size": "tokenizer.vocab_size",
    "warmup_steps": "training.schedule.warmup_updates",
    "weight_decay": "training.optimizer.weight_decay",
}


def answer_to_key(name: str) -> str | None:
    """Our key for a key of another toolkit, with the page of all, as a hint; None if it is unknown."""
    own_name = _own_name(name)
    return f"here it is {own_name}; {PAGE} has the others" if own_name and "." in own_name else None


def answer_to_argument(name: str, *, options: Collection[str] = ()) -> str | None:
    """Our name for an option or command of another toolkit, with the page of all, as a hint; None if it is unknown.

    `options` are those of the command that was typed: an option or a key that it does not take is no answer.
    """
    own_name = _own_name(name)
    if own_name is None:
        return None
    typed = f"--set {own_name}=VALUE" if "." in own_name else own_name
    if typed.startswith("--") and typed.split()[0] not in options:
        return None
    return f"here it is {typed}; {PAGE} has the others"


def _own_name(name: str) -> str | None:
    return _OWN_NAMES.get(name.lstrip("-").replace("-", "_").lower())


def check_own_keys(values: Mapping[str, Any], known: Iterable[str], *, noun: str, where: str) -> None:
    """Raise RecipeError if several keys at the top of a document are no `known` keys of a `noun`, and near to none."""
    known = list(known)
    unknown = [str(key) for key in values if key not in known and nearest_word(str(key), known) is None]
    if len(unknown) > 1:
        message = f"this is no {noun}: it has the keys {', '.join(unknown[:3])}"
        raise RecipeError(message, where=where, hint=f"if it is another toolkit's, {PAGE} has its keys, and ours")
