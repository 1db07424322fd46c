"""The table of keys of other toolkits, each with the settings of a recipe or a corpus file that stand for it.

The toolkits are fairseq, OpenNMT-py and eole, JoeyNMT, Marian, Sockeye, and Hugging Face's scripts. `counterparts.py`
explains the templates, such as `training.updates={VALUE}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nmt_cli.recipe.counterparts import Conversion, Counterpart, as_typed, is_zero


def _counterpart(
    *templates: str,
    keys: str,
    note: str = "",
    note_for_zero: str | None = None,
    format_value: Callable[[Any], str] = as_typed,
    conversion: Conversion = "same value",
) -> Counterpart:
    return Counterpart(tuple(keys.split()), templates, note, note_for_zero, format_value, conversion)


_by_hand = partial(_counterpart, conversion="by hand")
_of_data = partial(_counterpart, conversion="data")
_without_counterpart = partial(_counterpart, conversion="none")


def _leave_out(note: str, *, keys: str) -> Counterpart:
    """The counterpart of keys that a user simply leaves out, for the reason in the note."""
    return _counterpart(keys=keys, note=note, conversion="left out")


def _number_of_updates(value: Any) -> str:
    """Marian's --after without its unit, if that is u for updates; N if it is e for epochs, or t for tokens."""
    number = re.fullmatch(r"(\d+)u?", str(value).lower())
    return number[1] if number else "N"


def _null_for_zero(value: Any) -> str:
    """The word null if the value is zero, which means off in fairseq."""
    return "null" if is_zero(value) else as_typed(value)


def _activation(value: Any) -> str:
    return {"swish": "silu", "gelu_new": "gelu"}.get(str(value).lower(), as_typed(value))


