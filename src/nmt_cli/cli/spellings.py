"""The options of other toolkits, and how `nmt` spells them, so that typing from habit gets an answer.

fairseq, OpenNMT-py and eole, Sockeye, Marian, Hugging Face's scripts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.errors import NmtError, UsageError, nearest_word
from nmt_cli.recipe.counterparts import NEXT_LINE, as_flag, batch_tokens_of

_PLACEHOLDER = re.compile(r"\{([A-Z]+)\}")
_EXAMPLE_PAIR = "en-de"
# By command: each answer, and the spellings of other toolkits that it answers. An answer is what to type here, or a
# sentence. {N} is the value that was typed, and a note stands after #. --beam-size stands for -beam_size and
# --beam_size as well; a spelling with one hyphen stands for itself alone. Settings of recipes are in
# nmt_cli.recipe.other_toolkits_keys.
SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "prepare": {
        "--languages en-de": "--source-lang --target-lang --src-lang --tgt-lang --trg-lang -s -t",
        "--train {PREFIX}": "--trainpref",
        "--train PREFIX": "--train-sets --src --src-train --train-src",
        "--valid {PREFIX}": "--validpref",
        "--valid PREFIX": "--valid-sets --dev",
        "--test {PREFIX}": "--testpref",
        "-o {DIR}": "--destdir --save-data --output-dir",
        "--set tokenizer.shared=true": "--joined-dictionary --share-vocab --shared-vocab",
        "--set tokenizer.vocab_size={N}": (
            "--nwordssrc --nwordstgt --num-words --src-vocab-size --tgt-vocab-size --vocab-size --bpe-operations"
        ),
        "--set tokenizer.model={FILE} # a SentencePiece model": (
            "--spm --spm-model --sentencepiece-model --tokenizer --tokenizer-model --src-subword-model --vocabs"
        ),
        "leave it out: text is raw, and nmt prepare learns a SentencePiece model; yours: --set tokenizer.model=FILE": (
            "--bpe --bpe-codes --codes --srcdict --tgtdict --src-vocab --tgt-vocab --vocab"
        ),
        "the same nmt prepare continues where it stopped": "--resume",
    },
    "train": {
        "name a recipe: nmt train base, or nmt train FILE.yaml": "--arch -a --task --config -config --hparams-set",
        "-o {DIR}": "--save-dir --save-model --output-dir --model-dir --run-name",
        "--data {DIR}": "--data-dir --prepared-data",
        "--precision bf16": "--fp16 --bf16 --amp --memory-efficient-fp16 --half",
        "--gpus {N}": "--world-size --num-gpus --nproc-per-node --distributed-world-size --ngpus",
        "give the same command as before: it continues by itself": (
            "--restore-file --train-from --resume-from-checkpoint --resume --continue --load-model"
        ),
        "--init-from {MODEL}": "--finetune-from-model --pretrained-model --init-model",
        "leave it out: the prepared data has its text and vocabulary: nmt prepare --train PREFIX --languages en-de": (
            "--src --tgt --source-lang --target-lang --src-vocab --tgt-vocab --vocab --bpe --spm --tokenizer"
        ),
        "it belongs to the data: nmt prepare CORPUS --set tokenizer.vocab_size={N}": "--vocab-size",
    },
    "average": {
        "name the run: nmt average RUN": "--inputs --models -models",
        "name the run: nmt average {RUN}": "--model -m",
        "--last N": "--num-epoch-checkpoints --num-update-checkpoints",
        "--best N": "--num-best-checkpoints",
    },
    "decode": {
        "--model {DIR}": "--path --models --model-path -model -models",
        "--input {FILE}": "--src -src",
        "--output {FILE}": "--results-path -output",
        "--beam {N}": "--beam-size --num-beams",
        "--nbest {N}": "--n-best --nbest-size --num-hypotheses",
        "--length-penalty {A} --length-penalty-form length": "--lenpen --normalize",
        "--length-penalty {A}": "--alpha --length-penalty-alpha",
        "--length-penalty-form gnmt (wu), length (avg) or none, with --length-penalty A": "-length_penalty",
        "--max-extra-tokens N # a translation has at most N pieces more than its source": (
            "--max-len-a --max-len-b --max-length --max-length-ratio --max-length-factor --max-output-length"
        ),
        "--batch-tokens N # source pieces times beam": "--max-tokens --batch-size --mini-batch --max-sentences",
        "leave it out: lines are translated as they come": "--buffer-size --interactive",
        "leave it out: text is raw on both sides, and in order": "--remove-bpe --post-process --replace-unk --bpe",
        "leave it out: the model knows its languages": (
            "--source-lang --target-lang --src-lang --tgt-lang --trg-lang --languages -l -s -t"
        ),
        "leave it out: the model has its vocabulary": "--vocab --vocabs --tokenizer --spm",
        "--precision bf16": "--fp16 --bf16",
        "--device cpu": "--cpu --use-cpu",
        "--threads {N}": "--cpu-threads --intra-threads --inter-threads",
        "--samples N": "--sampling --sample --random-sampling",
        "--top-k {N} # with --samples": "--sampling-topk --random-sampling-topk --sampling-top-k",
        "--top-p {P} # with --samples": "--sampling-topp --random-sampling-topp",
        "--temperature {T} # with --samples": "--sampling-temperature --random-sampling-temp --sampling-temp",
        "--min-tokens {N}": "--min-len --min-length --min-decoding-length",
        "--prefix FILE": "--prefix-size --tgt-prefix --target-prefix",
        "--alignments --format tsv": "--print-alignment --report-align --alignment --return-attention",
        "--word-scores --format tsv": "--word-level-scores",
        "--device cuda": "--gpu --devices",
        "--format text, tsv or jsonl": "--output-type --with-score",
        "--format jsonl": "--json",
        "nmt lacks it: leave it out": (
            "--no-repeat-ngram-size --repetition-penalty --block-ngram-repeat --ngram-repeat-block "
            "--disable-unigram-repeat --coverage-penalty --diverse-beam-groups --diversity-strength --num-beam-groups"
        ),
        "there are no glossaries; the nearest is --prefix FILE": "--glossary --constraints --lexical-constraints",
    },
    "export": {
        "-o {DIR}": "--output-dir",
        "--precision {NAME}": "--quantization",
        "name the model: nmt export {MODEL}": "--model --model-dir --model-path -m",
        "--overwrite": "--force",
    },
    "info": {"name the directory: nmt info {DIR}": "--model -m --data --run"},
    "report": {"name the run: nmt report {RUN}": "--model -m --run"},
    "score": {
        "name the files: nmt score REFERENCE -i HYPOTHESIS": (
            "--sys --ref --hypotheses --references --hyp --hypothesis --reference --refs -r --system -sys -hyp -ref"
        ),
        "--source {FILE}": "--src -src",
        "--metrics {NAMES}": "--metric",
        "--paired bs": "--paired-bs",
        "--paired ar": "--paired-ar",
    },
    "serve": {
        "--port {N}": "-p",
        "--host {ADDRESS}": "--address --bind",
        "--model {DIR}": "--model-dir --model-path --path",
    },
}

# The recipes of fairseq's architectures, by their sizes: the first pattern that fits.
_RECIPE_OF_ARCHITECTURE = {
    r"transformer_iwslt_de_en": "iwslt14-de-en",
    r"transformer_(?:vaswani_wmt_en_fr|wmt_en_fr)_big": "big-en-fr",
    r"transformer_(?:vaswani_)?wmt_en_de_big(?:_t2t)?": "big",
    r"transformer(?:_wmt_en_de)?": "base",
}

# What other toolkits, and everybody, call our commands.
COMMANDS: Mapping[str, str] = {
    "prepare": "preprocess binarize tokenize build-vocab build_vocab onmt_build_vocab learn-bpe fairseq-preprocess",
    "train": "fit finetune fine-tune fairseq-train onmt_train marian resume",
    "average": "avg average-checkpoints average_models",
    "decode": "translate generate interactive infer inference predict ensemble fairseq-generate onmt_translate "
    "marian-decoder",
    "score": "evaluate eval bleu sacrebleu comet ter chrf validate",
    "serve": "server api rest web",
    "export": "convert",
    "info": "show status ls inspect describe",
    "report": "watch monitor plot",
    "corpora": "datasets corpus list-corpora",
}


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer to an option of another toolkit: the options to type here, and a sentence. Either may be empty."""

    options: str
    note: str = ""

    def __str__(self) -> str:
        return NEXT_LINE.join(filter(None, (self.options and f"here it is {self.options}", self.note)))


