"""Terms kept and loops left by a model, with the BLEU and the speed that it costs; prints one JSON object.

python benchmarks/terms_and_loops.py --model runs/multi30k/averaged --languages en-de --train multi30k/train \
    --test flickr=multi30k/test_2016_flickr --test tatoeba=tatoeba/test

Terms are rare words of a test set's source, in at most --most sentences, with the words of the references that go with
them: pairs with a Dice coefficient of at least --dice in --train and the test set. Several such words are forms of one
term.
`kept` is the share of the terms in the source whose translation is in the output. Loops are counted in the output for
--odd made-up lines on which small models loop: words at random, lists, repetitions, capitals, URLs, other languages.
Speed is the median of --runs, in turn without and with the setting.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from measuring import Figures, argument_parser, circumstances, lines_of

from nmt_cli.api import Translator, score
from nmt_cli.decoding.search.repetition import has_loop
from nmt_cli.decoding.terms import TermList, missing_terms
from nmt_cli.decoding.translation import Translation

_WORD = re.compile(r"\w+")
_SHORTEST_TERM = 4  # letters: no articles and prepositions
_OTHER_LANGUAGES = (
    "Привет мир, как дела у вас сегодня",
    "今天天气很好我们去公园吧",
    "مرحبا كيف حالك اليوم",
    "Je ne sais pas quoi dire",
    "こんにちは世界元気ですか",
    "สวัสดีชาวโลก",
    "Hyvää päivää kaikille ystäville",
    "Ich habe heute keine Zeit",
)


def main() -> None:
    """Translate without and with each setting, and print the figures."""
    arguments = _arguments()
    translator = Translator.from_pretrained(arguments.model, device=arguments.device)
    language = arguments.languages.split("-")[1]
    result: Figures = {
        "benchmark": "terms kept, loops left, BLEU and speed",
        **circumstances(arguments.device, commit=arguments.commit),
        "model": arguments.model,
        "terms": {},
        "loops": {},
    }
    words: list[str] = []
    for name, prefix in (test.split("=") for test in arguments.test):
        sources, references = _sides(prefix, arguments.languages)
        words += [word for line in sources for word in _WORD.findall(line)]
        train = _sides(arguments.train, arguments.languages)
        terms = terms_of(sources, references, beside=train, least_dice=arguments.dice, most=arguments.most)

        free, bound = _in_turn(translator, sources, {"terms": TermList(terms)}, runs=arguments.runs)
        result["terms"][name] = {
            "terms": len(terms),
            "without": _figures(free, references, language) | {"kept": _kept(TermList(terms), sources, free[0])},
            "with": _figures(bound, references, language) | {"kept": _kept(TermList(terms), sources, bound[0])},
            "unmet": sum(len(one.unmet_terms) for one in bound[0]),
            "ratio_of_speed": round(free[1] / bound[1], 3),
        }
        free, bound = _in_turn(translator, sources, {"stop_loops": True}, runs=arguments.runs)
        result["loops"][name] = {
            "without": _figures(free, references, language) | {"loops": _loops(sources, free[0])},
            "with": _figures(bound, references, language) | {"loops": _loops(sources, bound[0])},
            "ratio_of_speed": round(free[1] / bound[1], 3),
        }
    odd = odd_lines(sorted({*words}), count=arguments.odd, seed=1)
    free, bound = _in_turn(translator, odd, {"stop_loops": True}, runs=1)
    result["loops"]["odd lines"] = {
        "lines": len(odd),
        "without": _loops(odd, free[0]),
        "with": _loops(odd, bound[0]),
        "ratio_of_speed": round(free[1] / bound[1], 3),
    }
    print(json.dumps(result, indent=2))


def odd_lines(words: Sequence[str], *, count: int, seed: int) -> list[str]:
    """Lines on which small models loop, made of these words; the kinds take turns."""
    rng = random.Random(seed)

    def some(fewest: int, most: int) -> list[str]:
        return rng.choices(words, k=rng.randint(fewest, most))

    kinds: list[Callable[[], str]] = [
        lambda: " ".join(some(5, 60)),
        lambda: ", ".join(some(8, 40)) + ".",
        lambda: " ".join(some(1, 1) * rng.randint(4, 40)),
        lambda: " ".join(some(2, 5) * rng.randint(3, 12)),
        lambda: " ".join(some(5, 40)).upper(),
        lambda: " ".join(some(5, 30)).title(),
        lambda: (
            f"https://www.{words[0]}.com/{'/'.join(some(1, 6))}?id={rng.randint(0, 10**9)}&q={'+'.join(some(3, 3))}"
        ),
        lambda: " ".join([rng.choice(_OTHER_LANGUAGES)] * rng.randint(1, 3)),
        lambda: rng.choice("!?.-=*_#~") * rng.randint(3, 60),
        lambda: " ".join(str(rng.randint(0, 10 ** rng.randint(1, 9))) for _ in range(rng.randint(1, 20))),
        lambda: "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(10, 80))),
        lambda: f"{some(1, 1)[0]} {rng.choice(['ha', 'la', 'no']) * rng.randint(3, 30)}",
        lambda: "1 " + "000 " * rng.randint(1, 8),
        lambda: json.dumps(dict.fromkeys(some(2, 10), rng.randint(0, 99))),
        lambda: " ".join(word + rng.choice(["!!!", "???", "...", "…"]) for word in some(2, 15)),
        lambda: rng.choice("😀🎉❤👍") * rng.randint(1, 20),
    ]
    return [kinds[number % len(kinds)]() for number in range(count)]


def terms_of(
    sources: Sequence[str],
    references: Sequence[str],
    *,
    beside: tuple[list[str], list[str]],
    least_dice: float,
    most: int,
) -> dict[str, list[str]]:
    """The rare words of the sources with the words of their references that go with them, by the Dice coefficient."""
    pairs = [
        ({*_WORD.findall(source)}, {*_WORD.findall(target)})
        for source, target in zip([*sources, *beside[0]], [*references, *beside[1]], strict=True)
    ]
    num_sources = Counter(word for source, _ in pairs for word in source)
    num_targets = Counter(word for _, target in pairs for word in target)
    together = Counter(pair for source, target in pairs for pair in product(source, target))
    in_test = Counter(word for source, _ in pairs[: len(sources)] for word in source)
    forms: dict[str, dict[str, None]] = {}
    for source, target in pairs[: len(sources)]:
        for word in sorted(word for word in source if in_test[word] <= most):
            dice = {other: 2 * together[word, other] / (num_sources[word] + num_targets[other]) for other in target}
            best = max(sorted(target), key=lambda other: dice[other], default="")
            if best and len(word) >= _SHORTEST_TERM and word.islower() and dice[best] >= least_dice:
                forms.setdefault(word, {})[best] = None
    return {word: list(found) for word, found in forms.items()}


def _in_turn(
    translator: Translator, lines: list[str], options: dict[str, Any], *, runs: int
) -> list[tuple[list[Translation], float]]:
    """The translations without and with the options, each with the median of its seconds."""
    translator.translate(lines[:50], **options)  # warm up
    found: list[list[Translation]] = [[], []]
    seconds: list[list[float]] = [[], []]
    sides: list[dict[str, Any]] = [{}, options]
    for _ in range(runs):
        for side, settings in enumerate(sides):
            started = time.perf_counter()
            found[side] = translator.translate(lines, **settings)
            seconds[side].append(time.perf_counter() - started)
    return [(found[side], statistics.median(seconds[side])) for side in (0, 1)]


def _figures(translated: tuple[list[Translation], float], references: list[str], language: str) -> Figures:
    translations, seconds = translated
    bleu = score([one.text for one in translations], references, metrics="bleu", language=language).value
    return {"bleu": round(bleu, 2), "seconds": round(seconds, 2)}


def _kept(terms: TermList, sources: Sequence[str], translations: Sequence[Translation]) -> float:
    found = [terms.find(source) for source in sources]
    missing = sum(len(missing_terms(one, other.text)) for one, other in zip(found, translations, strict=True))
    return round(1 - missing / max(1, sum(map(len, found))), 4)


def _loops(sources: Sequence[str], translations: Sequence[Translation]) -> int:
    return sum(has_loop(source, one.text) for source, one in zip(sources, translations, strict=True))


def _sides(prefix: str, languages: str) -> tuple[list[str], list[str]]:
    source, target = (lines_of(Path(f"{prefix}.{language}")) for language in languages.split("-"))
    return source, target


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--languages", default="en-de")
    parser.add_argument("--train", required=True, metavar="PREFIX", help="text in which words are counted as well")
    parser.add_argument("--test", action="append", required=True, metavar="NAME=PREFIX", help="repeatable")
    parser.add_argument("--dice", type=float, default=0.3)
    parser.add_argument("--most", type=int, default=2, metavar="SENTENCES")
    parser.add_argument("--odd", type=int, default=480, metavar="LINES")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