RECIPE_KEYS: Sequence[Counterpart] = (
    _counterpart(
        "training.updates={VALUE}",
        keys="steps max_steps max_update max_updates train_steps num_steps n_steps total_steps num_updates "
        "num_train_steps training_steps iterations max_iterations after after_batches",
        format_value=_number_of_updates,
    ),
    _by_hand(
        "training.updates=N",
        note="nmt counts updates; with prepared data, --dry-run says how many an epoch has",
        keys="epochs epoch max_epoch max_epochs num_epochs n_epochs num_train_epochs after_epochs max_num_epochs",
    ),
    _by_hand(
        "training.batch_tokens=N",
        note="source or target tokens of a whole update, over all GPUs and accumulated batches",
        keys="batch_size max_tokens mini_batch mini_batch_words train_batch_size per_device_train_batch_size "
        "batch_type max_tokens_per_batch max_sentences",
    ),
    _by_hand(
        "training.batch_tokens=N",
        note="nmt derives accumulation from it",
        keys="update_freq accum_count optimizer_delay update_interval gradient_accumulation_steps batch_multiplier",
    ),
    _by_hand(
        "training.schedule={name: inverse_sqrt, peak: {VALUE}, warmup_updates: 4000}",
        note="noam has a factor, which is no rate: its peak is factor / sqrt(d_model * warmup_updates)",
        keys="lr learning_rate learn_rate initial_learning_rate peak_lr max_lr base_lr peak_learning_rate",
    ),
    _by_hand(
        "training.schedule={name: inverse_sqrt, peak: RATE, warmup_updates: 4000}",
        note="or name: noam, cosine, wsd, constant",
        keys="lr_scheduler scheduler scheduling decay_method learning_rate_scheduler_type lr_scheduler_type "
        "learning_rate_scheduling lr_decay lr_decay_inv_sqrt",
    ),
    _by_hand(
        "training.schedule.warmup_updates={VALUE}",
        keys="warmup_updates warmup warmup_steps lr_warmup learning_rate_warmup n_warmup_steps "
        "num_warmup_steps learning_rate_warmup_steps",
    ),
    _leave_out(
        "leave it out: warm-up begins at zero",
        keys="warmup_init_lr lr_warmup_start_rate warmup_init_learning_rate",
    ),
    _leave_out("leave it out: the rate has no lower bound", keys="min_lr stop_min_lr learning_rate_min lr_min"),
    _counterpart(
        "training.optimizer.name={VALUE}",
        note="adam, adamw, muon or schedule_free",
        keys="optimizer optim optimiser optimizer_type",
    ),
    _counterpart(
        "training.optimizer.beta1={FIRST}",
        "training.optimizer.beta2={SECOND}",
        keys="adam_betas betas optimizer_params",
    ),
    _counterpart("training.optimizer.beta1={VALUE}", keys="adam_beta1"),
    _counterpart("training.optimizer.beta2={VALUE}", keys="adam_beta2"),
    _counterpart("training.optimizer.epsilon={VALUE}", keys="adam_eps adam_epsilon eps"),
    _by_hand(
        "training.optimizer={name: adamw, weight_decay: {VALUE}}",
        keys="weight_decay wd decoupled_weight_decay",
        note_for_zero="leave it out: a weight decay of 0 is none",
    ),
    _counterpart(
        "training.clip_norm={VALUE}",
        keys="clip_norm max_grad_norm grad_clip clip_grad_norm gradient_clipping gradient_clip_val "
        "gradient_clipping_threshold",
        format_value=_null_for_zero,
        conversion="clipping",
    ),
    _counterpart(
        "training.label_smoothing={VALUE}", keys="label_smoothing label_smoothing_factor smoothing label_smooth"
    ),
    _by_hand("training.consistency={name: r_drop, alpha: {VALUE}}", keys="reg_alpha r_drop rdrop rdrop_alpha"),
    _counterpart("training.seed={VALUE}", keys="seed random_seed manual_seed"),
    _counterpart(
        "training.checkpoint_every={VALUE}",
        keys="save_interval_updates save_checkpoint_steps save_freq save_every save_steps checkpoint_interval "
        "checkpoint_freq",
        format_value=_number_of_updates,
    ),
    _by_hand(
        "training.keep_last={VALUE}",
        keys="keep_interval_updates keep_checkpoint keep_last_params keep_last_epochs keep_last_ckpts save_total_limit",
    ),
    _by_hand("training.keep_best={VALUE}", keys="keep_best_checkpoints keep_best_ckpts keep_best_params"),
    _by_hand(
        "training.patience={VALUE}",
        keys="patience early_stopping early_stopping_patience max_num_checkpoint_not_improved",
    ),
    _by_hand("training.log_every={VALUE}", keys="log_interval report_every logging_freq logging_steps disp_freq"),
    _by_hand("training.precision=bf16|fp32", keys="fp16 bf16 amp half mixed_precision memory_efficient_fp16"),
    _by_hand("training.ema={VALUE}", keys="ema_decay moving_average_decay"),
    _by_hand("training.ema=0.9999", note="1 minus Marian's value", keys="exponential_smoothing"),
    _counterpart(
        "validation.every={VALUE}",
        keys="validate_every validate_interval_updates valid_steps valid_freq validation_freq validation_every"
        " eval_steps eval_every",
        format_value=_number_of_updates,
    ),
    _by_hand("validation.metric=loss|bleu", keys="best_checkpoint_metric early_stopping_metric metric_for_best_model"),
    _leave_out(
        "leave it out: validation.bleu is on, and of raw text",
        keys="eval_bleu eval_bleu_detok eval_bleu_remove_bpe eval_bleu_args eval_bleu_print_samples "
        "maximize_best_checkpoint_metric",
    ),
    _leave_out(
        "leave it out: the loss is label-smoothed cross-entropy; R-Drop and SimCut are training.consistency",
        keys="criterion",
    ),
    _leave_out(
        "leave it out: nmt decides",
        keys="num_workers dataloader_num_workers ddp_backend dist_backend log_format no_progress_bar "
        "no_epoch_checkpoints",
    ),
    _counterpart(
        "model.d_model={VALUE}",
        keys="d_model encoder_embed_dim decoder_embed_dim hidden_size embedding_dim emb_dim dim_emb "
        "word_vec_size rnn_size d_embed embed_dim num_embed model_dim transformer_model_size dim_model",
    ),
    _counterpart(
        "model.d_ff={VALUE}",
        keys="d_ff ffn_embed_dim encoder_ffn_embed_dim decoder_ffn_embed_dim transformer_ff ff_size "
        "dim_feedforward ffn_dim encoder_ffn_dim decoder_ffn_dim transformer_dim_ffn intermediate_size "
        "ffn_size transformer_feed_forward_num_hidden",
    ),
    _counterpart(
        "model.heads={VALUE}",
        keys="heads num_heads n_heads nhead nheads attention_heads encoder_attention_heads "
        "decoder_attention_heads num_attention_heads transformer_heads transformer_attention_heads",
    ),
    _counterpart(
        "model={d_k: {VALUE}, d_v: {VALUE}}", note="else both are d_model / heads", keys="head_dim d_head dim_head"
    ),
    _counterpart(
        "model={encoder_layers: {VALUE}, decoder_layers: {VALUE}}", keys="layers num_layers n_layers num_hidden_layers"
    ),
    _counterpart(
        "model.encoder_layers={VALUE}", keys="encoder_layers enc_layers enc_depth num_encoder_layers n_encoder_layers"
    ),
    _counterpart(
        "model.decoder_layers={VALUE}", keys="decoder_layers dec_layers dec_depth num_decoder_layers n_decoder_layers"
    ),
    _counterpart(
        "model.dropout={VALUE}",
        keys="dropout transformer_dropout hidden_dropout residual_dropout transformer_dropout_prepost",
    ),
    _counterpart(
        "model.attention_dropout={VALUE}",
        keys="attention_dropout transformer_dropout_attention attn_dropout dropout_attention "
        "attention_probs_dropout_prob",
    ),
    _counterpart(
        "model.ffn_dropout={VALUE}",
        keys="activation_dropout relu_dropout ffn_dropout transformer_dropout_ffn transformer_dropout_act",
    ),
    _counterpart(
        "model.word_dropout.source={VALUE}", keys="dropout_src dropout_source source_word_dropout src_word_dropout"
    ),
    _counterpart(
        "model.word_dropout.target={VALUE}",
        keys="dropout_trg dropout_target target_word_dropout tgt_word_dropout trg_word_dropout",
    ),
    _counterpart("model.word_dropout={source: {VALUE}, target: {VALUE}}", keys="word_dropout token_dropout"),
    _counterpart(
        "tokenizer.dropout={VALUE}",
        note="for BPE; for a unigram vocabulary it is tokenizer.sampling",
        keys="bpe_dropout dropout_bpe",
        conversion="sampling",
    ),
    _counterpart(
        "tokenizer.sampling={VALUE}",
        note="for a unigram vocabulary; for BPE it is tokenizer.dropout",
        keys="sentencepiece_alphas src_subword_alpha tgt_subword_alpha subword_alpha spm_alpha",
        conversion="sampling",
    ),
    _counterpart(
        "model.activation={VALUE}",
        keys="activation_fn activation_function hidden_act pos_ffn_activation_fn transformer_ffn_activation",
        format_value=_activation,
    ),
    _counterpart(
        "model.norm=pre|post",
        keys="pre_norm prenorm norm_first encoder_normalize_before decoder_normalize_before normalize_before "
        "layer_norm",
    ),
    _counterpart(
        "model.tying=all|none",
        keys="tied_embeddings tie_embeddings tied_embeddings_all share_embeddings share_all_embeddings "
        "weight_tying share_encoder_decoder_embeddings tie_word_embeddings tie_weights",
    ),
    _counterpart(
        "model.tying=target|none", keys="tied_softmax share_decoder_embeddings share_decoder_input_output_embed"
    ),
    _counterpart("model.positions=learned|sinusoidal", keys="encoder_learned_pos decoder_learned_pos learned_pos"),
    _counterpart(
        "model.max_positions={VALUE}",
        keys="max_source_positions max_target_positions max_position_embeddings max_len max_length max_seq_len"
        " src_seq_length tgt_seq_length max_sent_length max_seq_length",
    ),
    _by_hand("decoding.beam={VALUE}", keys="beam_size num_beams beam_width"),
    _by_hand("decoding.length_penalty={VALUE}", keys="alpha beam_alpha length_penalty_alpha"),
    _by_hand("decoding={length_penalty: {VALUE}, length_penalty_form: length}", keys="lenpen"),
    _by_hand(
        "decoding.max_extra_tokens=N",
        note="a translation has at most N pieces more than its source",
        keys="max_len_a max_len_b max_output_length max_length_factor max_decoding_length",
    ),
    _by_hand("decoding.batch_tokens={VALUE}", keys="eval_batch_size valid_batch_size"),
    _leave_out(
        "it belongs to the command: nmt train uses all GPUs, or --gpus N",
        keys="world_size gpu_ranks num_gpus n_gpu gpus devices distributed_world_size nproc_per_node "
        "num_devices use_cuda",
    ),
    _leave_out(
        "leave it out: the same nmt train continues by itself",
        keys="resume restore_file train_from resume_from_checkpoint load_model reload continue_training",
    ),
    _without_counterpart(
        note="there is none: no layer is skipped at random; leave it out",
        keys="layerdrop encoder_layerdrop decoder_layerdrop",
    ),
    _without_counterpart(
        note="there is none: model.dropout is on the outputs of sub-layers and on embeddings (5.4); leave it out",
        keys="emb_dropout embed_dropout hidden_dropout_prob",
    ),
    _of_data(
        note="the vocabulary belongs to the data: nmt prepare ... --set tokenizer.vocab_size={VALUE}",
        keys="vocab_size src_vocab_size tgt_vocab_size nwordssrc nwordstgt bpe_size",
    ),
    _of_data(
        note="text and languages belong to the data: nmt prepare --train PREFIX -l en-de, then nmt train "
        "RECIPE --data DIR",
        keys="data dataset src tgt source_lang target_lang src_lang trg_lang languages train_sets valid_sets "
        "trainpref validpref src_vocab tgt_vocab vocab vocabs spm bpe save_data src_subword_type tgt_subword_type "
        "src_subword_nbest tgt_subword_nbest tgt_subword_model",
    ),
)

CORPUS_KEYS: Sequence[Counterpart] = (
    _leave_out(
        "it belongs to the recipe, because each epoch is sampled anew: nmt train ... --set tokenizer.dropout={VALUE}",
        keys="dropout",
    ),
    _leave_out(
        "it belongs to the recipe, because each epoch is sampled anew: nmt train ... --set tokenizer.sampling={VALUE}",
        keys="sampling",
    ),
    _of_data(
        "tokenizer.vocab_size={VALUE}",
        keys="vocab bpe_size num_operations bpe_operations num_words nwordssrc nwordstgt",
    ),
    _of_data(
        "tokenizer.model={VALUE}",
        note="a SentencePiece model",
        keys="spm spm_model sentencepiece_model bpe_model src_subword_model",
    ),
    _of_data("tokenizer.shared=true|false", keys="joined_dictionary share_vocab shared_vocab joint_vocab joint_bpe"),
    _of_data(
        "languages={source: en, target: de}",
        note="with your languages",
        keys="source_lang target_lang src_lang tgt_lang trg_lang source_language target_language lang_pair",
    ),
)
