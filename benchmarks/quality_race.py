"""Translation quality after a few minutes of training: `nmt`, and a peer's loop with the same data, time and device.

python benchmarks/quality_race.py --train mix/train --valid tatoeba/valid --test flickr=multi30k/test_2016_flickr \
    --test tatoeba=tatoeba/test --test news=newstest/newstest2013 --minutes 6 --peer benchmarks/peers

--sides chooses the sides; the default is all. `ours` trains a recipe by `nmt train`, stops it with SIGTERM after
--minutes of training, averages the last checkpoints, and translates. `peer` trains by train.py of the folder --peer
with our pieces, and translates by its decode.py. `small` trains the recipe multi30k to its end on --small-train and
--small-valid, and scores the first test set: cased by sacreBLEU, and lower-cased in Moses' tokens. Data and runs that
--folder already holds are not made again. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from measuring import (
    NMT,
    Figures,
    argument_parser,
    circumstances,
    lines_of,
    nmt_decode,
    nmt_train,
    run,
    run_peer,
    score,
)

_SIDES = ("ours", "peer", "small")
_MOST_WORDS = 250  # as nmt prepare has it by default: the peer must not meet what was cleaned away
_POLL_SECONDS = 0.2


def main() -> None:
    """Run the sides, and print the scores of each."""
    arguments = _arguments()
    sides = arguments.sides.split(",")
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    result: Figures = {
        "benchmark": "sacreBLEU after some minutes of training",
        **circumstances(arguments.device, commit=arguments.commit),
        "minutes": arguments.minutes,
        "batch_tokens": arguments.batch_tokens,
        "beam": arguments.beam,
    }
    if "ours" in sides or "peer" in sides:
        _prepare(arguments, folder / "data", train=arguments.train, valid=arguments.valid, pieces=arguments.vocab_size)
    if "ours" in sides:
        result["ours"] = _ours(arguments, folder)
    if "peer" in sides:
        result["peer"] = _peer(arguments, folder)
    if "small" in sides:
        result["small"] = [_small(arguments, folder, seed) for seed in arguments.seeds.split(",")]
    print(json.dumps(result, indent=2))


def _prepare(arguments: argparse.Namespace, output: Path, *, train: str, valid: str, pieces: int) -> None:
    if not output.exists():
        texts = ["--train", train, "--valid", valid, "--languages", arguments.languages]
        run([*NMT, "prepare", *texts, "--set", f"tokenizer.vocab_size={pieces}", "-o", str(output)])


def _ours(arguments: argparse.Namespace, folder: Path) -> Figures:
    directory, start = folder / "ours", time.perf_counter()
    settings = [f"training.batch_tokens={arguments.batch_tokens}", f"model.dropout={arguments.dropout}"]
    settings += [f"training.checkpoint_every={arguments.checkpoint_every}", "training.log_every=20"]
    settings += ["validation.bleu=false", "validation.metric=loss", "validation.every=1000", *arguments.settings]
    command = [*NMT, "train", arguments.recipe, "--data", str(folder / "data"), "-o", str(directory)]
    command += ["--device", arguments.device, *(part for setting in settings for part in ("--set", setting))]
    if not (directory / "averaged").exists():
        _train_for(command, directory / "metrics.jsonl", seconds=60 * arguments.minutes)
    seconds = time.perf_counter() - start
    trained = _last_line(directory / "metrics.jsonl")
    return {
        "command": shlex.join(["nmt", *command[len(NMT) :]]),
        "updates": trained["update"],
        "seconds": round(trained["seconds"], 1),
        "seconds_with_start_and_end": round(seconds, 1),
        "tokens_per_second": round(_target_tokens(directory / "metrics.jsonl") / trained["seconds"]),
        "bleu": _translated(arguments, directory, _averaged(directory)),
    }


def _train_for(command: list[str], metrics: Path, *, seconds: float) -> None:
    """Run a training until its log has `seconds` seconds of training; then end it with SIGTERM."""
    with metrics.parent.with_suffix(".log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        is_over = False
        while process.poll() is None:
            time.sleep(_POLL_SECONDS)
            if not is_over and metrics.exists() and _last_line(metrics).get("seconds", 0.0) >= seconds:
                process.send_signal(signal.SIGTERM)
                is_over = True
    if process.returncode not in ((0, 75) if is_over else (0,)):
        sys.exit(f"{shlex.join(command)} ended with {process.returncode}:\n{Path(log.name).read_text()[-4000:]}")


def _averaged(directory: Path) -> Path:
    """Average the run's last checkpoints: as many as its recipe asks for, or all if there are fewer."""
    output = directory / "averaged"
    if not output.exists():
        from nmt_cli.artifacts.run import open_run

        trained = open_run(directory)
        last = min(trained.recipe.averaging.last or 1, len(trained.checkpoints()))
        run([*NMT, "average", str(directory), "--last", str(last)])
    return output


