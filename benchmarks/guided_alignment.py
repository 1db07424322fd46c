"""How well the alignments of a model are with and without guided alignment; prints one JSON object.

python benchmarks/guided_alignment.py --updates 1000

The text is the packaged demo corpus, whose grammar knows the alignment of its words (tools/demo_corpus). `nmt train`
trains the recipe `demo` once for each of --weights, with that alignment of the training text. `nmt score --alignments`
aligns the test text with each model. The alignment error rate is 1 - 2 |A and G| / (|A| + |G|) over all pairs of words.
For tags, one to three runs of one to three words of each test sentence are tagged at random. Their German words by the
grammar stand together, and are aligned to no other word. `nmt decode --markup html` translates them. A tag is right if
it stands on exactly these words. Sentences whose translation is not the reference do not count. A finished run is not
repeated.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

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

ROOT = Path(__file__).resolve().parents[1]
_TAG = re.compile(r"</?[biu]>")
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
        "table": markdown_table(
            ["weight", "alignment error rate", "tags on exactly the right words", "BLEU"],
            [
                [weight, f"{row['alignment_error_rate']:.1%}", f"{row['right_tags']:.1%}", str(row["bleu"])]
                for weight, row in rows.items()
            ],
        ),
    }
    print(json.dumps(result, indent=2))


def _prepare(folder: Path) -> tuple[Path, Path]:
    """The prepared data, and the file with the alignments of its test text."""
    folder.mkdir(parents=True, exist_ok=True)
    data, packaged = folder / "data", ROOT / "recipes/corpora/demo"
    run(
        [sys.executable, "-m", "tools.demo_corpus.generate", "--alignments", str(folder)],
        environment={"PYTHONPATH": str(ROOT)},
    )
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
    nmt_train("demo", data=data, output=directory, device="cpu", settings=settings)
    source, reference, hypothesis = data / "test.en", data / "test.de", directory / "test.hyp"
    model, aligned = str(directory / "model"), directory / "test.align"
    aligned.write_text(run([*NMT, "score", str(reference), "-s", str(source), "--model", model, "--alignments"]))
    nmt_decode(model, source, hypothesis)
    tagged = [_tagged(line, links) for line, links in zip(lines_of(source), gold, strict=True)]
    marked = directory / "tags"
    marked.write_text("".join(f"{line}\n" for line, _ in tagged))
    nmt_decode(model, marked, f"{marked}.hyp", "--markup", "html")
    verdicts = [
        words_in(html, tag) == words
        for html, (_, tags), right in zip(lines_of(Path(f"{marked}.hyp")), tagged, lines_of(reference), strict=True)
        if _TAG.sub("", html) == right
        for tag, words in tags.items()
    ]
    return {
        "alignment_error_rate": round(_error_rate([_links(line) for line in lines_of(aligned)], gold), 4),
        "tags": len(verdicts),
        "right_tags": round(sum(verdicts) / len(verdicts), 4),
        "bleu": score(hypothesis, reference),
    }


def _links(line: str) -> Links:
    return {(int(source), int(target)) for source, target in (link.split("-") for link in line.split())}


def _error_rate(found: Sequence[Links], gold: Sequence[Links]) -> float:
    common = sum(len(links & right) for links, right in zip(found, gold, strict=True))
    return 1 - 2 * common / (sum(map(len, found)) + sum(map(len, gold)))


def _tagged(line: str, gold: Links) -> tuple[str, dict[str, set[int]]]:
    """The line with one to three tags on words that no other tag has, and the target words of each tag."""
    words, random, tags = line.split(), Random(line), {}
    spans = [range(start, start + size) for size in (1, 2, 3) for start in range(len(words) - size + 1)]
    free, wanted = {*range(len(words))}, random.randint(1, 3)
    for span in random.sample(spans, len(spans)):
        targets = {target for source, target in gold if source in span}
        is_phrase = targets.isdisjoint(target for source, target in gold if source not in span)
        is_run = len(targets) == 1 + max(targets) - min(targets)
        if len(tags) < wanted and free.issuperset(span) and is_phrase and is_run:
            name = "biu"[len(tags)]
            tags[name] = targets
            free -= {*span}
            words[span[0]] = f"<{name}>{words[span[0]]}"
            words[span[-1]] += f"</{name}>"
    return " ".join(words), tags


def words_in(html: str, tag: str) -> set[int]:
    """The indices of the words that have a letter inside a tag."""
    before, _, rest = html.partition(f"<{tag}>")
    inside, _, after = rest.partition(f"</{tag}>")
    before, inside, after = (_TAG.sub("", text) for text in (before, inside, after))
    letters = [index for index, character in enumerate(inside) if character.isalnum()]
    text = before + inside + after
    starts = [match.span() for match in re.finditer(r"\S+", text)]
    return {
        number
        for number, (start, end) in enumerate(starts)
        if any(start <= len(before) + letter < end for letter in letters)
    }


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--weights", default="0,0.1", help="values of training.guided_alignment")
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--set", dest="settings", action="append", default=[], help="KEY=VALUE for all; repeatable")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", default="runs/guided-alignment", help="folder of data and runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
