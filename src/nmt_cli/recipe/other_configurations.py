"""Configurations of other toolkits: whose they are, and the settings here that mean the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any, Literal

from nmt_cli.recipe.counterparts import as_flag, batch_tokens_of, counterpart_of, plain_key
from nmt_cli.recipe.mistakes import refusal
from nmt_cli.recipe.other_toolkits import CORPUS_KEYS, DATA_KEYS, RECIPE_KEYS, WITHOUT_COUNTERPART
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
# The beginnings of settings that mean the same everywhere, whatever other settings say.
_SAME_MEANING_EVERYWHERE = (
    "model.",
    "model=",
    "training.updates=",
    "training.label_smoothing=",
    "training.seed=",
    "training.optimizer.",
    "training.checkpoint_every=",
    "validation.every=",
    "tokenizer.",
)
_OUTPUT_KEYS = ("save_model", "model_dir", "save_dir")
_TEXT_KEYS = (
    "save_data",
    "src_subword_type",
    "tgt_subword_type",
    "src_subword_nbest",
    "tgt_subword_nbest",
    "tgt_subword_model",
)
_SCHEDULE_KEYS = (
    "decay_method",
    "scheduling",
    "lr_scheduler",
    "learning_rate",
    "learning_rate_factor",
    "lr",
    "warmup_steps",
    "learning_rate_warmup",
    "warmup_updates",
)
_BATCH_KEYS = (
    "max_tokens",
    "mini_batch_words",
    "batch_size",
    "batch_type",
    "update_freq",
    "accum_count",
    "optimizer_delay",
)


def toolkit_of(values: Mapping[str, Any]) -> str | None:
    """The toolkit that a document is a configuration of, or None if it looks like none of them."""
    keys = {plain_key(key) for key in values}
    keys |= {f"{plain_key(key)}.{plain_key(inner)}" for key, value in values.items() for inner in _keys_of(value)}
    found = {name: len(keys.intersection(known.split())) for name, known in _KEYS_OF_TOOLKITS.items()}
    best = max(found, key=lambda name: found[name])
    return best if found[best] >= _MIN_KNOWN_KEYS else None


@dataclass(frozen=True, slots=True)
class ConvertedConfiguration:
    """The settings of ours that a configuration of another toolkit means, and its other keys.

    Keys of text and vocabulary are in no list.
    """

    # As `key=value`.
    settings: list[str]
    # The folder that it writes.
    output: str | None
    # Keys with a counterpart, whose value does not follow from theirs.
    by_hand: list[str]
    without_counterpart: list[str]


def convert_configuration(values: Mapping[str, Any]) -> ConvertedConfiguration:
    """The settings that mean the same as a configuration of another toolkit, and its keys that have none."""
    flattened = [(path, _unwrapped(value)) for path, value in _flattened(values, ())]
    given = {plain_key(_key_of_value(path)): value for path, value in reversed(flattened)}
    joint_settings, joint_keys = _joint_settings(given, toolkit=toolkit_of(values))
    settings: dict[str, str] = {}
    by_hand: list[str] = []
    without_counterpart: list[str] = []
    for path, value in flattened:
        key = _key_of_value(path)
        if plain_key(key) in (*joint_keys, *_OUTPUT_KEYS):
            continue
        match _convert_key(path, value, given):
            case "by hand":
                by_hand.append(key)
            case "without counterpart":
                without_counterpart.append(key)
            case own_settings:
                if not _add_settings(own_settings, into=settings):
                    by_hand.append(key)
    return ConvertedConfiguration(
        [f"{name}={amount}" for name, amount in (settings | joint_settings).items()],
        next((str(given[key]) for key in _OUTPUT_KEYS if given.get(key)), None),
        list(dict.fromkeys(by_hand)),
        list(dict.fromkeys(without_counterpart)),
    )


def flags_of_text(values: Mapping[str, Any]) -> list[str]:
    """The words of `nmt prepare` for the text of a configuration of OpenNMT-py; a general example if it names none."""
    corpora = values.get("data")
    corpora = corpora if isinstance(corpora, Mapping) else {}
    words, languages = [], "en-de"
    for name, corpus in corpora.items():
        sides = [str(_value_under(corpus, key) or "") for key in ("path_src", "path_tgt")]
        prefixes = {side.rpartition(".")[0] for side in sides}
        endings = [side.rpartition(".")[2] for side in sides]
        if len(prefixes) == 1 and all(re.fullmatch("[a-z]{2,3}", ending) for ending in endings):
            words += [f"--{'valid' if name == 'valid' else 'train'} {quote(*prefixes)}"]
            languages = "-".join(endings)
    words = [*(words or ["--train FILE"]), f"--languages {languages}", "-o data/NAME"]
    shared, model = values.get("share_vocab"), values.get("src_subword_model")
    words += [as_flag(f"tokenizer.shared={str(shared).lower()}")] if isinstance(shared, bool) else []
    words += [as_flag(f"tokenizer.model={model}")] if str(model).endswith(".model") else []
    return words


def _joint_settings(given: Mapping[str, Any], *, toolkit: str | None) -> tuple[dict[str, str], set[str]]:
    """The settings that follow from several keys together, the schedule and the batch, and these keys."""
    settings: dict[str, str] = {}
    keys: set[str] = set()
    if (schedule := _schedule(given)) is not None:
        settings["training.schedule"] = schedule
        keys |= set(_SCHEDULE_KEYS)
    product = batch_tokens_of(given)
    if product and (product.are_gpus_known or toolkit == "OpenNMT-py"):  # whose world_size is 1 if it says nothing
        settings["training.batch_tokens"] = str(product.tokens)
        keys |= set(_BATCH_KEYS)
    return settings, keys


def _schedule(given: Mapping[str, Any]) -> str | None:
    """The value of training.schedule that has the given rates; None if the keys name none, or the schema refuses it."""
    if given.get("decay_method") == "noam":
        rate, warmup = given.get("learning_rate", 1), given.get("warmup_steps", 4000)
        schedule = {"name": "noam", "factor": rate, "warmup_updates": warmup}
    elif given.get("scheduling") == "noam":
        rate, warmup = given.get("learning_rate_factor", 1), given.get("learning_rate_warmup", 4000)
        schedule = {"name": "noam", "factor": rate, "warmup_updates": warmup}
    elif given.get("lr_scheduler") == "inverse_sqrt" and "lr" in given:
        schedule = {"name": "inverse_sqrt", "peak": given["lr"], "warmup_updates": given.get("warmup_updates", 4000)}
    else:
        return None
    section = "{" + ", ".join(f"{key}: {value}" for key, value in schedule.items()) + "}"
    return section if refusal(f"training.schedule={section}", Recipe) is None else None


def _convert_key(
    path: tuple[str, ...], value: Any, given: Mapping[str, Any]
) -> dict[str, str] | Literal["by hand", "without counterpart"]:
    """The settings that mean the same as a value, or why they are missing; no settings if the value needs none."""
    key = _key_of_value(path)
    counterpart = counterpart_of(key, RECIPE_KEYS)
    concerns_data = plain_key(key) in _TEXT_KEYS or any(map(_is_data_key, path))
    concerns_tokenizer = counterpart is not None and counterpart.begins("tokenizer.")
    is_sampling_off = concerns_tokenizer and value == 0
    if is_sampling_off or (key, value) == ("normalization", "tokens"):
        return {}
    if counterpart is None or counterpart in WITHOUT_COUNTERPART:
        needs_none = concerns_data or value in (None, "transformer") or path[-1] == "_name"
        return {} if needs_none else "without counterpart"
    equivalent = _equivalent_settings(plain_key(key), value, given)
    if equivalent and (concerns_tokenizer or not concerns_data):
        return equivalent
    return "by hand" if value is not None and counterpart.settings else {}


def _add_settings(settings: Mapping[str, str], *, into: dict[str, str]) -> bool:
    """Add settings to `into`; False if a setting has another value there, as if encoder and decoder differ."""
    do_agree = True
    for name, value in settings.items():
        values = {into.get(name, value), value}
        if name == "model.tying" and values == {"all", "target"}:
            into[name] = "all"  # which shares the embedding of the decoder as well
        else:
            do_agree = do_agree and len(values) == 1
            into.setdefault(name, value)
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


def _is_data_key(key: str) -> bool:
    of_corpus = counterpart_of(key, CORPUS_KEYS)
    is_of_corpus = of_corpus is not None and of_corpus.begins("tokenizer.", "languages=")
    return is_of_corpus or counterpart_of(key, DATA_KEYS) is not None


def _equivalent_settings(key: str, value: Any, given: Mapping[str, Any]) -> dict[str, str]:
    """The settings that mean what a key means in every toolkit; none if toolkits differ, or the schema refuses one."""
    counterpart = counterpart_of(key, RECIPE_KEYS)
    if counterpart is None:
        return {}
    is_clipping = counterpart.begins("training.clip_norm=") and (value == 0 or given.get("normalization") == "tokens")
    if not (counterpart.begins(*_SAME_MEANING_EVERYWHERE) or is_clipping):
        return {}
    if isinstance(value, list) and "{FIRST}" not in counterpart.settings[0]:
        return {}
    found = counterpart.settings_for(value)
    if counterpart.begins("tokenizer."):  # OpenNMT-py's alpha is a dropout for BPE
        name = "tokenizer.dropout" if given.get("src_subword_type") == "bpe" else "tokenizer.sampling"
        found = [f"{name}={value}"] if value and key == "src_subword_alpha" else []
    if any(re.search(r"\bN\b", setting) or refusal(setting, Recipe) for setting in found):
        return {}
    return {name: amount for name, _, amount in (setting.partition("=") for setting in found)}


def _unwrapped(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _value_under(values: Any, key: str) -> Any:
    return values.get(key) if isinstance(values, Mapping) else None


def _keys_of(value: Any) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value


def _flattened(values: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, (*above, key))
        else:
            yield (*above, key), value
