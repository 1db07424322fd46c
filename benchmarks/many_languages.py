"""One model of three directions against three models of one, and tagged back-translation; prints one JSON object.

python benchmarks/many_languages.py --captions multi30k --french mix-en-fr/train --german mix-en-de/train.de.gz

--captions has train, val and test_2016_flickr in English and German (.en and .de): the directions en-de and de-en.
--french is a prefix of English and French lines (.en.gz and .fr.gz), of which --pairs are sampled, and 1,000 each for
validation and test. Each model of one direction takes --updates updates, and the model of three takes three times as
many. Then the model of de-en translates --synthetic lines of --german, and another model learns en-de from the captions
and these pairs with a tag (docs/how-to/synthetic-text.md), in --updates updates, too. All are tested with a beam of 4,
as averages of their last checkpoints. A finished run is not repeated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import yaml
from measuring import (
    NMT,
    Figures,
    argument_parser,
    circumstances,
    lines_of,
    markdown_table,
    nmt_decode,
    nmt_train,
    run,
    score,
)

DIRECTIONS = (("en", "de"), ("de", "en"), ("en", "fr"))
_HELD_OUT = 1000
_MOST_WORDS = 60


def main() -> None:
    """Prepare, train and test all, and print the figures."""
    arguments = _arguments()
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    _sample_french(arguments, folder)
    single, several = {}, {}
    for pair in DIRECTIONS:
        name = "-".join(pair)
        model = _trained(arguments, folder, name, [pair], updates=arguments.updates)
        single[name] = _bleu(folder, name, model, pair, options=())
    model = _trained(arguments, folder, "three", DIRECTIONS, updates=len(DIRECTIONS) * arguments.updates)
    for pair in DIRECTIONS:
        several["-".join(pair)] = _bleu(folder, "three", model, pair, options=("--to", pair[1]))
    synthetic = _back_translated(arguments, folder)
    tagged = _trained(arguments, folder, "tagged", [("en", "de")], updates=arguments.updates, synthetic=synthetic)
    with_tag = _bleu(folder, "tagged", tagged, ("en", "de"), options=())
    means = [sum(figures.values()) / len(figures) for figures in (single, several)]
    rows = [[name, f"{single[name]:.2f}", f"{several[name]:.2f}"] for name in single]
    rows.append(["mean", *(f"{mean:.2f}" for mean in means)])
    result: Figures = {
        "benchmark": "one model of three directions against three models; tagged back-translation",
        **circumstances("cpu", commit=arguments.commit),
        "recipe": arguments.recipe,
        "updates": arguments.updates,
        "bleu_of_single_models": single,
        "bleu_of_one_model": several,
        "mean_difference": round(means[1] - means[0], 2),
        "bleu_without_and_with_back_translation": [single["en-de"], with_tag],
        "table": markdown_table(["direction", "a model of its own", "one model"], rows),
    }
    print(json.dumps(result, indent=2))


def _sample_french(arguments: argparse.Namespace, folder: Path) -> None:
    """Write the sampled English and French lines."""
    sides = [lines_of(Path(f"{arguments.french}.{code}.gz")) for code in ("en", "fr")]
    fitting = [index for index, line in enumerate(sides[0]) if 3 <= len(line.split()) <= _MOST_WORDS]
    chosen = Random(1).sample(fitting, arguments.pairs + 2 * _HELD_OUT)
    ends = {"train": arguments.pairs, "val": arguments.pairs + _HELD_OUT, "test": len(chosen)}
    start = 0
    for split, end in ends.items():
        for code, lines in zip(("en", "fr"), sides, strict=True):
            text = "".join(f"{lines[index].strip()}\n" for index in chosen[start:end])
            (folder / f"{split}.{code}").write_text(text, encoding="utf-8")
        start = end


def _trained(
    arguments: argparse.Namespace,
    folder: Path,
    name: str,
    pairs: Sequence[tuple[str, str]],
    *,
    updates: int,
    synthetic: Path | None = None,
) -> Path:
    """The average of a run on the data of some directions, prepared and trained first if it is not there."""
    corpus: dict[str, Any] = {"name": name, "train": [], "valid": [], "test": []}
    for source, target in pairs:
        captions = Path(arguments.captions).resolve()
        of_split = {"train": captions / "train", "valid": captions / "val", "test": captions / "test_2016_flickr"}
        if "fr" in (source, target):
            of_split = {"train": Path("train"), "valid": Path("val"), "test": Path("test")}
        for split, prefix in of_split.items():
            corpus[split].append(_source(prefix, source, target))
    if synthetic is not None:
        made = _source(synthetic, *pairs[0])
        corpus["train"].append(made | {"tags": {"origin": "back-translation"}, "synthetic": True})
    corpus["tokenizer"] = {"vocab_size": arguments.vocab_size}
    file, data, directory = folder / f"{name}.yaml", folder / f"data-{name}", folder / f"run-{name}"
    file.write_text(yaml.safe_dump(corpus, sort_keys=False), encoding="utf-8")
    run([*NMT, "prepare", str(file), "-o", str(data)])
    settings = [f"training.updates={updates}", f"training.checkpoint_every={max(1, updates // 20)}"]
    settings += [f"validation.every={updates}", *arguments.settings]
    nmt_train(arguments.recipe, data=data, output=directory, device="cpu", settings=settings)
    run([*NMT, "average", str(directory), "--overwrite"])
    return directory / "averaged"


def _source(prefix: Path, source: str, target: str) -> dict[str, Any]:
    return {"kind": "text", "prefix": str(prefix), "languages": {"source": source, "target": target}}


def _bleu(folder: Path, name: str, model: Path, pair: tuple[str, str], *, options: Sequence[str]) -> float:
    """BLEU of the translation of the test text of a direction."""
    stem = "test" + (f".{'-'.join(pair)}" if options else "")
    source, reference = (folder / f"data-{name}" / f"{stem}.{code}" for code in pair)
    hypothesis = folder / f"{name}.{'-'.join(pair)}.hyp"
    nmt_decode(model, source, hypothesis, "--beam", "4", *options)
    return score(hypothesis, reference)


def _back_translated(arguments: argparse.Namespace, folder: Path) -> Path:
    """The prefix of German lines and their translations by the model of de-en."""
    lines = [line for line in lines_of(Path(arguments.german)) if 3 <= len(line.split()) <= _MOST_WORDS]
    german, english = folder / "made.de", folder / "made.en"
    chosen = Random(1).sample(lines, arguments.synthetic)
    german.write_text("".join(f"{line.strip()}\n" for line in chosen), encoding="utf-8")
    nmt_decode(folder / "run-de-en" / "averaged", german, english)
    return Path("made")


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--captions", required=True, metavar="DIR")
    parser.add_argument("--french", required=True, metavar="PREFIX")
    parser.add_argument("--german", required=True, metavar="FILE")
    parser.add_argument("--pairs", type=int, default=30_000)
    parser.add_argument("--synthetic", type=int, default=20_000)
    parser.add_argument("--updates", type=int, default=1000, help="of each direction")
    parser.add_argument("--recipe", default="small")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--folder", default="runs/many-languages")
    return parser.parse_args()


if __name__ == "__main__":
    main()
