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
    field: str = "adjunct"


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun in both languages; `plural` is empty for mass nouns."""

    english: str
    english_plural: str
    gender: str
    german: str
    genitive: str
    plural: str


@dataclass(frozen=True, slots=True)
class Determiner:
    """A determiner; `inflection` is a determiner with the same endings: der, dieser, mein, ein, viele, zwei or Annas."""

    english: str
    english_plural: str
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
    takes_sein: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """One valency of a verb; a slot is a form for `phrase` and sorts of noun, `clause` a conjunction or empty."""

    verb: Verb
    subjects: list[str]
    slots: list[list[str]]
    clause: str
    adjuncts: list[str]


def read_table(text: str, read: Callable[[str], T]) -> dict[str, list[T]]:
    """The records of lines `key | entry, entry`, by key."""
    table: dict[str, list[T]] = {}
    for key, entries in (line.split(" | ") for line in text.strip().splitlines()):
        table.setdefault(key, []).extend(read(entry) for entry in entries.split(", "))
    return table


def read_noun(entry: str) -> Noun:
    """The noun of `child/children das Kind -es -er`."""
    english, article, german, *endings = entry.split()
    genitive, plural = ([german + e[1:] if e[0] == "-" else e for e in endings] + [""])[:2]
    singular, _, irregular = english.partition("/")
    gender = {"der": "m", "die": "f", "das": "n"}[article]
    return Noun(singular, irregular or suffixed(singular, "s"), gender, german, genitive, plural)


def compound(modifier: str, head: Noun) -> Noun:
    """The compound of a modifier with its linking form, such as `kitchen Küchen`, and a head, which inflects."""
    english, link = modifier.split()
    german, genitive, plural = (form and link + form.lower() for form in (head.german, head.genitive, head.plural))
    return Noun(f"{english} {head.english}", f"{english} {head.english_plural}", head.gender, german, genitive, plural)


def read_verb(entry: str) -> Verb:
    """The verb of `turn_on ein-schalten` or `come/came/come kommen kommt kam ist gekommen`."""
    english, german, *parts = entry.split()
    head, *irregular = english.split("/")
    base, _, particle = head.partition("_")
    past, participle = irregular or [suffixed(base, "d")] * 2
    prefix, _, infinitive = german.rpartition("-")
    third, preterite, german_participle = [part for part in parts if part != "ist"] or weak_parts(infinitive)
    preterites = preterite + ("n" if preterite[-1] == "e" else "en")
    return Verb(
        Paradigm(base, suffixed(base, "s"), base, past, past, participle, particle),
        Paradigm(infinitive, third, infinitive, preterite, preterites, german_participle, prefix),
        takes_sein="ist" in parts,
    )


def weak_parts(infinitive: str) -> list[str]:
    """Third person, preterite and participle of a weak verb: kauft, kaufte, gekauft."""
    stem = infinitive.removesuffix("n").removesuffix("e")
    third = stem + ("et" if stem.endswith(("t", "d", "chn", "ffn")) else "t")
    has_no_ge = stem.startswith(("be", "er", "ge", "ver", "über")) or stem.endswith("ier")
    return [third, third + "e", third if has_no_ge else "ge" + third]


def read_frames(valency: str, verbs: list[Verb]) -> list[Frame]:
    """The frames that verbs have in a valency such as `person: acc person, whether; whether`."""
    subjects, frames = valency.split(":")
    read = []
    for governed, *adjuncts in (frame.split(" +") for frame in frames.split(";")):
        slots = [slot.split() for slot in governed.split(",") if slot.strip()]
        clause = slots.pop()[0] if slots and slots[-1][0] in ("that", "whether", "to") else ""
        read += [Frame(verb, subjects.split(), slots, clause, adjuncts) for verb in verbs]
    return read


def suffixed(word: str, ending: str) -> str:
    """The English word with -s or -d."""
    if word[-1] == "y" and word[-2] not in "aeiou":
        return word[:-1] + "ie" + ending
    needs_e = word.endswith(("s", "x", "ch", "sh", "o")) if ending == "s" else word[-1] != "e"
    return word + "e" * needs_e + ending
