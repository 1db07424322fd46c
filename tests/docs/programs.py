"""The commands of the documentation in the tests: `nmt` in small, and stand-ins for other programs."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from tests.docs.pages import ROOT

# What makes a training a matter of a second. It is added to the command as written, of which nothing is taken away.
_TRAINING = {
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.heads": 2,
    "model.d_k": 8,
    "model.d_v": 8,
    "model.embedding_multiple": 8,
    "training.updates": 6,
    # In this precision and with this batch an average is better than its newest checkpoint, on every machine.
    "training.precision": "fp32",
    "training.batch_tokens": 400,
    "training.schedule.warmup_updates": 2,
    "training.log_every": 2,
    "training.checkpoint_every": 1,
    "training.keep_last": 6,
    "averaging.last": 3,
    "validation.every": 3,
    "validation.max_sentences": 4,
    "decoding.max_extra_tokens": 3,
}
_DEMO = Path(__file__).with_name("demo.yaml")
_VOCABULARY = 400

# Programs that would reach for the network, for devices or for minutes of time. Each does what it can do here, and
# refuses what it does not know.
_CLIENT = f"exec {sys.executable} -IS {Path(__file__).with_name('client.py')}"
_STAND_INS = {
    "nmt": f'{_CLIENT} nmt "$@"',
    # The real pip reads the project and the constraints, and fetches nothing.
    "pip": f"""\
test "$1" = install
cd {ROOT}
exec {sys.executable} -m pip install --quiet --dry-run --no-deps --no-build-isolation "${{@:2}}" """,
    "python3": 'test "$1 $2" = "-m venv" && mkdir -p "$3/bin" && touch "$3/bin/activate"',
    # The server runs a file.
    "python": f'{_CLIENT} "$@"',
    "curl": """\
while test $# -gt 1; do test "$1" != -o || output="$2"; shift; done
case "$1" in https://*) cp "$NMT_DOCS_DOWNLOADS/$(basename "$1")" "$output";; *) exit 2;; esac""",
    "torchrun": """\
while test "$1" != -m; do case "$1" in --*) shift;; *) exit 2;; esac; done
test "$2" = nmt_cli
shift 2
exec nmt "$@" """,
    "docker": f"""\
case "$1" in
build) test -f {ROOT}/Dockerfile; test "${{!#}}" = . ;;
run)
  while test "$1" != nmt; do shift; done
  exec "$@" ;;
*) exit 2 ;;
esac""",
    "srun": """\
while test "${1#-}" != "$1"; do shift; done
exec "$@" """,
    "sbatch": """\
test "$#" = 1
export SLURM_CPUS_PER_TASK=1
exec bash -euo pipefail "$1" """,
}


def in_small(arguments: Sequence[str], *, is_dry: bool) -> list[str]:
    """The arguments of `nmt` with settings that make it quick; if `is_dry`, it needs no GPU, network or hours."""
    command = next((argument for argument in arguments if not argument.startswith("-")), "")
    if command == "reproduce" and is_dry and "--dry-run" not in arguments:
        return [*arguments, "--dry-run"]
    if command not in ("prepare", "train", "decode") or "--help" in arguments:
        return list(arguments)
    # A process of its own for a few lines of text takes longer than the lines.
    added = ["--workers", "1"] if command == "prepare" and "--workers" not in arguments else []
    if command == "prepare":
        arguments = [str(_DEMO) if argument == "demo" else argument for argument in arguments]
    settings = {"prepare": {}, "train": {} if is_dry else _TRAINING, "decode": {}}
    if "--dry-run" not in arguments:
        added += [text for key, value in settings[command].items() for text in ("--set", f"{key}={value}")]
        added += ["--set", f"tokenizer.vocab_size={_VOCABULARY}"] if command == "prepare" else []
    if command == "train" and "NMT_DOCS_UPDATES" in os.environ:
        added += ["--set", f"training.updates={os.environ['NMT_DOCS_UPDATES']}"]
    if is_dry and command == "train" and "--data" in arguments:  # it was not prepared; the demo's data was
        place = arguments.index("--data") + 1
        arguments = [*arguments[:place], "data/demo", *arguments[place + 1 :]]
    if is_dry:
        added += [] if command == "prepare" else ["--device", "cpu"]
        added += [] if command == "decode" else ["--dry-run"]
    return [*arguments, *added]