def check_options(command: str, arguments: Sequence[str], own: Mapping[str, str]) -> None:
    """Raise UsageError, with what to type instead, for an option that the command does not have or a misspelt value.

    `own` are the options of the command, each with the name of its value; the name is empty if it takes no value.
    """
    foreign: dict[str, str | None] = {}
    for option, value, rest in _split_options(command, arguments, own):
        if option not in own:
            foreign.setdefault(option, value)
        elif option == "--set":
            _check_setting(value or "", rest)
        elif own[option] == own.get("--languages"):
            _check_language_pair(option, value or "")
    if not foreign:
        return
    answers = {option: _answer(command, option, own=own, arguments=arguments, foreign=foreign) for option in foreign}
    names = ", ".join(foreign)
    if len(foreign) == 1:
        raise UsageError(f"nmt {command} has no option {names}", where=names, hint=_join_answers(answers))
    raise UsageError(f"nmt {command} has no options {names}", where=f"nmt {command}", hint=_join_answers(answers))


def _check_setting(setting: str, rest: Sequence[str]) -> None:
    """Raise UsageError if --set has the key alone, and the value follows as a word: `--set KEY VALUE`."""
    if setting and "=" not in setting and rest and not rest[0].startswith("-"):
        value = rest[1] if rest[0] == "=" and rest[1:] else rest[0]
        message = f"--set takes KEY=VALUE, not {setting} {value}"
        raise UsageError(message, where="--set", hint=f"--set {setting}={shlex.quote(value)}")


