"""How well the alignments of a model are with and without guided alignment; prints one JSON object.

python benchmarks/guided_alignment.py --updates 1000

The text is the packaged demo corpus, whose grammar knows the alignment of its words (tools/demo_corpus). `nmt train`
trains the recipe `demo` once for each of --weights, with that alignment of the training text. `nmt score --alignments`
aligns the test text with each model. The alignment error rate is 1 - 2 |A and G| / (|A| + |G|) over all pairs of words.
For tags, one to three words of each test sentence are marked at random, one to three times. A tag is right if the words
that are aligned to its words are exactly those of the grammar. A finished run is not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from measuring import NMT, Figures, circumstances, lines_of, run, score

ROOT = Path(__file__).resolve().parents[1]
Links = set[tuple[int, int]]


def main() -> None:
    """Prepare, train all, and print the figures."""
    arguments = _arguments()
    folder = Path(arguments.folder)
    data, gold_file = _prepare(folder)
    gold, rows = [_links(line) for line in lines_of(gold_file)], {}
    for weight in arguments.weights.split(","):
        rows[weight] = _measured(arguments, folder / f"weight-{weight}", data, gold, weight=weight)
    result: Figures = {
        "benchmark": "alignments on the demo corpus by weight of training.guided_alignment",
        **circumstances("cpu", commit=arguments.commit),
        "updates": arguments.updates,
        "seed": arguments.seed,
        "weights": rows,
        "table": [
            "| weight | alignment error rate | tags on exactly the right words | BLEU |",
            "| --- | --- | --- | --- |",
            *(
                f"| {weight} | {row['alignment_error_rate']:.1%} | {row['right_tags']:.1%} | {row['bleu']} |"
                for weight, row in rows.items()
            ),
        ],
    }
    print(json.dumps(result, indent=2))


def _prepare(folder: Path) -> tuple[Path, Path]:
    """The prepared data, and the file with the alignments of its test text."""
    folder.mkdir(parents=True, exist_ok=True)
    data, packaged = folder / "data", ROOT / "recipes/corpora/demo"
    run([sys.executable, "-m", "tools.demo_corpus.generate", "--alignments", str(folder)], environment=_ENVIRONMENT)
    texts = [
        part for split in ("train", "valid", "test") for part in (f"--{split}", str(packaged / f"{split}.tsv.zst"))
    ]
    alignments = ["--alignments", str(folder / "train.align"), "-l", "en-de", "--set", "tokenizer.vocab_size=2000"]
    run([*NMT, "prepare", *texts, *alignments, "-o", str(data)])
    return data, folder / "test.align"


def _measured(
    arguments: argparse.Namespace, directory: Path, data: Path, gold: Sequence[Links], *, weight: str
) -> Figures:
    """Train, unless the run is finished, and measure the alignments of the test text and its translation."""
    settings = [f"training.guided_alignment={weight}", f"training.updates={arguments.updates}"]
    settings += [f"training.seed={arguments.seed}", *arguments.settings]
    command = [*NMT, "train", "demo", "--data", str(data), "-o", str(directory), "--device", "cpu"]
    run([*command, *(part for setting in settings for part in ("--set", setting))])
    source, reference, hypothesis = data / "test.en", data / "test.de", directory / "test.hyp"
    model, aligned = str(directory / "model"), directory / "test.align"
    aligned.write_text(run([*NMT, "score", str(reference), "-s", str(source), "--model", model, "--alignments"]))
    run([*NMT, "decode", "-m", model, "-i", str(source), "-o", str(hypothesis), "--overwrite"])
    found = [_links(line) for line in lines_of(aligned)]
    return {
        "alignment_error_rate": round(_error_rate(found, gold), 4),
        "right_tags": round(_share_of_right_tags(found, gold), 4),
        "bleu": score(hypothesis, reference),
    }


def _links(line: str) -> Links:
    return {(int(source), int(target)) for source, target in (link.split("-") for link in line.split())}


def _error_rate(found: Sequence[Links], gold: Sequence[Links]) -> float:
    common = sum(len(links & right) for links, right in zip(found, gold, strict=True))
    return 1 - 2 * common / (sum(map(len, found)) + sum(map(len, gold)))


def _share_of_right_tags(found: Sequence[Links], gold: Sequence[Links]) -> float:
    random, verdicts = Random(1), []
    for links, right in zip(found, gold, strict=True):
        num_words = 1 + max(source for source, _ in right)
        for _ in range(random.randint(1, 3)):
            size = random.randint(1, 3)
            start = random.randint(0, num_words - size)
            words, right_words = (_aligned_to(each, range(start, start + size)) for each in (links, right))
            verdicts.append(words == right_words)
    return sum(verdicts) / len(verdicts)


def _aligned_to(links: Links, words: range) -> set[int]:
    """The target words that are aligned to some source words."""
    return {target for source, target in links if source in words}


_ENVIRONMENT = {"PYTHONPATH": str(ROOT)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="0,0.1", help="values of training.guided_alignment")
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--set", dest="settings", action="append", default=[], help="KEY=VALUE for all; repeatable")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", default="runs/guided-alignment", help="folder of data and runs")
    parser.add_argument("--commit", help="commit of the code, if there is no git")
    return parser.parse_args()


if __name__ == "__main__":
    main()