def write_programs(folder: Path) -> None:
    """Write the stand-ins as programs into `folder`."""
    for name, body in _STAND_INS.items():
        file = folder / name
        file.write_text(f"#!/bin/bash\nset -euo pipefail\n{body}\n", encoding="utf-8")
        file.chmod(0o755)


def write_text(folder: Path) -> None:
    """Write parallel text under the names of the documentation: my/train.en and so on, and other formats."""
    for split, pairs in _pairs().items():
        for side, language in enumerate(("en", "de")):
            write_lines(folder / "my" / f"{split}.{language}", [pair[side] for pair in pairs])
        write_lines(folder / "my" / f"{split}.tsv", ["\t".join(pair) for pair in pairs])
        records = [json.dumps({"translation": {"en": src, "de": tgt}}) for src, tgt in pairs]
        write_lines(folder / "my" / f"{split}.jsonl", records)
    train = _pairs()["train"]
    french = [" ".join(words) for words in product(*(row.split(",") for row in _FRENCH))]
    for language, lines in (("en", [src for src, _ in train]), ("fr", french[: len(train)])):
        write_lines(folder / "my" / f"talks.{language}", lines)
    rows = [f"{number};{src};{tgt}" for number, (src, tgt) in enumerate(train)]
    write_lines(folder / "my" / "more.csv", ["id;English;German", *rows])
    variants = '<tuv xml:lang="en-US"><seg>{}</seg></tuv><tuv xml:lang="de-DE"><seg>{}</seg></tuv>'
    units = [f"<tu>{variants.format(*pair)}</tu>" for pair in train]
    write_lines(folder / "my" / "company.tmx", ['<tmx version="1.4"><body>', *units, "</body></tmx>"])


def write_downloads(folder: Path) -> None:
    """Write the downloads that the stand-in of curl finds: the same text as files of Multi30k."""
    names = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    for split, pairs in _pairs().items():
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{names[split]}.{language}.gz").write_bytes(gzip.compress(text.encode()))


def write_lines(file: Path, lines: Sequence[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _pairs() -> dict[str, list[tuple[str, str]]]:
    """Pairs of sentences by split, all different."""
    english, german = ([" ".join(words) for words in product(*(row.split(",") for row in side))] for side in _WORDS)
    pairs = [(f"{src}.", f"{tgt}.") for src, tgt in zip(english, german, strict=True)]
    mixed = [pair for start in range(7) for pair in pairs[start::7]]
    return {"valid": mixed[:20], "test": mixed[20:40], "train": mixed[40:]}


def environment(*, programs: Path, downloads: Path, server: Path, cache: Path) -> dict[str, str]:
    """The environment of the blocks: the stand-ins come first, nothing is downloaded, tables are 100 columns wide."""
    return os.environ | {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NMT_DOCS_DOWNLOADS": str(downloads),
        "NMT_DOCS_SERVER": str(server),
        "NMT_CACHE": str(cache),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "100",
    }


_FRENCH = (
    "Un homme,Une femme,Le garçon,La fille,Mon frère,Notre professeur",
    "voit,peint,achète,trouve",
    "la vieille,la petite,cette,une",
    "maison,barque,voiture,table,fleur,porte",
)
_WORDS = (
    (
        "A man,A woman,The boy,The girl,My brother,Our teacher",
        "sees,paints,buys,finds",
        "a red,a small,the old,the green",
        "house,boat,car,book,tree,hat",
    ),
    (
        "Ein Mann,Eine Frau,Der Junge,Das Mädchen,Mein Bruder,Unser Lehrer",
        "sieht,malt,kauft,findet",
        "ein rotes,ein kleines,das alte,das grüne",
        "Haus,Boot,Auto,Buch,Bäumchen,Hütchen",
    ),
)
