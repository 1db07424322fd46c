"""Other toolkits' names for the keys of a recipe and of a corpus file.

fairseq, OpenNMT-py and eole, JoeyNMT, Marian, Sockeye, Hugging Face's scripts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PAGE = "docs/how-to/other-toolkits.md"
NEXT_LINE = "\n       "  # of a hint: what cannot be pasted stands below what can

# Each table is from an entry to the keys of other toolkits that it answers. An entry is a setting here, or a sentence.
# {N} stands for the value of the key, and a note follows #. Of a|b, a is meant if the value is true, else b.
WITHOUT_COUNTERPART: Mapping[str, str] = {
    "there is none: no layer is skipped at random; leave it out": "layerdrop encoder_layerdrop decoder_layerdrop",
    "there is none: model.dropout is on the outputs of sub-layers and on embeddings (5.4); leave it out": (
        "emb_dropout embed_dropout hidden_dropout_prob"
    ),
}
DATA_KEYS: Mapping[str, str] = {
    "the vocabulary belongs to the data: nmt prepare ... --set tokenizer.vocab_size={N}": (
        "vocab_size src_vocab_size tgt_vocab_size nwordssrc nwordstgt bpe_size"
    ),
    "text and languages belong to the data: nmt prepare --train PREFIX -l en-de, then nmt train RECIPE --data DIR": (
        "data dataset src tgt source_lang target_lang src_lang trg_lang languages train_sets valid_sets "
        "trainpref validpref src_vocab tgt_vocab vocab vocabs spm bpe"
    ),
}
RECIPE_KEYS: Mapping[str, str] = {
    "training.updates={N}": (
        "steps max_steps max_update max_updates train_steps num_steps n_steps total_steps num_updates num_train_steps "
        "training_steps iterations max_iterations after after_batches"
    ),
    "training.updates=N # not epochs; with prepared data --dry-run says how many an epoch has": (
        "epochs epoch max_epoch max_epochs num_epochs n_epochs num_train_epochs after_epochs max_num_epochs"
    ),
    "training.batch_tokens=N # source or target tokens of a whole update, over all GPUs and accumulated batches": (
        "batch_size max_tokens mini_batch mini_batch_words train_batch_size per_device_train_batch_size batch_type "
        "max_tokens_per_batch max_sentences"
    ),
    "training.batch_tokens=N # from which accumulation is derived": (
        "update_freq accum_count optimizer_delay update_interval gradient_accumulation_steps batch_multiplier"
    ),
    "training.schedule={name: inverse_sqrt, peak: {N}, warmup_updates: 4000} # noam has a factor, which is no rate: "
    "its peak is factor / sqrt(d_model * warmup_updates)": (
        "lr learning_rate learn_rate initial_learning_rate peak_lr max_lr base_lr peak_learning_rate"
    ),
    "training.schedule={name: inverse_sqrt, peak: RATE, warmup_updates: 4000} # or name: noam, cosine, wsd, constant": (
        "lr_scheduler scheduler scheduling decay_method learning_rate_scheduler_type lr_scheduler_type "
        "learning_rate_scheduling lr_decay lr_decay_inv_sqrt"
    ),
    "training.schedule.warmup_updates={N}": (
        "warmup_updates warmup warmup_steps lr_warmup learning_rate_warmup n_warmup_steps "
        "num_warmup_steps learning_rate_warmup_steps"
    ),
    "leave it out: warm-up begins at zero": "warmup_init_lr lr_warmup_start_rate warmup_init_learning_rate",
    "leave it out: no rate is a lower bound": "min_lr stop_min_lr learning_rate_min lr_min",
    "training.optimizer.name={N} # adam, adamw, muon or schedule_free": "optimizer optim optimiser optimizer_type",
    "training.optimizer.beta1={FIRST} & training.optimizer.beta2={SECOND}": "adam_betas betas optimizer_params",
    "training.optimizer.beta1={N}": "adam_beta1",
    "training.optimizer.beta2={N}": "adam_beta2",
    "training.optimizer.epsilon={N}": "adam_eps adam_epsilon eps",
    "training.optimizer={name: adamw, weight_decay: {N}}": "weight_decay wd decoupled_weight_decay",
    "training.clip_norm={N}": (
        "clip_norm max_grad_norm grad_clip clip_grad_norm gradient_clipping gradient_clip_val "
        "gradient_clipping_threshold"
    ),
    "training.label_smoothing={N}": "label_smoothing label_smoothing_factor smoothing label_smooth",
    "training.consistency={name: r_drop, alpha: {N}}": "reg_alpha r_drop rdrop rdrop_alpha",
    "training.seed={N}": "seed random_seed manual_seed",
    "training.checkpoint_every={N}": (
        "save_interval_updates save_checkpoint_steps save_freq save_every save_steps checkpoint_interval "
        "checkpoint_freq"
    ),
    "training.keep_last={N}": (
        "keep_interval_updates keep_checkpoint keep_last_params keep_last_epochs keep_last_ckpts save_total_limit"
    ),
    "training.keep_best={N}": "keep_best_checkpoints keep_best_ckpts keep_best_params",
    "training.patience={N}": "patience early_stopping early_stopping_patience max_num_checkpoint_not_improved",
    "training.log_every={N}": "log_interval report_every logging_freq logging_steps disp_freq",
    "training.precision=bf16|fp32": "fp16 bf16 amp half mixed_precision memory_efficient_fp16",
    "training.ema={N}": "ema_decay moving_average_decay",
    "training.ema=0.9999 # 1 minus Marian's value": "exponential_smoothing",
    "validation.every={N}": (
        "validate_every validate_interval_updates valid_steps valid_freq validation_freq validation_every eval_steps "
        "eval_every"
    ),
    "validation.metric=loss|bleu": "best_checkpoint_metric early_stopping_metric metric_for_best_model",
    "leave it out: validation.bleu is on, and of raw text": (
        "eval_bleu eval_bleu_detok eval_bleu_remove_bpe eval_bleu_args eval_bleu_print_samples "
        "maximize_best_checkpoint_metric"
    ),
    "leave it out: the loss is label-smoothed cross-entropy; R-Drop and SimCut are training.consistency": "criterion",
    "leave it out: nmt decides": (
        "num_workers dataloader_num_workers ddp_backend dist_backend log_format no_progress_bar no_epoch_checkpoints"
    ),
    "model.d_model={N}": (
        "d_model encoder_embed_dim decoder_embed_dim hidden_size embedding_dim emb_dim dim_emb word_vec_size rnn_size "
        "d_embed embed_dim num_embed model_dim transformer_model_size dim_model"
    ),
    "model.d_ff={N}": (
        "d_ff ffn_embed_dim encoder_ffn_embed_dim decoder_ffn_embed_dim transformer_ff ff_size dim_feedforward ffn_dim "
        "encoder_ffn_dim decoder_ffn_dim transformer_dim_ffn intermediate_size ffn_size "
        "transformer_feed_forward_num_hidden"
    ),
    "model.heads={N}": (
        "heads num_heads n_heads nhead nheads attention_heads encoder_attention_heads decoder_attention_heads "
        "num_attention_heads transformer_heads transformer_attention_heads"
    ),
    "model={d_k: {N}, d_v: {N}} # else both are d_model / heads": "head_dim d_head dim_head",
    "model={encoder_layers: {N}, decoder_layers: {N}}": "layers num_layers n_layers num_hidden_layers",
    "model.encoder_layers={N}": "encoder_layers enc_layers enc_depth num_encoder_layers n_encoder_layers",
    "model.decoder_layers={N}": "decoder_layers dec_layers dec_depth num_decoder_layers n_decoder_layers",
    "model.dropout={N}": "dropout transformer_dropout hidden_dropout residual_dropout transformer_dropout_prepost",
    "model.attention_dropout={N}": (
        "attention_dropout transformer_dropout_attention attn_dropout dropout_attention attention_probs_dropout_prob"
    ),
    "model.ffn_dropout={N}": (
        "activation_dropout relu_dropout ffn_dropout transformer_dropout_ffn transformer_dropout_act"
    ),
    "model.word_dropout.source={N}": "dropout_src dropout_source source_word_dropout src_word_dropout",
    "model.word_dropout.target={N}": "dropout_trg dropout_target target_word_dropout tgt_word_dropout trg_word_dropout",
    "model.word_dropout={source: {N}, target: {N}}": "word_dropout token_dropout",
    "tokenizer.dropout={N} # for BPE; for a unigram vocabulary it is tokenizer.sampling": "bpe_dropout dropout_bpe",
    "tokenizer.sampling={N} # for a unigram vocabulary; for BPE it is tokenizer.dropout": (
        "sentencepiece_alphas src_subword_alpha tgt_subword_alpha subword_alpha spm_alpha"
    ),
    "model.activation={N}": (
        "activation_fn activation_function hidden_act pos_ffn_activation_fn transformer_ffn_activation"
    ),
    "model.norm=pre|post": (
        "pre_norm prenorm norm_first encoder_normalize_before decoder_normalize_before normalize_before layer_norm"
    ),
    "model.tying=all|none": (
        "tied_embeddings tie_embeddings tied_embeddings_all share_embeddings share_all_embeddings weight_tying "
        "share_encoder_decoder_embeddings tie_word_embeddings tie_weights"
    ),
    "model.tying=target|none": "tied_softmax share_decoder_embeddings share_decoder_input_output_embed",
    "model.positions=learned|sinusoidal": "encoder_learned_pos decoder_learned_pos learned_pos",
    "model.max_positions={N}": (
        "max_source_positions max_target_positions max_position_embeddings max_len max_length max_seq_len "
        "src_seq_length tgt_seq_length max_sent_length max_seq_length"
    ),
    "decoding.beam={N}": "beam_size num_beams beam_width",
    "decoding.length_penalty={N}": "alpha beam_alpha length_penalty_alpha",
    "decoding={length_penalty: {N}, length_penalty_form: length}": "lenpen",
    "decoding.max_extra_tokens=N # a translation has at most N pieces more than its source": (
        "max_len_a max_len_b max_output_length max_length_factor max_decoding_length"
    ),
    "decoding.batch_tokens={N}": "eval_batch_size valid_batch_size",
    "it is no setting of a recipe: nmt train uses all GPUs, or --gpus N": (
        "world_size gpu_ranks num_gpus n_gpu gpus devices distributed_world_size nproc_per_node num_devices use_cuda"
    ),
    "leave it out: the same nmt train resumes by itself": (
        "resume restore_file train_from resume_from_checkpoint load_model reload continue_training"
    ),
    **WITHOUT_COUNTERPART,
    **DATA_KEYS,
}

CORPUS_KEYS: Mapping[str, str] = {
    "it belongs to the recipe, as each epoch is sampled anew: nmt train ... --set tokenizer.dropout={N}": "dropout",
    "it belongs to the recipe, as each epoch is sampled anew: nmt train ... --set tokenizer.sampling={N}": "sampling",
    "tokenizer.vocab_size={N}": "vocab bpe_size num_operations bpe_operations num_words nwordssrc nwordstgt",
    "tokenizer.model={N} # a SentencePiece model": "spm spm_model sentencepiece_model bpe_model src_subword_model",
    "tokenizer.shared=true|false": "joined_dictionary share_vocab shared_vocab joint_vocab joint_bpe",
    "languages={source: en, target: de} # with your languages": (
        "source_lang target_lang src_lang tgt_lang trg_lang source_language target_language lang_pair"
    ),
}

_UPDATE_COUNTS = ("training.updates=", "validation.every=", "training.checkpoint_every=")
_BATCH_TOKENS_KEYS = ("max_tokens", "mini_batch_words")
_ACCUMULATION_KEYS = ("update_freq", "accum_count", "optimizer_delay")
_NUM_GPUS_KEYS = ("distributed_world_size", "world_size", "num_gpus", "nproc_per_node")


@dataclass(frozen=True, slots=True)
class Answer:
    """The counterpart of a key: settings here, `key=value`, all of one section, and a sentence. Either may be empty."""

    settings: Sequence[str]
    note: str

    def as_flags(self) -> str:
        """The settings, each behind --set, and the sentence on a line of its own."""
        return self._lines(" ".join(map(as_flag, self.settings)), self.note)

    def as_yaml(self, section: str) -> str:
        """The lines of YAML that belong into `section`, and what remains to be said on lines of their own."""
        keys, lines = [setting.partition("=")[0] for setting in self.settings], []
        for setting in self.settings:
            key, _, value = setting.partition("=")
            lines += [value.strip("{}")] if key == section else [f"{key.rpartition('.')[2]}: {value}"]
        above = {key.rpartition(".")[0] for key in keys if key != section} - {section}
        places = [f"its place is below {name}:" if name else "its place is the top of the file" for name in above]
        return self._lines(" and ".join(lines), *places, self.note)

    def _lines(self, settings: str, *notes: str) -> str:
        return NEXT_LINE.join(filter(None, (f"here it is {settings}" if settings else "", *notes)))


def answer_to_key(key: str, value: Any, *, known: Mapping[str, str], warmup_updates: int | None) -> Answer | None:
    """The counterpart of the key of another toolkit; None if the key is unknown.

    A schedule gets the `warmup_updates` of the recipe in force; for None it keeps the default.
    """
    entry = entry_of(key, known)
    if entry is None:
        return None
    if warmup_updates is not None:
        entry = re.sub(r"(warmup_updates: )\d+", rf"\g<1>{warmup_updates}", entry)
    if "weight_decay:" in entry and _is_zero(value):
        return Answer([], "leave it out: a weight decay of 0 is none")
    if settings := settings_of(entry, value):
        return Answer(settings, entry.partition(" # ")[2])
    return Answer([], entry.replace("{N}", _as_typed(value)))


def batch_tokens(values: Mapping[str, Any]) -> tuple[Answer, bool] | None:
    """The tokens of a whole update, and whether the number of GPUs is known; None if they do not follow from `values`.

    They are the product of the tokens of a batch, of the batches of an update and of the GPUs.
    """
    given = {plain_key(key): value for key, value in values.items()}
    sizes = [*_BATCH_TOKENS_KEYS, "batch_size"] if given.get("batch_type") == "tokens" else _BATCH_TOKENS_KEYS
    product, factors = 1, []
    for keys in (sizes, _ACCUMULATION_KEYS, _NUM_GPUS_KEYS):
        for key in [key for key in given if key in keys]:
            number = re.fullmatch(r"\[?(\d+)\]?", str(given[key]))
            if number is None:
                return None
            product *= int(number[1])
            factors.append(f"{key} {number[1]}")
    if not given.keys() & set(sizes) or not product:
        return None
    are_gpus_known = bool(given.keys() & set(_NUM_GPUS_KEYS))
    note = f"tokens of a whole update: {' * '.join(factors)}"
    note += "" if are_gpus_known else "; multiply by the number of GPUs that it was for"
    return Answer([f"training.batch_tokens={product}"], note), are_gpus_known


def as_flag(setting: str) -> str:
    """`--set key=value`, quoted for a shell."""
    key, _, value = setting.partition("=")
    return f"--set {key}='{value}'" if re.search(r"[^\w./+-]", value) else f"--set {setting}"


def entry_of(key: str, known: Mapping[str, str]) -> str | None:
    """The setting here, or the sentence, in the table for the key of another toolkit."""
    return next((entry for entry, theirs in known.items() if plain_key(key) in theirs.split()), None)


def settings_of(entry: str, value: Any) -> list[str]:
    """The settings that an entry of the table stands for, with the value; none if the entry is a sentence."""
    if not re.match(r"[a-z0-9_.]+=", entry):
        return []
    settings = entry.partition(" # ")[0].split(" & ")
    word = str(value).lower()

    def one_of_two(found: re.Match[str]) -> str:
        if isinstance(value, str) and word in found.groups():
            return f"={word}"
        return f"={found[2] if word == 'false' else found[1]}"

    chosen = [re.sub(r"=(\w+)\|(\w+)$", one_of_two, setting) for setting in settings]
    amount = _as_typed(value)
    if entry.startswith("training.clip_norm=") and _is_zero(value):  # fairseq's zero is off
        amount = "null"
    if entry.startswith("model.activation="):
        amount = {"swish": "silu", "gelu_new": "gelu"}.get(word, amount)
    if entry.startswith(_UPDATE_COUNTS):  # Marian's --after has a unit: u are updates, e epochs, t tokens
        amount = number[1] if (number := re.fullmatch(r"(\d+)u?", word)) else "N"
    pair = re.findall(r"\d*\.?\d+(?:e-?\d+)?", word)
    first, second = pair[:2] if len(pair) > 1 else ("N", "N")
    return [setting.replace("{N}", amount).replace("{FIRST}", first).replace("{SECOND}", second) for setting in chosen]


def _is_zero(value: Any) -> bool:
    return re.fullmatch(r"0*\.?0*", str(value)) is not None and str(value) != ""


def _as_typed(value: Any) -> str:
    """A number, a plain word or a path as it can be typed; N for any other value."""
    text = str(value)
    is_plain = value is not None and not isinstance(value, bool) and re.fullmatch(r"[\w./+-]+", text)
    return text if is_plain else "N"


def plain_key(key: object) -> str:
    """The key in small letters, with underscores."""
    return str(key).lower().replace("-", "_")
