"""Random sentences of the demo grammar, and the corpus made of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from tools.demo_corpus import grammar, lexemes, lexicon
from tools.demo_corpus.grammar import BE, HAVE, MODALS, NOT, NOTHING, WILL, Clause, Nominal, linked, phrase
from tools.demo_corpus.lexemes import Determiner, Frame, Part, T, read_table

NOUNS = read_table(lexicon.NOUNS, lexemes.read_noun)
MODIFIERS = read_table(lexicon.COMPOUNDS, str)
ADJECTIVES = read_table(lexicon.ADJECTIVES, lambda entry: Part(*entry.split()))
ADJUNCTS = read_table(lexicon.ADJUNCTS, str.split)
WORDS = read_table(lexicon.WORDS, lambda entry: Part(*entry.split("=")))
DETERMINERS = read_table(lexicon.DETERMINERS, lambda entry: Determiner(*entry.replace("-", "").split(" ")))
PRONOUNS = [grammar.pronoun(*entry.split()) for entry in lexicon.PRONOUNS.split(", ")]
FRAMES = [
    Frame(verb, valency.split(":")[0].split(), pattern.strip())
    for valency, verbs in read_table(lexicon.VERBS, lexemes.read_verb).items()
    for pattern in valency.split(":")[1].split(";")
    for verb in verbs
]
GOVERNING = [frame for frame in FRAMES if frame.pattern.endswith(("=dass", "=ob", "to="))]
PLAIN = [frame for frame in FRAMES if frame not in GOVERNING]
PERSONAL = [frame for frame in PLAIN if frame.subjects[0] == "person"]
COPULA = Frame(BE, list(NOUNS), "")
AUXILIARIES: dict[str, list[lexemes.Verb | None]] = {"present": [None] * 4 + [HAVE] * 3, "past": [None] * 7}
ANY_MIDDLE = [NOTHING] * 15 + [NOT] * 3 + WORDS["frequency"]
MIDDLES = {"time": [NOTHING] * 5 + [NOT], "adjunct": [NOTHING], "both": [NOTHING]}
SAME_TENSE = ("wenn", "falls", "bevor", "als", "während")


@dataclass(frozen=True, slots=True)
class DemoCorpus:
    """English-German sentence pairs, no two of which, in whatever splits, have the same set of content words."""

    train: list[tuple[str, str]]
    valid: list[tuple[str, str]]
    test: list[tuple[str, str]]
    alignments: dict[tuple[str, str], str] = field(default_factory=dict)
    """The pairs of words in each pair of sentences, in Pharaoh's format."""


def generate(*, seed: int, num_train: int, num_valid: int, num_test: int) -> DemoCorpus:
    """The demo corpus of a seed; the test set does not depend on the size of the other splits."""
    sampler = Sampler(seed=seed)
    corpus = DemoCorpus(train=[], valid=[], test=[])
    seen: set[frozenset[str]] = set()
    for split, size in ((corpus.test, num_test), (corpus.valid, num_valid), (corpus.train, num_train)):
        while len(split) < size:
            pair = sampler.sentence()
            if (content := frozenset(sampler.content)) not in seen:
                seen.add(content)
                split.append(pair)
                corpus.alignments[pair] = sampler.alignment
    return corpus


