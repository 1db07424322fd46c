"""What people type from habit, and what `nmt` answers: the words of other toolkits, and words that are nearly ours."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from nmt_cli.cli.arguments import _options_of
from nmt_cli.cli.spellings import COMMANDS, SPELLINGS, check_options
from nmt_cli.errors import UsageError, nearest_word
from nmt_cli.preparing.corpus import Corpus
from nmt_cli.recipe.counterparts import NEXT_LINE, Counterpart, batch_tokens_of
from nmt_cli.recipe.key_paths import KeyPath, fields_at
from nmt_cli.recipe.loading import load_recipe, parse_override
from nmt_cli.recipe.other_toolkits_configurations import convert_configuration, flags_of_text
from nmt_cli.recipe.other_toolkits_keys import CORPUS_KEYS, RECIPE_KEYS
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training.optimizers_and_schedules import scheduled_rate
from tests.cli.conftest import Shell
from tests.cli.test_app import ALL, options_of

ANSWERS = [(command, hint, spellings) for command, known in SPELLINGS.items() for hint, spellings in known.items()]
NO_DROPOUT = "there is none: model.dropout is on the outputs of sub-layers and on embeddings (5.4); leave it out"
PEAK = "--set training.schedule='{name: inverse_sqrt, peak: 0.0005, warmup_updates: 4000}'"
RESUMES = "give the same command as before: it continues by itself"
FILES = "name the files: nmt score REFERENCE -i HYPOTHESIS"
# Command lines whose mistake is found without torch.
NEED_NO_TORCH = [
    "train base --lr 1",
    "train baes",
    "train base --set lr=1",
    "train demo",
    "train demo --data nosuch --dry-run",
    "train demo --init-from nosuch",
    "average nosuch",
    "average nosuch --last 3 --best 2",
    "average a b --last 2",
    "import nosuch -o x",
    "decode -m nosuch",
    "decode",
    "attention sentence -m nosuch",
    "reproduce nosuch",
    "score ref -i nosuch",
]
# Typed values for which a setting is valid, if a number is not.
WORDS = {"optimizer.name": "adam", "activation": "gelu"}


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("preprocess", "here it is nmt prepare; nmt --help lists them all"),
        ("translate", "here it is nmt decode; nmt --help lists them all"),
        ("evaluate", "here it is nmt score; nmt --help lists them all"),
        ("score ref -i hyp -m meteor", "take one or more of bleu,"),
        ("train base --resume", RESUMES),
        ("train base --bpe codes", "leave it out: the prepared data has its text and vocabulary"),
        ("prepare demo --bpe codes", "leave it out: text is raw"),
        (
            "prepare demo --spm my/own.model",
            f"here it is --set tokenizer.model=my/own.model{NEXT_LINE}a SentencePiece model",
        ),
        (
            "prepare demo --set spm_model=own.model",
            f"here it is --set tokenizer.model=own.model{NEXT_LINE}a SentencePiece model",
        ),
        ("prepare --src a", "here it is --train PREFIX"),
        ("average -m runs/x", "name the run: nmt average runs/x"),
        ("export -m runs/x", "name the model: nmt export runs/x"),
        ("info -m runs/x", "name the directory: nmt info runs/x"),
        ("report -m runs/x", "name the run: nmt report runs/x"),
        ("decode --json", "here it is --format jsonl"),
        ("decode --glossary words.tsv", "there are no glossaries; the nearest is --prefix FILE"),
        ("train base --set model.emb_dropout=0.1", NO_DROPOUT),
        ("train base --attention-dropout 0.1", "here it is --set model.attention_dropout=0.1"),
        ("train base --set model.relu_dropout=0.1", "here it is --set model.ffn_dropout=0.1"),
        ("train base --set dropout-src=0.1", "here it is --set model.word_dropout.source=0.1"),
        ("train base --set model.tied_embeddings=true", "here it is --set model.tying=all"),
        ("train base --set share_embeddings=true", "here it is --set model.tying=all"),
        ("train base --set model.share_embeddings=false", "here it is --set model.tying=none"),
        ("train base --set training.max_steps=9", "here it is --set training.updates=9"),
        ("train base --set training.steps=9", "here it is --set training.updates=9"),
        ("train base --lr 0.0005", f"here it is {PEAK}{NEXT_LINE}noam has a factor, which is no rate"),
        ("train demo --lr 0.0005", f"here it is {PEAK.replace('4000', '300')}{NEXT_LINE}noam has a factor"),
        ("train --lr 0.0005 no-recipe", f"here it is {PEAK}{NEXT_LINE}noam has a factor"),
        ("train base --lr=0.0005", f"here it is {PEAK}{NEXT_LINE}noam has a factor, which is no rate"),
        ("train base --set training.learning_rate=0.0005", f"here it is {PEAK}{NEXT_LINE}noam has a factor"),
        ("train base --set lr=5e-4", f"here it is {PEAK}"),
        ("train demo --set lr=5e-4", f"here it is {PEAK.replace('4000', '300')}{NEXT_LINE}noam has a factor"),
        (
            "train base --set training.schedule.warmup_updates=70 --set lr=5e-4",
            f"here it is {PEAK.replace('4000', '70')}",
        ),
        ("train base --set model.heads:9", "--set model.heads=9"),
        ("train base --set model.heads=", "--set model.heads=VALUE, or --set model.heads=null"),
        ("prepare demo --set tokenizer.model=", "--set tokenizer.model=VALUE, or --set tokenizer.model=null"),
        (
            "train base --epochs 20",
            f"here it is --set training.updates=N{NEXT_LINE}nmt counts updates; with prepared data, --dry-run says",
        ),
        ("train base --set training.epochs=20", f"here it is --set training.updates=N{NEXT_LINE}nmt counts updates"),
        (
            "train base --set training.batch_size=64",
            f"here it is --set training.batch_tokens=N{NEXT_LINE}source or target tokens",
        ),
        (
            "train base --weight-decay 0.01",
            "here it is --set training.optimizer='{name: adamw, weight_decay: 0.01}'",
        ),
        ("train base --world-size 4", "here it is --gpus 4"),
        ("train base --vocab-size 8000", "it belongs to the data: nmt prepare CORPUS --set tokenizer.vocab_size=8000"),
        ("prepare demo --vocab-size 8000", "here it is --set tokenizer.vocab_size=8000"),
        ("train base --tokenizer x", "leave it out: the prepared data has its text and vocabulary"),
        ("decode --source-lang en", "leave it out: the model knows its languages"),
        ("decode --tokenizer x", "leave it out: the model has its vocabulary"),
        ("serve -p 8080", "here it is --port 8080"),
        ("score -r ref.txt", FILES),
        ("score --hyp hyp.txt", FILES),
        ("score --src s.txt", "here it is --source s.txt"),
        ("train base --weight-decay 0", "leave it out: a weight decay of 0 is none"),
        (
            "train base --dropout 1",
            f"here it is --set model.dropout=N{NEXT_LINE}model.dropout is 1, but should be less than 1",
        ),
        ("train base --set transformer_dropout=1", f"here it is --set model.dropout=N{NEXT_LINE}model.dropout is 1"),
        ("train base --adam-eps 0", f"here it is --set training.optimizer.epsilon=N{NEXT_LINE}training.optimizer.eps"),
        ("train base --peak 0", f"here it is --set training.schedule.peak=N{NEXT_LINE}training.schedule.peak is 0"),
        (
            "train base --optimizer adagrad",
            f"here it is --set training.optimizer.name=N{NEXT_LINE}training.optimizer.name is 'adagrad', but should be "
            "'adam' or 'adamw' or 'muon' or 'schedule_free'",
        ),
        (
            "train base --adam-betas 0.9,0.997",
            "here it is --set training.optimizer.beta1=0.9 --set training.optimizer.beta2=0.997",
        ),
        (
            "train base --set betas=[.9,0.997]",
            "here it is --set training.optimizer.beta1=0.9 --set training.optimizer.beta2=0.997",
        ),
        (
            "train base --adam-betas 0.9",
            "here it is --set training.optimizer.beta1=N --set training.optimizer.beta2=N",
        ),
        (
            "train base --max-tokens 4096 --update-freq 4",
            f"here it is --set training.batch_tokens=16384{NEXT_LINE}--max-tokens, --update-freq: tokens of a whole "
            "update: max_tokens 4096 * update_freq 4; multiply by the number of GPUs",
        ),
        ("train base -bpe_dropout 0.1", f"here it is --set tokenizer.dropout=0.1{NEXT_LINE}for BPE"),
        ("train base --spm-alpha 0.1", f"here it is --set tokenizer.sampling=0.1{NEXT_LINE}for a unigram vocabulary"),
        ("train base --word-dropout 0.1", "here it is --set model.word_dropout='{source: 0.1, target: 0.1}'"),
        ("train base --set word_dropout=0.1", "here it is --set model.word_dropout='{source: 0.1, target: 0.1}'"),
        ("train base --tgt_word_dropout 0.1", "here it is --set model.word_dropout.target=0.1"),
        ("train base --criterion label_smoothed_cross_entropy", "leave it out: the loss is label-smoothed"),
        ("train base --criterion x_with_rdrop", "here it is --set training.consistency='{name: r_drop}'"),
        ("train base --eval-bleu", "leave it out: validation.bleu is on"),
        ("train base --best-checkpoint-metric bleu", "here it is --set validation.metric=bleu"),
        ("train base --ddp-backend no_c10d", "leave it out: nmt decides"),
        ("train base --layerdrop 0.1", "there is none: no layer is skipped at random"),
        ("train base --set clip_norm=1", "here it is --set training.clip_norm=1"),
        ("score r -i h --paired-bs", "here it is --paired bs"),
        ("train -a transformer_wmt_en_de", "name the recipe of its sizes: nmt train base"),
        ("train --arch transformer_vaswani_wmt_en_de_big", "name the recipe of its sizes: nmt train big"),
        ("train --arch fconv", "name a recipe: nmt train base, or nmt train FILE.yaml"),
        ("train base --max-update 10", "here it is --set training.updates=10"),
        ("train base --pre-norm", "here it is --set model.norm=pre"),
        ("train base --encoder-layers 3", "here it is --set model.encoder_layers=3"),
        ("train base --d_ff 1024", "here it is --set model.d_ff=1024"),
        ("train base --set model.d_modl=8", "did you mean model.d_model?"),
    ],
)
def test_a_habit_is_answered_with_what_does_the_same(nmt: Shell, typed: str, fix: str) -> None:
    outcome = nmt(*typed.split())
    assert outcome.code in (2, 3)
    assert "\n".join(outcome.stderr).partition("fix:   ")[2].startswith(fix)


@pytest.mark.parametrize(
    ("word", "known", "near"),
    [
        ("preprocess", ["reproduce", "prepare"], None),
        ("tokenize", ["tokens"], None),
        ("lowercase", ["source"], None),
        ("meteor", ["ter", "bleu"], None),
        ("--resume", ["--set", "--restart"], None),
        ("attention_dropout", ["attention_bias", "dropout"], None),
        ("max_steps", ["max_returns", "updates"], None),
        ("csv", ["tsv", "text", "jsonl"], None),
        ("tmx", ["tsv", "text"], None),
        ("trian", ["train", "average"], "train"),
        ("--bem", ["--beam", "--batch-tokens"], "--beam"),
        ("d_modl", ["d_model", "d_ff"], "d_model"),
        ("Adam", ["adam", "adamw"], "adam"),
        ("--batch", ["--batch-tokens", "--beam"], "--batch-tokens"),
        ("--length", ["--length-penalty", "--length-penalty-form"], None),
    ],
)
def test_only_a_near_word_is_suggested(word: str, known: list[str], near: str | None) -> None:
    assert nearest_word(word, known) == near


@pytest.mark.parametrize("counterpart", RECIPE_KEYS, ids=lambda counterpart: counterpart.keys[0])
def test_every_setting_that_answers_a_key_makes_a_valid_recipe(counterpart: Counterpart) -> None:
    ours = " ".join(counterpart.templates)
    value = next((word for place, word in WORDS.items() if place in ours), None) or _number_for(ours)
    given = counterpart.answer(value, warmup_updates=None)
    arguments = shlex.split(given.as_flags().removeprefix("here it is ").split(NEXT_LINE)[0])
    settings = [value for flag, value in pairwise(arguments) if flag == "--set"]
    if given.settings and not re.search(r"=N$|RATE", " ".join(settings)):
        load_recipe("base", overrides=settings)


def _number_for(settings: str) -> float | int:
    is_whole = not re.search(r"peak|dropout|smoothing|beta|epsilon|decay|clip|ema|penalty", settings)
    return 8 if is_whole else 0.25


def test_no_key_of_another_toolkit_has_two_answers_or_is_a_key_of_ours_in_its_place() -> None:
    for known, schema in ((RECIPE_KEYS, Recipe), (CORPUS_KEYS, Corpus)):
        theirs = [key for counterpart in known for key in counterpart.keys]
        assert len(theirs) == len(set(theirs))
        assert not set(theirs) & set(fields_at(schema, (), values={}))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_another_toolkit_is_none_of_ours(command: str) -> None:
    assert command in ALL
    assert not set(COMMANDS[command].split()) & set(ALL)


@pytest.mark.parametrize(
    "arguments",
    [
        "info",
        "decode -b 4 -n4 -i x",
        "decode -qn4 -ix --beam=4",
        "decode -o --lenpen -i -beam_size",  # names of files
        "train base --set a.b=--lr",
        "train --set a.b=9 base",
        "decode -- --lenpen",
        "decode --stats --length-penalty -1 -",
        "prepare -l en-de --quiet -h",
        "attention -l 3 de_en",
    ],
)
def test_our_own_command_lines_pass(arguments: str) -> None:
    command, *rest = arguments.split()
    check_options(command, rest, _options_of(ALL[command]))


@pytest.mark.parametrize("command", SPELLINGS)
def test_no_spelling_is_an_option_of_ours_or_has_two_answers(command: str) -> None:
    spellings = [spelling for known in SPELLINGS[command].values() for spelling in known.split()]
    assert len(spellings) == len(set(spellings))
    assert not set(spellings) & (options_of(command) | {"-h", "--help"})


@pytest.mark.parametrize(("command", "hint", "spellings"), ANSWERS)
def test_what_an_answer_names_exists(command: str, hint: str, spellings: str) -> None:
    named = re.search(r"nmt (prepare|score|train|average|export)", hint)
    owner = named[1] if named else command
    assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", hint)) <= options_of(owner)
    schema = Corpus if owner == "prepare" else Recipe
    for key in re.findall(r"--set ([a-z0-9_.]+)=", hint):
        path: KeyPath = tuple(key.split("."))
        assert path[-1] in fields_at(schema, path[:-1], values={}), key


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("decode --beam-size=5", "here it is --beam 5"),
        ("decode --quiet --beam-size 5", "here it is --beam 5"),
        ("decode -beam 5", "here it is --beam 5"),
        ("decode -stats", "here it is --stats"),
        ("decode -input", "here it is --input FILE"),
        ("decode --batch_tokens=5", "here it is --batch-tokens 5"),
        ("train -lr 0.1 small", "here it is --set training.schedule='{name: inverse_sqrt, peak: 0.1, warmup_updates: "),
        ("decode -beam_size 5", "here it is --beam 5"),
        ("decode --beam-size", "here it is --beam N"),
        (r"decode --path 'C:\models'", r"here it is --model 'C:\models'"),
        ("decode --path 'my model'", "here it is --model 'my model'"),
        ("decode --remove-bpe", "leave it out: text is raw on both sides, and in order"),
        ("average --inputs a b", "name the run: nmt average RUN"),
    ],
)
def test_the_answer_names_our_option_with_the_value(arguments: str, hint: str) -> None:
    command, *rest = shlex.split(arguments)
    with pytest.raises(UsageError) as error:
        check_options(command, rest, _options_of(ALL[command]))
    assert error.value.hint == hint or (hint.endswith(": ") and error.value.hint.startswith(hint))
    assert error.value.message == f"nmt {command} has no option {error.value.where}"


def test_a_command_line_of_fairseq_is_answered_with_settings_that_hold_together(nmt: Shell) -> None:
    typed = "--arch transformer_iwslt_de_en --share-decoder-input-output-embed --optimizer adam --clip-norm 0.0"
    typed += " --warmup-updates 8000 --lr 5e-4 --lr-scheduler inverse_sqrt --dropout 0.3 --weight-decay 0.0001"
    typed += " --label-smoothing 0.2 --max-tokens 4096 --update-freq 4 --distributed-world-size 8 --adam-betas"
    outcome = nmt("train", "small", *typed.split(), "(0.9, 0.997)")
    assert outcome.stderr[2].startswith("fix:   here it is --set ")
    words = shlex.split(outcome.stderr[2].removeprefix("fix:   here it is "))
    assert set(words[::2]) == {"--set", "--gpus"}
    assert outcome.stderr[3].strip() == "--arch: name the recipe of its sizes: nmt train iwslt14-de-en"
    assert outcome.stderr[4].strip() == "it trains with SimCut; --set training.consistency=null trains without it"
    recipe = load_recipe("small", overrides=[after for flag, after in pairwise(words) if flag == "--set"])
    training = recipe.training
    assert recipe.model.tying == "target"
    assert training.schedule.model_dump() == {"name": "inverse_sqrt", "peak": 5e-4, "warmup_updates": 8000}
    assert training.optimizer.name == "adamw"
    assert (training.optimizer.weight_decay, training.optimizer.beta2) == (0.0001, 0.997)
    assert (training.clip_norm, training.label_smoothing, training.batch_tokens) == (None, 0.2, 131072)


@pytest.mark.parametrize(
    ("typed", "error", "where", "fix"),
    [
        (
            "decode --path m --beam-size 5 --lenpen 0.6 --remove-bpe",
            "nmt decode has no options --path, --beam-size, --lenpen, --remove-bpe",
            "nmt decode",
            "here it is --model m --beam 5 --length-penalty 0.6 --length-penalty-form length\n"
            "       --remove-bpe: leave it out: text is raw on both sides, and in order",
        ),
        (
            "train small --max-update 10 --fp16 --bf16 --lr 0.001 --nosuch --qqq",
            "nmt train has no options --max-update, --fp16, --bf16, --lr, --nosuch, --qqq",
            "nmt train",
            "here it is --set training.updates=10 --precision bf16 "
            "--set training.schedule='{name: inverse_sqrt, peak: 0.001, warmup_updates: 500}'\n"
            "       --lr: noam has a factor, which is no rate: its peak is factor / sqrt(d_model * warmup_updates)\n"
            "       --nosuch, --qqq: nmt train --help lists them all",
        ),
        (
            "prepare --source-lang fr --target-lang=en --trainpref t --validpref v --destdir d --share-vocab",
            "nmt prepare has no options --source-lang, --target-lang, --trainpref, --validpref, --destdir, "
            "--share-vocab",
            "nmt prepare",
            "here it is --languages fr-en --train t --valid v -o d --set tokenizer.shared=true",
        ),
        (
            "prepare -s fr -t en --trainpref t",
            "nmt prepare has no options -s, -t, --trainpref",
            "nmt prepare",
            "here it is --languages fr-en --train t",
        ),
        (
            "train base --set training.updates 9",
            "--set takes KEY=VALUE, not training.updates 9",
            "--set",
            "--set training.updates=9",
        ),
        (
            "prepare --set tokenizer.model = my.model",
            "--set takes KEY=VALUE, not tokenizer.model my.model",
            "--set",
            "--set tokenizer.model=my.model",
        ),
        (
            "prepare --set train=x.tsv -l en-de",
            "--train is an option of its own, not a --set",
            "--set train=x.tsv",
            "--train x.tsv",
        ),
        ("prepare -l fr_en", "-l fr_en: a hyphen separates the two languages", "-l", "-l fr-en"),
        (
            "score r -i h --languages fr_en",
            "--languages fr_en: a hyphen separates the two languages",
            "--languages",
            "--languages fr-en",
        ),
    ],
)
def test_a_command_line_is_answered_at_once(nmt: Shell, typed: str, error: str, where: str, fix: str) -> None:
    outcome = nmt(*typed.split())
    assert "\n".join(outcome.stderr) == f"error: {error}\nat:    {where}\nfix:   {fix}"
    assert outcome.code == 2


def test_an_override_that_answers_a_key_parses() -> None:
    (setting,) = re.findall(r"--set training.schedule='(.*)'", f"{PEAK}")
    assert parse_override(f"training.schedule={setting}").values["training"]["schedule"]["peak"] == 0.0005


CONFIGURATIONS = {
    "OpenNMT-py": (
        "save_data: run/example\nsrc_vocab: run/v.src\ntrain_steps: 100000\nhidden_size: 256\ntransformer_ff: 1024\n"
        "heads: 4\nlearning_rate: 2\ndecay_method: noam\ndata: {corpus_1: {path_src: a.en, path_tgt: a.de}}\n"
        "save_model: run/model\nseed: 12\nvalid_steps: 900\noptim: adam\nadam_beta2: 0.998\nmax_grad_norm: 0\n"
        "share_decoder_embeddings: true\nshare_embeddings: true\nshare_vocab: true\nsrc_subword_model: s.model\n"
        "src_subword_alpha: 0.1\nbatch_type: tokens\nbatch_size: 4096\naccum_count: [4]\nworld_size: 2\n"
        "keep_checkpoint: 3\ndropout: [0.2]\nparam_init: 0\n"
    ),
    "JoeyNMT": (
        "name: transformer_iwslt\njoeynmt_version: 2.3.0\n"
        "data: {train: a, dev: b, src: {lang: en, max_length: 62}, trg: {lang: de}}\n"
        "testing: {beam_size: 5}\ntraining: {learning_rate: 0.0005, epochs: 100}\n"
        "model: {encoder: {num_layers: 6, num_heads: 4, embeddings: {dropout: 0.0}, hidden_size: 256, "
        "ff_size: 1024, dropout: 0.3, layer_norm: post}, "
        "decoder: {num_layers: 3, num_heads: 4, ff_size: 512}}\n"
    ),
    "fairseq": (
        "common: {fp16: true}\ndataset: {max_tokens: 4096}\n"
        "task: {_name: translation, data: x}\n"
        "model: {_name: transformer, dropout: [0.3], encoder: {layers: 4, ffn_embed_dim: 1024}}\n"
        "optimization: {max_update: 100000, lr: [0.0005]}\nlr_scheduler: {_name: inverse_sqrt}\n"
        "criterion: {sentence_avg: false}\n"
    ),
    "Marian": "type: transformer\ntrain-sets: [a, b]\nvocabs: [v.spm, v.spm]\ndim-emb: 256\nenc-depth: 3\n"
    "after: 100e\nafter-batches: 50000u\ntransformer-ffn-activation: swish\nexponential-smoothing: 1e-4\n",
    "Hugging Face": '{"architectures": ["MarianMTModel"], "model_type": "marian", "d_model": 512}',
}
TAKEN = {
    "OpenNMT-py": " -o run/model --set training.updates=100000 --set model.d_model=256 --set model.d_ff=1024"
    " --set model.heads=4 --set training.seed=12 --set validation.every=900 --set training.optimizer.name=adam"
    " --set training.optimizer.beta2=0.998 --set training.clip_norm=null --set model.tying=all"
    " --set tokenizer.sampling=0.1 --set model.dropout=0.2"
    " --set training.schedule='{name: noam, factor: 2, warmup_updates: 4000}' --set training.batch_tokens=32768",
    "JoeyNMT": " --set model.encoder_layers=6 --set model.heads=4 --set model.d_model=256 --set model.d_ff=1024"
    " --set model.dropout=0.3 --set model.norm=post --set model.decoder_layers=3",
    "fairseq": " --set model.dropout=0.3 --set model.encoder_layers=4 --set model.d_ff=1024"
    " --set training.updates=100000"
    " --set training.schedule='{name: inverse_sqrt, peak: 0.0005, warmup_updates: 4000}'",
    "Marian": " --set model.d_model=256 --set model.encoder_layers=3 --set training.updates=50000"
    " --set model.activation=silu",
    "Hugging Face": " --set model.d_model=512",
}
LEFT = {
    "OpenNMT-py": (["keep_checkpoint"], ["param_init"]),
    "JoeyNMT": (
        ["max_length", "beam_size", "learning_rate", "epochs", "ff_size"],
        ["name", "joeynmt_version", "emb_dropout"],
    ),
    "fairseq": (["fp16", "max_tokens"], ["sentence_avg"]),
    "Marian": (["after", "exponential-smoothing"], []),
    "Hugging Face": ([], ["architectures", "model_type"]),
}


@pytest.mark.parametrize("toolkit", CONFIGURATIONS)
def test_a_configuration_of_another_toolkit_is_recognised_and_answered_with_the_page(
    nmt: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toolkit: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(CONFIGURATIONS[toolkit], encoding="utf-8")
    outcome = nmt("train", "config.yaml")
    assert outcome.code == 3
    by_hand, without = (", ".join(keys) for keys in LEFT[toolkit])
    message = f"config.yaml is a configuration of {toolkit}, not a recipe"
    message += f"; to set by hand, as docs/how-to/other-toolkits.md says: {by_hand}" * bool(by_hand)
    message += f"; without a counterpart: {without}" * bool(without)
    assert outcome.stderr == [
        f"error: {message}",
        "at:    config.yaml",
        f"fix:   nmt train base --data DIR{TAKEN[toolkit]}",
    ]
    typed = shlex.split(outcome.stderr[2].removeprefix("fix:   "))
    assert nmt("train", "--config", "config.yaml").stderr == outcome.stderr
    Path("child.yaml").write_text("extends: config.yaml", encoding="utf-8")
    assert nmt("train", "child.yaml").stderr == outcome.stderr
    prepared = nmt("prepare", "config.yaml").stderr
    assert prepared[0] == f"error: config.yaml is a configuration of {toolkit}, not a corpus file"
    text = {"OpenNMT-py": "a --languages en-de -o data/NAME --set tokenizer.shared=true --set tokenizer.model=s.model"}
    assert prepared[2:] == [f"fix:   nmt prepare --train {text.get(toolkit, 'FILE --languages en-de -o data/NAME')}"]
    load_recipe(typed[2], overrides=[after for flag, after in pairwise(typed) if flag == "--set"])


def test_a_batch_of_another_toolkit_counts_two_names_of_one_factor_once() -> None:
    batch = batch_tokens_of({"max_tokens": 4096, "world_size": 8, "num_gpus": 8, "update-freq": [2]})
    assert batch is not None
    assert (batch.tokens, batch.factors) == (65_536, "max_tokens 4096 * update_freq 2 * world_size 8")


@pytest.mark.parametrize("value", ["no", "off", "0", 0, False, "False"])
def test_what_other_toolkits_read_as_false_is_false(value: object) -> None:
    assert convert_configuration({"share_embeddings": value}).settings == ["model.tying=none"]
    assert convert_configuration({"pre_norm": value}).settings == ["model.norm=post"]


def test_the_kind_of_norm_of_another_toolkit_is_left_to_the_user() -> None:
    converted = convert_configuration({"layer_norm": "rms"})
    assert (converted.settings, converted.by_hand) == ([], ["layer_norm"])


def test_the_text_of_another_toolkit_is_named_as_a_shell_takes_it() -> None:
    data = {"valid": {"path_src": "my dev.en", "path_tgt": "my dev.de"}}
    flags = flags_of_text({"data": data, "src_subword_model": "it's.model"})
    typed = ["--train", "FILE", "--valid", "my dev", "--languages", "en-de", "-o", "data/NAME"]
    assert shlex.split(" ".join(flags)) == [*typed, "--set", "tokenizer.model=it's.model"]


def test_opennmts_noam_is_ours() -> None:
    def rate(step: int, warmup_steps: int, model_size: int) -> float:  # onmt/utils/optimizers.py, noam_decay
        return float(model_size ** (-0.5) * min(step ** (-0.5), step * warmup_steps ** (-1.5)))

    values = {"decay_method": "noam", "learning_rate": 2, "warmup_steps": 8, "hidden_size": 64}
    recipe = load_recipe("base", overrides=convert_configuration(values).settings)
    for step in (1, 7, 8, 9, 100):
        ours = scheduled_rate(recipe.training.schedule, update=step, num_updates=1000, d_model=recipe.model.d_model)
        assert ours == pytest.approx(2 * rate(step, 8, 64), rel=1e-12)


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n"])
def test_an_empty_file_is_no_recipe(nmt: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(text, encoding="utf-8")
    outcome = nmt("train", "mine.yaml")
    assert outcome.stderr[:2] == ["error: mine.yaml holds no recipe: it is empty", "at:    mine.yaml"]
    assert "extends: base.yaml" in outcome.stderr[2]


def test_an_error_that_needs_no_torch_comes_before_torch_is_imported(tmp_path: Path) -> None:
    watch = """
import sys
from nmt_cli.cli import app
for typed in sys.argv[1:]:
    print(app._run_and_flush(typed.split()), "torch" in sys.modules, typed)"""
    command = [sys.executable, "-c", watch, *NEED_NO_TORCH]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    told = [re.sub("^[2-5] False ", "", line) for line in process.stdout.splitlines()]
    assert told == NEED_NO_TORCH, process.stderr
    assert len(re.findall("^error: ", process.stderr, flags=re.MULTILINE)) == len(NEED_NO_TORCH)