def _check_language_pair(option: str, pair: str) -> None:
    """Raise UsageError if another sign than a hyphen separates the languages: `en_de`."""
    if re.fullmatch("[a-z]{2,3}[_,:/][a-z]{2,3}", pair):
        message = f"{option} {pair}: a hyphen separates the two languages"
        raise UsageError(message, where=option, hint=f"{option} {re.sub('[_,:/]', '-', pair)}")


def _answer(
    command: str, option: str, *, own: Mapping[str, str], arguments: Sequence[str], foreign: Mapping[str, str | None]
) -> _Answer:
    """The answer to one of the `foreign` options, which the command does not have, each with its value."""
    value = foreign[option]
    if hint := _answer_by_value(command, option, value) or _answer_in_table(command, option):
        hint = _fill_in(hint.replace(_EXAMPLE_PAIR, _language_pair(arguments)), value)
        options, _, note = hint.partition(" # ")
        return _Answer(options, note) if options.startswith("-") else _Answer("", options)
    if (respelt := _with_two_hyphens(option)) in own:
        shown_value = shlex.quote(value) if value else own[respelt]
        return _Answer(f"{respelt} {shown_value}" if own[respelt] else respelt)
    if command == "train" and (answer := _answer_with_setting(option, arguments, foreign)):
        return answer
    hint = f"nmt {command} --help lists them all"
    near = nearest_word(option, [known for known in own if known.startswith("--")])
    return _Answer("", f"did you mean {near}? {hint}" if near else hint)


def _answer_by_value(command: str, option: str, value: str | None) -> str | None:
    """The answer to an option that depends on its value; None if it does not."""
    if command == "train" and option in ("--arch", "-a") and value:
        recipe = next((name for arch, name in _RECIPE_OF_ARCHITECTURE.items() if re.fullmatch(arch, value)), None)
        if recipe is None:
            return None
        note = f"{NEXT_LINE}it trains with SimCut; --set training.consistency=null trains without it"
        return f"name the recipe of its sizes: nmt train {recipe}{note if recipe == 'iwslt14-de-en' else ''}"
    if command in ("train", "prepare") and option in ("--config", "-config") and Path(value or "").is_file():
        return _answer_to_file(command, str(value))
    if command == "train" and option == "--criterion":
        loss = re.search("simcut|r_?drop", value or "")
        return f"--set training.consistency='{{name: {loss[0].replace('rdrop', 'r_drop')}}}'" if loss else None
    return None


def _answer_to_file(command: str, file: str) -> str:
    """How to name a file as an argument; its own error if it is a configuration of another toolkit."""
    from nmt_cli.preparing.corpus_loading import load_corpus
    from nmt_cli.recipe.loading import load_recipe

    if command == "prepare":
        load_corpus(file, overrides=())
    else:
        load_recipe(file)
    return f"name the file: nmt {command} {shlex.quote(file)}"


def _language_pair(arguments: Sequence[str]) -> str:
    """The two languages that options of other toolkits name, as SOURCE-TARGET; an example if they do not."""
    words = " ".join(arguments)
    source = re.search(r"(?<!\S)(?:--(?:source|src)[-_]lang|-s)[= ]([a-z]{2,3})\b", words)
    target = re.search(r"(?<!\S)(?:--(?:target|tgt|trg)[-_]lang|-t)[= ]([a-z]{2,3})\b", words)
    return f"{source[1]}-{target[1]}" if source and target else _EXAMPLE_PAIR


def _answer_in_table(command: str, option: str) -> str | None:
    """The answer in the table to an option of another toolkit; None if it has none."""
    hints = {spelling: hint for hint, spellings in SPELLINGS.get(command, {}).items() for spelling in spellings.split()}
    return hints.get(option) or hints.get(_with_two_hyphens(option))


def _with_two_hyphens(option: str) -> str:
    return "--" + option.lstrip("-").replace("_", "-")