class Sampler:
    """Draws sentences, with `Random.random` alone, whose sequence is the same in every version of Python."""

    def __init__(self, *, seed: int) -> None:
        self._random = Random(seed).random
        # Of the sentence drawn last: its content words and its word alignment.
        self.content: list[str] = []
        self.alignment = ""

    def sentence(self) -> tuple[str, str]:
        """A sentence of 6 to 18 words in both languages, without a repeated content word or a double negation."""
        while True:
            self.content = []
            english, german, self.alignment = grammar.aligned_sentence(self._sentence())
            pair = english, german
            is_repetitive = len(set(self.content)) < len(self.content)
            negations = re.findall(r"\b(?:no|not|never|rarely)\b", pair[0].lower())
            if not is_repetitive and len(negations) < 2 and all(6 <= len(text.split()) <= 18 for text in pair):
                return pair

    def _pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def _sentence(self) -> Clause:
        tense, kind = self._pick(("present", "past")), self._pick(("simple", "simple", "linked", "linked", "governing"))
        if kind == "simple":
            frame = COPULA if self._random() < 0.1 else self._pick(PLAIN)
            clause = self._clause(frame, tense, self._pick(("", "adjunct", "time", "both", "subject", "object")))
            if self._random() < 0.2:
                return replace(clause, is_question=True, front=self._pick((NOTHING, Part("why", "warum"))))
            can_move = clause.parts and clause.parts[-1].field in ("time", "adjunct") and self._random() < 0.6
            return replace(clause, front=clause.parts[-1], parts=clause.parts[:-1]) if can_move else clause
        frame = self._pick(GOVERNING if kind == "governing" else PERSONAL)
        governed = Part(*frame.pattern.split(", ")[-1].split("=")) if kind == "governing" else None
        conjunction = governed or self._pick(WORDS[f"{tense} link"])
        tail = "bare" if conjunction.german in SAME_TENSE else ""
        clause, is_infinitive = self._clause(frame, tense, tail), conjunction.german in ("", "um")
        inner = self._pick(PERSONAL if is_infinitive else PLAIN)
        link = linked(conjunction, self._clause(inner, "" if is_infinitive else tense, tail))
        if governed or conjunction.german in ("um", "aber") or self._random() < 0.5:
            return replace(clause, parts=(*clause.parts, link))
        return replace(clause, front=replace(link, english=link.english + " ,"))

    def _clause(self, frame: Frame, tense: str, tail: str, *, gap: Nominal | None = None, gap_sort: str = "") -> Clause:
        # tail: what follows the complements; "bare": neither auxiliary nor negation; without a tense: infinitive
        self.content += [frame.verb.english.infinitive] if frame is not COPULA else []
        governed, *adjuncts = re.split(r"(?:^| )\+", frame.pattern)
        slots = [slot.split() for slot in governed.split(", ") if " " in slot]
        gap_form = next((form for form, *sorts in slots if gap_sort in sorts), "")
        sort, subject, auxiliary, middle, front = self._pick(frame.subjects), None, None, NOTHING, NOTHING
        if gap_sort in frame.subjects and (not gap_form or self._random() < 0.5):
            sort, subject, gap_form = gap_sort, gap, ""
        elif tense:
            subject = self._nominal(sort, "head" if tail == "subject" else "subject")
        if tense and tail != "bare":
            auxiliaries = [*AUXILIARIES[tense], *MODALS[tense] * (sort == "person")]
            auxiliary = self._pick(auxiliaries) if frame is not COPULA else None
            middle = self._pick(MIDDLES.get(tail, ANY_MIDDLE))
        parts = [replace(self._adjective(sort), field="complement")] if frame is COPULA else []
        for form, *sorts in slots:
            if gap and form == gap_form:
                front = phrase(form, gap)
            else:
                role = "definite" if middle is NOT or "=" in form else "object"
                role = "head" if tail == "object" and form == slots[-1][0] else role
                parts.append(phrase(form, self._nominal(self._pick(sorts), role)))
        if tail in ("adjunct", "both") and adjuncts:
            parts.append(self._adjunct(self._pick(adjuncts)))
        if tail in ("time", "both"):
            words = WORDS["future" if auxiliary is WILL else tense]
            parts.append(self._pick(words) if self._random() < 0.6 else replace(self._adjunct("time"), field="time"))
        return Clause(frame.verb, subject, tuple(parts), tense == "past", auxiliary, middle, front)

    def _adjunct(self, kind: str) -> Part:
        if kind == "manner":
            return replace(self._pick(WORDS["manner"]), field="adjunct")
        form, *sorts = self._pick(ADJUNCTS[kind])
        return replace(phrase(form, self._nominal(self._pick(sorts), "definite")), field="adjunct")

    def _adjective(self, sort: str) -> Part:
        adjective = self._pick([word for sorts, words in ADJECTIVES.items() if sort in sorts.split() for word in words])
        self.content.append(adjective.english)
        return adjective

    def _nominal(self, sort: str, role: str) -> Nominal:
        name = self._pick(lexicon.NAMES)
        if sort == "person" and role not in ("head", "owner") and self._random() < 0.3:
            if self._random() < 0.5:
                return self._pick(PRONOUNS if role == "subject" else PRONOUNS[:3])
            self.content.append(name)
            return grammar.pronoun(*[name] * 5)
        noun = self._pick(NOUNS[sort])
        modifiers = [word for heads, words in MODIFIERS.items() if noun.english[0] in heads.split() for word in words]
        noun = lexemes.compound(self._pick(modifiers), noun) if modifiers and self._random() < 0.45 else noun
        self.content += noun.english[0].split()
        is_plural = noun.german[2] != "" and self._random() < 0.3
        number = "plural" if is_plural else "singular" if noun.german[2] else "mass"
        determiner = self._pick(DETERMINERS["definite"] + DETERMINERS[number] * (role not in ("definite", "owner")))
        if role in ("subject", "object") and self._random() < 0.08:
            self.content.append(name)
            determiner = Determiner(name + "'s", name + "'s", name + "s", "Annas")
        adjective = self._adjective(sort) if self._random() < 0.4 else None
        nominal = grammar.noun_phrase(noun, determiner, is_plural=is_plural, adjective=adjective)
        if role == "head":
            gap = grammar.relative_pronoun(noun, is_plural=is_plural, is_person=sort == "person")
            uses = [use for use in (*PLAIN, COPULA) if sort in (*use.subjects, *re.findall(r"\w+", use.pattern))]
            clause = self._clause(self._pick(uses), self._pick(("present", "past")), "", gap=gap, gap_sort=sort)
            return grammar.modified(nominal, linked(Part("", ""), clause))
        if determiner.singular == "the" and self._random() < 0.15:
            owner = self._nominal("person", "owner")
            return grammar.modified(nominal, phrase("of=+gen", owner))
        return nominal
