"""The records of the demo lexicon, and how its entries are read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a clause, or an uninflected word, in both languages; `field` is its place in the German clause."""

    english: str
    german: str
    field: str = "time"


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun: English singular and plural; German nominative and genitive singular, plural (mass nouns: empty)."""

    english: tuple[str, ...]
    german: tuple[str, ...]
    gender: str


@dataclass(frozen=True, slots=True)
class Determiner:
    """A determiner; `inflection` is a word with the same endings: der, dieser, mein, ein, viele, zwei or Annas."""

    singular: str
    plural: str
    german: str
    inflection: str


@dataclass(frozen=True, slots=True)
class Paradigm:
    """The forms of a verb in one language; `particle` is English "on" in "turn on" or German "ein" in "einschalten"."""

    infinitive: str
    third: str
    plural: str
    past: str
    past_plural: str
    participle: str
    particle: str = ""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb in both languages; `takes_sein` in the German perfect."""

    english: Paradigm
    german: Paradigm
    takes_sein: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """One valency of a verb: sorts of subject, then complements with their sorts, and adjuncts behind plus signs."""

    verb: Verb
    subjects: list[str]
    pattern: str


def read_table(text: str, read: Callable[[str], T]) -> dict[str, list[T]]:
    """The records of lines `key | entry, entry`, by key."""
    table: dict[str, list[T]] = {}
    for key, entries in (line.split(" | ") for line in text.strip().splitlines()):
        table.setdefault(key, []).extend(read(entry) for entry in entries.split(", "))
    return table


def read_noun(entry: str) -> Noun:
    """The noun of `child/children das Kind -es -er`."""
    english, article, german, *endings = entry.split()
    genitive, plural = [german + end[1:] if end[0] == "-" else end for end in endings] + [""] * (2 - len(endings))
    singular, _, irregular = english.partition("/")
    gender = {"der": "m", "die": "f", "das": "n"}[article]
    return Noun((singular, irregular or suffixed(singular, "s")), (german, genitive, plural), gender)


def compound(modifier: str, head: Noun) -> Noun:
    """The compound of a modifier with its linking form, such as `kitchen Küchen`, and a head, which inflects."""
    english, link = modifier.split()
    german = tuple(form and link + form.lower() for form in head.german)
    return Noun(tuple(f"{english} {form}" for form in head.english), german, head.gender)


def read_verb(entry: str) -> Verb:
    """The verb of `turn_on ein-schalten` or `come/came/come kommen kommt kam ist gekommen`."""
    english, german, *parts = entry.split()
    head, *irregular = english.split("/")
    base, _, particle = head.partition("_")
    past, participle = irregular or [suffixed(base, "d")] * 2
    prefix, _, infinitive = german.rpartition("-")
    stem = infinitive.removesuffix("n").removesuffix("e")
    weak = stem + ("et" if stem.endswith(("t", "d", "chn", "ffn")) else "t")
    ge = "" if stem.startswith(("be", "er", "ge", "ver", "über")) or stem.endswith("ier") else "ge"
    third, preterite, perfect = [part for part in parts if part != "ist"] or [weak, weak + "e", ge + weak]
    return Verb(
        Paradigm(base, suffixed(base, "s"), base, past, past, participle, particle),
        Paradigm(infinitive, third, infinitive, preterite, preterite.removesuffix("e") + "en", perfect, prefix),
        takes_sein="ist" in parts,
    )


def suffixed(word: str, ending: str) -> str:
    """The English word with -s or -d."""
    if word[-1] == "y" and word[-2] not in "aeiou":
        return word[:-1] + "ie" + ending
    needs_e = word.endswith(("s", "x", "ch", "sh", "o")) if ending == "s" else word[-1] != "e"
    return word + "e" * needs_e + ending