def _join_answers(answers: Mapping[str, _Answer]) -> str:
    """The answers to the options: a line with all that can be typed, and a line for each sentence."""
    typable: list[str] = []
    options_by_note: dict[str, list[str]] = {}
    for option, answer in answers.items():
        is_choice = re.search(r"[,:] | or ", re.sub("'[^']*'", "", answer.options)) is not None
        if answer.options and not is_choice:
            typable.append(answer.options)
        if note := str(answer) if is_choice else answer.note:
            options_by_note.setdefault(note, []).append(option)
    lines = [f"here it is {' '.join(_without_contradictions(typable))}"] if typable else []
    for note, options in options_by_note.items():
        lines.append(note if len(answers) == 1 else f"{', '.join(options)}: {note}")
    return NEXT_LINE.join(lines)


def _without_contradictions(settings: Sequence[str]) -> list[str]:
    """The settings, each once: a whole section comes before its keys, and has neither a second name nor an example."""
    matches = [re.match(r"--set ([a-z.]+)='\{name: (?!.*RATE)", setting) for setting in settings]
    whole_sections = [match[1] for match in matches if match]
    second_names = tuple(f"--set {section}.name=" for section in whole_sections)
    kept = [setting for setting in dict.fromkeys(settings) if not setting.startswith(second_names)]
    if "training.schedule" in whole_sections:
        kept = [setting for setting in kept if "peak: RATE" not in setting]
    keys = tuple(f"--set {section}." for section in whole_sections)
    return sorted(kept, key=lambda setting: setting.startswith(keys))


def _answer_with_setting(option: str, arguments: Sequence[str], foreign: Mapping[str, str | None]) -> _Answer | None:
    """The --set for an option that is a key of a recipe, here or in another toolkit, with its value; else None."""
    from nmt_cli.recipe.key_paths import dotted_key, key_paths
    from nmt_cli.recipe.mistakes import answer_in, refusal
    from nmt_cli.recipe.schema import Recipe

    key, value = _as_key(option), foreign[option]
    answer = answer_in(Recipe, key, value, warmup_updates=_warmup_updates(arguments))
    product = batch_tokens_of({_as_key(name): amount for name, amount in foreign.items()})
    if answer and product and answer.settings == ["training.batch_tokens=N"]:
        answer = product.answer
    if answer:
        return _Answer(" ".join(map(as_flag, answer.settings)), answer.note)
    paths = list(key_paths(Recipe))
    sections = {path[:-1] for path in paths}
    same_keys = [dotted_key(path) for path in paths if path[-1] == key and path not in sections]
    if not same_keys:
        return None
    why_refused = next(filter(None, (refusal(f"{same_key}={value}", Recipe) for same_key in same_keys)), "")
    shown_value = "N" if value is None or why_refused else shlex.quote(value)
    return _Answer(" or ".join(f"--set {same_key}={shown_value}" for same_key in same_keys), why_refused)


def _as_key(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _warmup_updates(arguments: Sequence[str]) -> int | None:
    """The warm-up of the recipe on the command line, or None if there is no recipe."""
    from nmt_cli.recipe.loading import load_recipe

    for name in arguments:
        with suppress(NmtError):  # most words are no recipe
            return load_recipe(name).training.schedule.warmup_updates
    return None


def command_for(name: str) -> str | None:
    """Our name of a command of another toolkit; None if there is none."""
    return next((command for command, foreign_names in COMMANDS.items() if name.lower() in foreign_names.split()), None)


def command_name(arguments: Sequence[str]) -> str:
    """The command among the arguments of `nmt`, or an empty string. No option before the command takes a value."""
    return next((argument for argument in arguments if not argument.startswith("-")), "")


def _fill_in(hint: str, value: str | None) -> str:
    """The hint with the value, quoted for a shell, or with the name of the placeholder if there is no value."""
    return _PLACEHOLDER.sub(lambda placeholder: shlex.quote(value) if value else placeholder[1], hint)


def _split_options(
    command: str, arguments: Sequence[str], own: Mapping[str, str]
) -> Iterator[tuple[str, str | None, list[str]]]:
    """The options of a command line, each with its value if there is one, and the words after the value."""
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            return
        option, equals, value = word.partition("=")
        if not re.match(r"--?[A-Za-z]", option):
            continue
        has_attached_value = bool(equals)
        if short := _short_option(command, word, own):
            option, value = short, word.partition(short[1])[2]
            has_attached_value = bool(value)
        takes_value = own.get(option, "VALUE") != ""
        if takes_value and has_attached_value:
            yield option, value, words
        elif takes_value and words and (option in own or not words[0].startswith("-")):
            yield option, words.pop(0), words
        else:
            yield option, None, words


def _short_option(command: str, word: str, own: Mapping[str, str]) -> str | None:
    """The last option of a word such as -n, -n5 or -qn5; None if it is another word than short options of ours."""
    if word.startswith("--") or _answer_in_table(command, word) or _with_two_hyphens(word) in own:
        return None
    for letter in word[1:]:
        if own.get(f"-{letter}") != "":
            return f"-{letter}" if f"-{letter}" in own else None
    return f"-{word[-1]}"
