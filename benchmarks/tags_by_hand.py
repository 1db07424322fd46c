"""Tags on the right words of real text: 100 tags in Multi30k, marked by hand in German; prints one JSON object.

python benchmarks/tags_by_hand.py --source multi30k/test_2016_flickr.en --model runs/plain --model runs/guided

benchmarks/multi30k_tags.tsv has, for each of 100 lines of test_2016_flickr, the first and the last word of a tag, and
the German words that are right. Words are counted from 0. German words are stems in lower case, with | between
alternatives. `nmt decode --markup html` translates the tagged lines. A tag is right if it stands on exactly such words.
If a translation has none, its tag does not count.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from guided_alignment import words_in
from measuring import Figures, argument_parser, circumstances, lines_of, nmt_decode

_TAG = "b"


def main() -> None:
    """Translate with each model, and print the figures."""
    parser = argument_parser(__doc__)
    parser.add_argument("--source", type=Path, required=True, help="test_2016_flickr.en")
    parser.add_argument("--model", action="append", required=True, help="a model or a run; repeatable")
    arguments = parser.parse_args()
    lines = lines_of(arguments.source)
    table = Path(__file__).with_name("multi30k_tags.tsv").read_text(encoding="utf-8").splitlines()[1:]
    tags = [line.split("\t") for line in table]
    tagged = [_tagged(lines[int(line)], int(first), int(last)) for line, first, last, _ in tags]
    expected = [[stems.split("|") for stems in words.split()] for _, _, _, words in tags]
    result: Figures = {
        "benchmark": "tags of Multi30k on the words that were marked by hand",
        **circumstances("cpu", commit=arguments.commit),
        "models": {model: _measured(model, tagged, expected) for model in arguments.model},
    }
    print(json.dumps(result, indent=2))


def _tagged(line: str, first: int, last: int) -> str:
    words = line.split()
    words[first] = f"<{_TAG}>{words[first]}"
    words[last] += f"</{_TAG}>"
    return " ".join(words)


def _measured(model: str, tagged: Sequence[str], expected: Sequence[Sequence[Sequence[str]]]) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tagged"
        file.write_text("".join(f"{line}\n" for line in tagged), encoding="utf-8")
        nmt_decode(model, file, f"{file}.hyp", "--device", "cpu", "--markup", "html")
        translations = lines_of(Path(f"{file}.hyp"))
    verdicts = []
    for html, slots in zip(translations, expected, strict=True):
        words = html.replace(f"<{_TAG}>", "").replace(f"</{_TAG}>", "").lower().split()
        runs = [range(start, start + len(slots)) for start in range(len(words) - len(slots) + 1)]
        right = [{*run_} for run_ in runs if all(map(_matches, (words[index] for index in run_), slots))]
        if right:
            verdicts.append(words_in(html, _TAG) in right)
    return {"tags": len(verdicts), "right_tags": round(sum(verdicts) / len(verdicts), 4)}


def _matches(word: str, stems: Sequence[str]) -> bool:
    return word.lstrip("(„\"'").startswith(tuple(stems))


if __name__ == "__main__":
    main()
