"""The options of other toolkits, and how `nmt` spells them, so that typing from habit gets an answer.

fairseq, OpenNMT-py and eole, Sockeye, Marian, Hugging Face's scripts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nmt_cli.cli.arguments import command_name
from nmt_cli.errors import UsageError

# For each command: what to type here, or a sentence, and the spellings that this answers. --beam-size
# stands for -beam_size and --beam_size as well; a spelling with one hyphen stands for itself alone.
SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "prepare": {
        "--languages en-de": "--source-lang --target-lang",
        "--train PREFIX": "--trainpref --train-sets",
        "--valid PREFIX": "--validpref --valid-sets",
        "--test PREFIX": "--testpref",
        "-o DIR": "--destdir --save-data",
        "--set tokenizer.shared=true": "--joined-dictionary --share-vocab --shared-vocab",
        "--set tokenizer.vocab_size=N": "--nwordssrc --nwordstgt --num-words --src-vocab-size --tgt-vocab-size",
    },
    "train": {
        "name a recipe: nmt train base, or nmt train FILE.yaml": "--arch --task --config -config --hparams-set",
        "-o DIR": "--save-dir --save-model --output-dir --model-dir",
        "--data DIR": "--data-dir --prepared-data",
        "--set training.updates=N": "--max-update --max-updates --max-steps --train-steps --after",
        "--set training.updates=N; with prepared data --dry-run says how many an epoch has": (
            "--max-epoch --num-train-epochs"
        ),
        "--set training.batch_tokens=N, counted over all GPUs and accumulated batches together": (
            "--max-tokens --batch-size --mini-batch --per-device-train-batch-size"
        ),
        "--set training.batch_tokens=N, from which accumulation is derived": (
            "--update-freq --accum-count --optimizer-delay --update-interval --gradient-accumulation-steps"
        ),
        "--set training.schedule.factor=N (noam), or --set training.schedule.peak=N (cosine)": (
            "--lr --learning-rate --learn-rate --initial-learning-rate"
        ),
        "--set training.schedule.name=noam": "--lr-scheduler --decay-method --learning-rate-scheduler-type",
        "--set training.schedule.warmup_updates=N": (
            "--warmup-updates --warmup-steps --lr-warmup --learning-rate-warmup"
        ),
        "--set training.optimizer.name=adam": "--optimizer --optim",
        "--set training.optimizer.beta1=0.9 --set training.optimizer.beta2=0.98": "--adam-betas",
        "--set training.clip_norm=N": "--clip-norm --max-grad-norm",
        "--set training.label_smoothing=N": "--label-smoothing",
        "--set training.seed=N": "--seed",
        "--set training.checkpoint_every=N": (
            "--save-interval-updates --save-checkpoint-steps --save-freq --checkpoint-interval"
        ),
        "--set training.keep_last=N": "--keep-interval-updates --keep-checkpoint --keep-last-params",
        "--set training.patience=N": "--patience --early-stopping --max-num-checkpoint-not-improved",
        "--set validation.every=N": "--validate-interval-updates --valid-steps --valid-freq",
        "--set model.dropout=N": "--dropout",
        "--precision bf16": "--fp16 --bf16 --amp --memory-efficient-fp16",
        "give the same command as before: it resumes by itself": "--restore-file --train-from --resume-from-checkpoint",
    },
    "average": {
        "name the run: nmt average RUN": "--inputs --models -models",
        "--last N": "--num-epoch-checkpoints --num-update-checkpoints",
        "--best N": "--num-best-checkpoints",
    },
    "decode": {
        "--model DIR": "--path --models --model-path -model -models",
        "--input FILE": "--src -src",
        "--output FILE": "--results-path -output",
        "--beam N": "--beam-size --num-beams",
        "--nbest N": "--n-best --nbest-size --num-hypotheses",
        "--length-penalty A --length-penalty-form length": "--lenpen --normalize",
        "--length-penalty A": "--alpha --length-penalty-alpha",
        "--length-penalty-form gnmt (wu), length (avg) or none, with --length-penalty A": "-length_penalty",
        "--max-extra-tokens N: a translation has at most N pieces more than its source": (
            "--max-len-a --max-len-b --max-length --max-length-ratio --max-length-factor --max-output-length"
        ),
        "--batch-tokens N, source pieces times beam": "--max-tokens --batch-size --mini-batch --max-sentences",
        "leave it out: lines are translated as they come": "--buffer-size --interactive",
        "leave it out: text is raw on both sides, and in order": "--remove-bpe --post-process --replace-unk --bpe",
        "--precision bf16": "--fp16 --bf16",
        "--device cpu": "--cpu --use-cpu",
        "--threads N": "--cpu-threads --intra-threads --inter-threads",
        "--samples N": "--sampling --sample --random-sampling",
        "--top-k N, with --samples": "--sampling-topk --random-sampling-topk --sampling-top-k",
        "--top-p P, with --samples": "--sampling-topp --random-sampling-topp",
        "--temperature T, with --samples": "--sampling-temperature --random-sampling-temp --sampling-temp",
        "--min-tokens N": "--min-len --min-length --min-decoding-length",
        "--prefix FILE": "--prefix-size --tgt-prefix --target-prefix",
        "--alignments, with --format tsv": "--print-alignment --report-align --alignment --return-attention",
        "--word-scores, with --format tsv": "--word-level-scores",
        "--device cuda": "--gpu --devices",
        "--format text, tsv or jsonl": "--output-type --with-score",
    },
    "export": {
        "-o DIR": "--output-dir",
        "--precision NAME": "--quantization",
        "name the model: nmt export MODEL": "--model --model-dir --model-path",
        "--overwrite": "--force",
    },
    "score": {
        "name the files: nmt score REFERENCE -i HYPOTHESIS": "--sys --ref --hypotheses --references",
        "--metrics NAMES": "--metric",
    },
}


def check_spellings(arguments: Sequence[str]) -> None:
    """Raise UsageError, with our spelling, if the command line has an option of another toolkit."""
    command = command_name(arguments)
    ours = {spelling: hint for hint, spellings in SPELLINGS.get(command, {}).items() for spelling in spellings.split()}
    for option in _options(arguments):
        hint = ours.get(option) or ours.get("--" + option.lstrip("-").replace("_", "-"))
        if hint is not None:
            here = f"here it is {hint}" if hint.startswith("-") else hint
            raise UsageError(f"nmt {command} has no option {option}", where=option, hint=here)


def _options(arguments: Sequence[str]) -> Iterator[str]:
    """The options of a command line, without values; an option with a single hyphen counts only as a whole word."""
    for argument in arguments:
        if argument == "--":
            return
        option = argument.partition("=")[0]
        if option.startswith("--") or (option.startswith("-") and len(option) > 2):
            yield option