def _translated(arguments: argparse.Namespace, folder: Path, model: Path) -> dict[str, float]:
    scores = {}
    for name, prefix in _tests(arguments):
        source, reference = _sides(arguments, prefix)
        output = folder / f"{name}.hyp"
        nmt_decode(model, source, output, "--beam", str(arguments.beam), "--device", arguments.device)
        scores[name] = score(output, reference)
    return scores


def _peer(arguments: argparse.Namespace, folder: Path) -> Figures:
    python = [arguments.peer_python or sys.executable]
    model, spm = folder / "peer", str(folder / "data" / "source.spm")
    texts = _plain_text(arguments, folder)
    command = [*python, f"{arguments.peer}/train.py", "--src", str(texts[0]), "--tgt", str(texts[1]), "--spm", spm]
    command += ["--size", arguments.peer_size, "--precision", "bf16", "--device", arguments.device]
    command += ["--batch-tokens", str(arguments.batch_tokens), "--dropout", str(arguments.dropout)]
    command += ["--minutes", str(arguments.minutes), "--save", str(model), *shlex.split(arguments.peer_options)]
    log = folder / "peer.json"
    if not log.exists():
        log.write_text(run_peer(command).strip().splitlines()[-1], encoding="utf-8")
    scores = {}
    for name, prefix in _tests(arguments):
        source, reference = _sides(arguments, prefix)
        output = folder / f"peer-{name}.hyp"
        decode = [*python, f"{arguments.peer}/decode.py", "--engine", "hf", "--model", str(model), "--spm", spm]
        decode += ["--input", str(source), "--output", str(output), "--device", arguments.device, "--runs", "1"]
        precision = "bfloat16" if arguments.device.startswith("cuda") else "float32"
        run_peer([*decode, "--beam", str(arguments.beam), "--batch", "256", "--precision", precision])
        scores[name] = score(output, reference)
    return {"command": shlex.join(["python", *command[1:]]), **json.loads(log.read_text()), "bleu": scores}


def _plain_text(arguments: argparse.Namespace, folder: Path) -> tuple[Path, Path]:
    """Write the training text as two plain files, without the pairs that `nmt prepare` drops for their length."""
    source, target = _sides(arguments, arguments.train)
    outputs = folder / "plain.source", folder / "plain.target"
    if not outputs[1].exists():
        with outputs[0].open("w", encoding="utf-8") as left, outputs[1].open("w", encoding="utf-8") as right:
            for pair in zip(lines_of(source), lines_of(target), strict=True):
                if all(0 < len(line.split()) <= _MOST_WORDS for line in pair):
                    left.write(pair[0] + "\n")
                    right.write(pair[1] + "\n")
    return outputs


def _small(arguments: argparse.Namespace, folder: Path, seed: str) -> Figures:
    data, directory = folder / "small-data", folder / f"small-{seed}"
    _prepare(arguments, data, train=arguments.small_train, valid=arguments.small_valid, pieces=arguments.small_pieces)
    settings = [f"training.seed={seed}", "training.log_every=20", "validation.bleu=false", "validation.metric=loss"]
    settings += arguments.small_settings
    nmt_train("multi30k", data=data, output=directory, device=arguments.device, settings=settings)
    name, prefix = _tests(arguments)[0]
    source, reference = _sides(arguments, prefix)
    output = directory / f"{name}.hyp"
    nmt_decode(_averaged(directory), source, output, "--beam", str(arguments.beam), "--device", arguments.device)
    trained = _last_line(directory / "metrics.jsonl")
    return {
        "seed": int(seed),
        "updates": trained["update"],
        "seconds": round(trained["seconds"], 1),
        "test": name,
        "bleu": score(output, reference),
        "lower_cased_tokenised_bleu": _tokenised_bleu(output, reference, language=arguments.languages[-2:]),
    }


