"""Whole configurations of other toolkits: whose they are, and the settings of nmt that mean the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any, NamedTuple

from nmt_cli.recipe.counterparts import BATCH_KEYS, Counterpart, as_flag, batch_tokens_of, counterpart_of, plain_key
from nmt_cli.recipe.key_paths import flatten, value_at
from nmt_cli.recipe.mistakes import refusal
from nmt_cli.recipe.other_toolkits_keys import CORPUS_KEYS, RECIPE_KEYS
from nmt_cli.recipe.schema import Recipe

# Keys at the top of a configuration, or `section.key` below it, that no other toolkit has together.
_KEYS_OF_TOOLKITS: Mapping[str, str] = {
    "fairseq": (
        "task criterion optimization lr_scheduler distributed_training checkpoint common dataset model._name task._name"
    ),
    "JoeyNMT": (
        "joeynmt_version testing data.src data.trg data.train data.dev model.encoder model.decoder training.model_dir"
    ),
    "OpenNMT-tf": (
        "model_dir data.train_features_file data.train_labels_file data.source_vocabulary data.eval_features_file"
    ),
    "OpenNMT-py": (
        "save_data src_vocab tgt_vocab save_model train_steps valid_steps encoder_type decoder_type word_vec_size "
        "rnn_size hidden_size gpu_ranks transformer_ff share_vocab batch_type accum_count world_size data.corpus_1 "
        "save_checkpoint_steps training.train_steps training.valid_steps training.gpu_ranks model.hidden_size"
    ),
    "Marian": "train_sets vocabs dim_emb mini_batch mini_batch_fit enc_depth dec_depth valid_freq transformer_dim_ffn",
    "Sockeye": "prepared_data transformer_model_size num_embed validation_source shared_vocab num_words",
    "Hugging Face": "architectures model_type d_model encoder_ffn_dim transformers_version",
}
_MIN_KNOWN_KEYS = 2
_OUTPUT_KEYS = ("save_model", "model_dir", "save_dir")


class _ScheduleKeys(NamedTuple):
    """The keys of a toolkit for the name of a schedule, its rate and its warm-up; and its name and rate key in nmt."""

    name_key: str
    rate_key: str
    warmup_key: str
    name: str
    our_rate_key: str


_SCHEDULES = (
    _ScheduleKeys("decay_method", "learning_rate", "warmup_steps", "noam", "factor"),  # OpenNMT-py
    _ScheduleKeys("scheduling", "learning_rate_factor", "learning_rate_warmup", "noam", "factor"),  # JoeyNMT
    _ScheduleKeys("lr_scheduler", "lr", "warmup_updates", "inverse_sqrt", "peak"),  # fairseq
)


def toolkit_of(values: dict[str, Any]) -> str | None:
    """The toolkit that a document is a configuration of, or None if it looks like none of them."""
    keys = {plain_key(key) for key in values}
    sections = [(key, value) for key, value in values.items() if isinstance(value, Mapping)]
    keys |= {f"{plain_key(key)}.{plain_key(inner)}" for key, section in sections for inner in section}
    num_known = {name: len(keys.intersection(known.split())) for name, known in _KEYS_OF_TOOLKITS.items()}
    likeliest = max(num_known, key=lambda name: num_known[name])
    return likeliest if num_known[likeliest] >= _MIN_KNOWN_KEYS else None


@dataclass(frozen=True, slots=True)
class ConvertedConfiguration:
    """The settings that mean the same as a configuration of another toolkit, and the keys that remain.

    `settings` are `key=value`, and `output` is the folder that the configuration writes. Keys `by_hand` have a
    counterpart, but users choose its value. Keys of text and vocabulary are in no list.
    """

    settings: list[str]
    output: str | None
    by_hand: list[str]
    without_counterpart: list[str]


def convert_configuration(values: dict[str, Any]) -> ConvertedConfiguration:
    """The settings that mean the same as a configuration of another toolkit, and the keys that remain."""
    leaves = {path: _unwrap(value) for path, value in flatten(values).items()}
    # Reversed, so that the first of two equal keys wins.
    given = {plain_key(_key_of_value(path)): value for path, value in reversed(leaves.items())}
    joint_settings, joint_keys = _joint_settings(given, toolkit=toolkit_of(values))
    settings: dict[str, str] = {}
    by_hand: list[str] = []
    without_counterpart: list[str] = []
    for path, value in leaves.items():
        key = _key_of_value(path)
        counterpart = counterpart_of(key, RECIPE_KEYS)
        if plain_key(key) in (*joint_keys, *_OUTPUT_KEYS) or _needs_no_setting(path, key, value, counterpart):
            continue
        if counterpart is None or counterpart.conversion == "none":
            without_counterpart.append(key)
        elif equivalent := _equivalent_settings(path, key, value, counterpart, given):
            if not _add_settings(equivalent, into=settings):
                by_hand.append(key)
        elif counterpart.templates and value is not None:
            by_hand.append(key)
    return ConvertedConfiguration(
        [f"{name}={text}" for name, text in (settings | joint_settings).items()],
        next((str(given[key]) for key in _OUTPUT_KEYS if given.get(key)), None),
        list(dict.fromkeys(by_hand)),
        list(dict.fromkeys(without_counterpart)),
    )


def flags_of_text(values: Mapping[str, Any]) -> list[str]:
    """The flags of `nmt prepare` for the text of a configuration, if it names its text as OpenNMT-py does.

    FILE stands for training text that it does not name.
    """
    corpora = values.get("data")
    corpora = corpora if isinstance(corpora, Mapping) else {}
    flags, languages = [], "en-de"
    for name, corpus in corpora.items():
        sides = [str(value_at(corpus, key) or "") for key in ("path_src", "path_tgt")]
        prefixes = {side.rpartition(".")[0] for side in sides}
        endings = [side.rpartition(".")[2] for side in sides]
        if len(prefixes) == 1 and all(re.fullmatch("[a-z]{2,3}", ending) for ending in endings):
            flags.append(f"--{'valid' if name == 'valid' else 'train'} {quote(prefixes.pop())}")
            languages = "-".join(endings)
    if not any(flag.startswith("--train ") for flag in flags):
        flags.insert(0, "--train FILE")
    flags += [f"--languages {languages}", "-o data/NAME"]
    shared, model = values.get("share_vocab"), values.get("src_subword_model")
    if isinstance(shared, bool):
        flags.append(as_flag(f"tokenizer.shared={str(shared).lower()}"))
    if str(model).endswith(".model"):
        flags.append(as_flag(f"tokenizer.model={model}"))
    return flags


def _joint_settings(given: Mapping[str, Any], *, toolkit: str | None) -> tuple[dict[str, str], set[str]]:
    """The settings that follow from several keys together, which are the schedule and the batch, and these keys."""
    settings: dict[str, str] = {}
    keys: set[str] = set()
    if (schedule := _schedule(given)) is not None:
        settings["training.schedule"] = schedule
        keys |= {key for known in _SCHEDULES for key in (known.name_key, known.rate_key, known.warmup_key)}
    batch = batch_tokens_of(given)
    # OpenNMT-py's world_size is 1 by default, so its batch is known without that key.
    if batch is not None and (batch.are_gpus_known or toolkit == "OpenNMT-py"):
        settings["training.batch_tokens"] = str(batch.tokens)
        keys |= set(BATCH_KEYS)
    return settings, keys


def _schedule(given: Mapping[str, Any]) -> str | None:
    """The value of training.schedule that has the given rates; None if the keys name none, or the schema refuses it."""
    keys = next((known for known in _SCHEDULES if given.get(known.name_key) == known.name), None)
    if keys is None:
        return None
    rate = given.get(keys.rate_key, 1 if keys.name == "noam" else None)
    warmup_updates = given.get(keys.warmup_key, 4000)
    section = f"{{name: {keys.name}, {keys.our_rate_key}: {rate}, warmup_updates: {warmup_updates}}}"
    return section if refusal(f"training.schedule={section}", Recipe) is None else None


def _needs_no_setting(path: tuple[str, ...], key: str, value: Any, counterpart: Counterpart | None) -> bool:
    """Whether a value is what nmt does anyway, or is of no importance to a recipe."""
    if counterpart is None or counterpart.conversion == "none":
        is_default = (key, value) == ("normalization", "tokens") or value in (None, "transformer")
        return is_default or path[-1] == "_name" or _concerns_data(path)
    return counterpart.conversion == "sampling" and bool(value == 0)  # off


def _add_settings(settings: Mapping[str, str], *, into: dict[str, str]) -> bool:
    """Add settings to `into`; False if a setting has another value there, for example if encoder and decoder differ."""
    do_agree = True
    for name, value in settings.items():
        earlier = into.setdefault(name, value)
        if name == "model.tying" and {earlier, value} == {"all", "target"}:
            into[name] = "all"  # which shares the embedding of the decoder as well
        elif earlier != value:
            do_agree = False
    return do_agree


def _key_of_value(path: tuple[str, ...]) -> str:
    """The key that names a value at this path: its last part, unless that part means something else in its section."""
    match path:
        case (*_, "encoder" | "decoder" as side, "layers" | "num_layers"):
            return f"{side}_layers"
        case (*_, section, "_name"):  # fairseq
            return section
        case (*_, "embeddings", "dropout"):  # JoeyNMT
            return "emb_dropout"
        case _:
            return path[-1]


def _concerns_data(path: tuple[str, ...]) -> bool:
    """Whether a key is about text or vocabulary, or lies in a section about them."""
    counterparts = [counterpart_of(key, table) for key in path for table in (RECIPE_KEYS, CORPUS_KEYS)]
    return any(known is not None and known.conversion == "data" for known in counterparts)


def _equivalent_settings(
    path: tuple[str, ...], key: str, value: Any, counterpart: Counterpart, given: Mapping[str, Any]
) -> dict[str, str]:
    """The settings that mean the same as a key with its value; none if toolkits differ, or the schema refuses one."""
    settings = counterpart.settings_for(value)
    match counterpart.conversion:
        # nmt clips the gradient of the mean loss per token; a gradient per sentence has another norm.
        case "clipping" if value != 0 and given.get("normalization") != "tokens":
            return {}
        case "same value" | "clipping":
            is_list = isinstance(value, list) and not any("{FIRST}" in template for template in counterpart.templates)
            is_kind_of_norm = key == "layer_norm" and value not in (True, False, "pre", "post")  # OpenNMT-py's rms
            if is_list or is_kind_of_norm or _concerns_data(path):
                return {}
        case "sampling":  # OpenNMT-py's alpha is a dropout for BPE
            name = "tokenizer.dropout" if given.get("src_subword_type") == "bpe" else "tokenizer.sampling"
            settings = [f"{name}={value}"] if value and plain_key(key) == "src_subword_alpha" else []
        case _:
            return {}
    if any(re.search(r"\bN\b", setting) or refusal(setting, Recipe) for setting in settings):
        return {}
    return dict(setting.split("=", 1) for setting in settings)


def _unwrap(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value
