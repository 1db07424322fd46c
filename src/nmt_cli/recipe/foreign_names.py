"""Our names for the commonest options, keys and commands of other toolkits; docs/how-to/other-toolkits.md has more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from nmt_cli.errors import RecipeError, nearest_word

PAGE = "docs/how-to/other-toolkits.md"
# By our name. An option of a command begins with --; a key of a recipe has a section, and its value where this helps.
# The vocabulary is the data's.
_FOREIGN_NAMES: Mapping[str, str] = {
    "nmt decode": "generate translate",
    "nmt export": "convert",
    "nmt prepare": "preprocess",
    "nmt prepare CORPUS --set tokenizer.taken_from=MODEL": "taken_from",
    "nmt prepare CORPUS --set tokenizer.vocab_size=N": "vocab_size",
    "nmt score": "evaluate",
    "nmt train": "fit",
    "nmt train RECIPE": "arch",
    "--beam": "beam_size num_beams",
    "--languages": "source_lang",
    "--length-penalty-form length --length-penalty": "lenpen",
    "--max-extra-tokens": "max_len_b",
    "--model": "path",
    "--nbest": "n_best",
    "--output": "save_dir",
    "--train": "trainpref",
    "the same nmt train, which continues a run": "restore_file train_from",
    "model.d_ff": "encoder_ffn_embed_dim ffn_dim",
    "model.d_model": "encoder_embed_dim hidden_size",
    "model.encoder_layers=N --set model.decoder_layers=N": "layers num_layers",
    "model.ffn_dropout": "activation_dropout",
    "model.heads": "num_heads",
    "model.norm": "normalize_before pre_norm",
    "model.tying": "share_all_embeddings tied_embeddings",
    "tokenizer.dropout": "bpe_dropout",
    "training.batch_tokens=N, in tokens": "accum_count batch_size max_tokens mini_batch update_freq",
    "training.checkpoint_every": "save_interval_updates",
    "training.clip_norm": "grad_clip max_grad_norm",
    "training.ema": "ema_decay",
    "training.keep_last": "keep_last_epochs",
    "training.log_every": "log_interval report_every",
    "training.optimizer.weight_decay": "weight_decay",
    "training.patience": "early_stopping",
    "training.precision": "fp16",
    "training.schedule='{name: inverse_sqrt, peak: RATE, warmup_updates: N}'": "learning_rate lr lr_scheduler",
    "training.schedule.warmup_updates": "warmup_steps",
    "training.updates=N, which are no epochs": "epochs max_epoch",
    "training.updates": "max_steps max_update num_steps steps train_steps",
    "validation.every": "eval_steps valid_steps",
    "validation.metric": "best_checkpoint_metric",
}
_OWN_NAMES = {foreign: own for own, names in _FOREIGN_NAMES.items() for foreign in names.split()}


def answer_to_key(name: str) -> str | None:
    """Our key for a key of another toolkit, with the page of all, as a hint; None if it is unknown."""
    own_name = _own_name(name)
    if own_name is None or "." not in own_name:
        return None
    return f"here it is {own_name.partition('=')[0] if _is_key(own_name) else own_name}; {PAGE} has more"


def answer_to_argument(name: str, *, options: Collection[str] = ()) -> str | None:
    """Our name for an option or command of another toolkit, with the page of all, as a hint; None if it is unknown.

    `options` are those of the command that was typed: an option or a key that it does not take is no answer.
    """
    own_name = _own_name(name)
    if own_name is None:
        return None
    typed = own_name
    if _is_key(own_name):
        typed = f"--set {own_name}" if "=" in own_name else f"--set {own_name}=VALUE"
    if typed.startswith("--") and typed.split()[0] not in options:
        return None
    return f"here it is {typed}; {PAGE} has more"


def _is_key(own_name: str) -> bool:
    return "." in own_name.split()[0]


def _own_name(name: str) -> str | None:
    return _OWN_NAMES.get(name.lstrip("-").replace("-", "_").lower())


def check_own_keys(values: Mapping[str, Any], known: Iterable[str], *, noun: str, where: str) -> None:
    """Raise RecipeError if several keys at the top of a document are no `known` keys of a `noun`, and near to none."""
    known = list(known)
    unknown = [str(key) for key in values if key not in known and nearest_word(str(key), known) is None]
    if len(unknown) > 1:
        message = f"this is no {noun}: it has the keys {', '.join(unknown[:3])}"
        raise RecipeError(message, where=where, hint=f"if it is another toolkit's, {PAGE} has its keys, and ours")