def _tokenised_bleu(hypothesis: Path, reference: Path, *, language: str) -> float:
    """BLEU of lower-cased Moses tokens, without splitting compounds, as in papers on Multi30k."""
    from sacrebleu.metrics.bleu import BLEU
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang=language)
    texts = [
        [tokenizer.tokenize(line, return_str=True).lower() for line in lines_of(file)]
        for file in (hypothesis, reference)
    ]
    value: float = BLEU(tokenize="none", force=True).corpus_score(texts[0], [texts[1]]).score
    return round(value, 2)


def _tests(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    return [(name, prefix) for name, _, prefix in (test.partition("=") for test in arguments.tests)]


def _sides(arguments: argparse.Namespace, prefix: str) -> tuple[Path, Path]:
    """The two files of a text, plain or .gz."""
    files = [Path(f"{prefix}.{language}") for language in arguments.languages.split("-")]
    source, target = (file if file.exists() else Path(f"{file}.gz") for file in files)
    return source, target


def _last_line(metrics: Path) -> Figures:
    """The newest line about training; empty if there is none yet."""
    found = [line for line in metrics.read_text(encoding="utf-8").splitlines() if line.startswith('{"event": "train"')]
    last: Figures = json.loads(found[-1]) if found else {}
    return last


def _target_tokens(metrics: Path) -> int:
    events = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return sum(event["target_tokens"] for event in events if event["event"] == "train")


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--sides", default=",".join(_SIDES))
    parser.add_argument("--train", metavar="PREFIX", help="training text, plain or .gz; PREFIX.en and so on")
    parser.add_argument("--valid", metavar="PREFIX")
    parser.add_argument("--test", dest="tests", action="append", required=True, metavar="NAME=PREFIX")
    parser.add_argument("--small-train", metavar="PREFIX", help="of the recipe multi30k")
    parser.add_argument("--small-valid", metavar="PREFIX")
    parser.add_argument("--languages", default="en-de")
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--small-pieces", type=int, default=8_000)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--recipe", default="base")
    parser.add_argument("--batch-tokens", type=int, default=25_000)
    parser.add_argument("--dropout", type=float, default=0.3, help="of ours and of the peer")
    parser.add_argument("--checkpoint-every", type=int, default=500, metavar="UPDATES")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="KEY=VALUE of ours; repeatable")
    parser.add_argument("--small-set", dest="small_settings", action="append", default=[])
    parser.add_argument("--seeds", default="1", help="of the recipe multi30k, such as 1,2,3")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--peer", help="the folder of the peer's train.py and decode.py")
    parser.add_argument("--peer-size", default="base")
    parser.add_argument("--peer-options", default="", help="more options for train.py, in one word")
    parser.add_argument("--peer-python", help="the Python with the peer's packages; default: this one")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", default="runs/race")
    arguments = parser.parse_args()
    sides = set(arguments.sides.split(","))
    if unknown := sides - set(_SIDES):
        parser.error(f"there is no side {unknown.pop()!r}: take of {', '.join(_SIDES)}")
    has_data = (Path(arguments.folder) / "data").exists()
    if sides & {"ours", "peer"} and not has_data and not (arguments.train and arguments.valid):
        parser.error("ours and peer need --train and --valid")
    if "peer" in sides and not arguments.train:
        parser.error("peer needs --train")
    if "peer" in sides and not arguments.peer:
        parser.error("peer needs --peer")
    if "small" in sides and not (arguments.small_train and arguments.small_valid):
        parser.error("small needs --small-train and --small-valid")
    return arguments


if __name__ == "__main__":
    main()
