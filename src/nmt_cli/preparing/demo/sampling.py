"""Random sentences of the demo grammar, and the corpus made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from nmt_cli.preparing.demo import lexicon
from nmt_cli.preparing.demo.clauses import BE, CAN, HAVE, MUST, NOT, SHOULD, WANT, WILL, Clause, linked, relative, sentence
from nmt_cli.preparing.demo.lexemes import Determiner, Frame, Noun, Part, compound, read_frames, read_noun, read_table, read_verb
from nmt_cli.preparing.demo.phrases import Nominal, modified, noun_phrase, phrase, pronoun, relative_pronoun

T = TypeVar("T")
NOUNS = read_table(lexicon.NOUNS, read_noun)
MODIFIERS = read_table(lexicon.COMPOUNDS, str)
ADJECTIVES = read_table(lexicon.ADJECTIVES, lambda entry: Part(*entry.split(), field="complement"))
WORDS = read_table(lexicon.WORDS, lambda entry: Part(*entry.split("="), field="time"))
DETERMINERS = read_table(lexicon.DETERMINERS, lambda entry: Determiner(*entry.replace("-", "").split(" ")))
PRONOUNS = [pronoun(*entry.split()) for entry in lexicon.PRONOUNS.split(", ")]
FRAMES = [frame for item in read_table(lexicon.VERBS, read_verb).items() for frame in read_frames(*item)]
PLAIN = [frame for frame in FRAMES if not frame.clause] + [Frame(BE, list(NOUNS), [["predicate"]], "", [])] * 8
PERSONAL, GOVERNING = [frame for frame in PLAIN if frame.subjects[0] == "person"], [frame for frame in FRAMES if frame.clause]
ADJUNCTS = read_table(lexicon.ADJUNCTS, str.split)
AUXILIARIES = {"present": [None] * 4 + [HAVE] * 3 + [WILL, CAN, SHOULD, MUST, WANT], "past": [None] * 6 + [MUST, WANT]}
TAILS = ("", "adjunct", "time", "both", "subject", "relative")


@dataclass(frozen=True, slots=True)
class DemoCorpus:
    """English-German sentence pairs; two splits never share a sentence or a set of content words."""

    train: list[tuple[str, str]]
    valid: list[tuple[str, str]]
    test: list[tuple[str, str]]


def generate(*, seed: int, num_train: int, num_valid: int, num_test: int) -> DemoCorpus:
    """The demo corpus of a seed; the test set does not depend on the size of the other splits."""
    sampler = Sampler(seed=seed)
    corpus = DemoCorpus(train=[], valid=[], test=[])
    seen: set[str] = set()
    split_of: dict[frozenset[str], list[tuple[str, str]]] = {}
    for split, size in ((corpus.test, num_test), (corpus.valid, num_valid), (corpus.train, num_train)):
        while len(split) < size:
            pair = sampler.sentence()
            if pair[0] not in seen and split_of.setdefault(frozenset(sampler.content), split) is split:
                seen.add(pair[0])
                split.append(pair)
    return corpus


class Sampler:
    """Draws sentences, with `Random.random` alone, whose sequence is the same in every version of Python."""

    def __init__(self, *, seed: int) -> None:
        self._random = Random(seed).random
        self.content: list[str] = []  # content words of the sentence drawn last

    def sentence(self) -> tuple[str, str]:
        """A sentence of 6 to 18 words in both languages, without a repeated content word or a double negation."""
        while True:
            self.content = []
            pair = sentence(self._sentence())
            words = [text.lower().split() for text in pair]
            is_plain = len(set(self.content)) == len(self.content) and len({"no", "not", "never"} & {*words[0]}) < 2
            if is_plain and all(6 <= len(side) <= 18 for side in words):
                return pair

    def _pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def _sentence(self) -> Clause:
        tense = self._pick(("present", "present", "past"))
        frame = self._pick(GOVERNING if self._random() < 0.2 else PLAIN)
        if not frame.clause and self._random() < 0.55:
            return self._simple_sentence(self._clause(frame, tense, tail=self._pick(TAILS)))
        clause = self._clause(frame, tense)
        conjunction = self._pick(WORDS[frame.clause or tense + " link"])
        is_infinitive = conjunction.german in ("", "um")
        link = linked(conjunction, self._clause(self._pick(PERSONAL if is_infinitive else PLAIN), "" if is_infinitive else tense))
        if frame.clause or conjunction.german in ("um", "aber") or self._random() < 0.5:
            return replace(clause, parts=(*clause.parts, link))
        return replace(clause, front=Part(link.english + " ,", link.german))

    def _simple_sentence(self, clause: Clause) -> Clause:
        if self._random() < 0.2:
            return replace(clause, is_question=True, front=self._pick([None, *WORDS["question"]]))
        if clause.parts and clause.parts[-1].field in ("time", "adjunct") and self._random() < 0.6:
            return replace(clause, front=clause.parts[-1], parts=clause.parts[:-1])
        return clause

    def _clause(
        self, frame: Frame, tense: str, *, tail: str = "", sort: str = "", subject: Nominal | None = None, gap: int = -1
    ) -> Clause:
        self.content.append(frame.verb.english.infinitive)
        sort = sort or self._pick(frame.subjects)
        auxiliary = middle = None
        if tense:
            subject = subject or self._nominal(sort, pronouns=PRONOUNS, has_relative=tail == "subject")
            auxiliary = self._pick(AUXILIARIES[tense]) if sort == "person" else self._pick((None, HAVE)) if tense == "present" else None
            middle = self._pick([None] * 20 + [NOT] * 4 + WORDS["frequency"])
        parts = []
        for index, (form, *sorts) in enumerate(frame.slots):
            if form == "predicate":
                parts.append(self._adjective(sort))
            elif index != gap:
                has_relative = tail == "relative" and index == len(frame.slots) - 1
                nominal = self._nominal(self._pick(sorts), is_definite=middle is NOT or "=" in form, has_relative=has_relative)
                parts.append(phrase(form, nominal))
        if tail in ("adjunct", "both") and frame.adjuncts:
            parts.append(self._adjunct(self._pick(frame.adjuncts)))
        if tail in ("time", "both"):
            kind = "future" if auxiliary is WILL else "perfect" if auxiliary is HAVE else tense
            time = self._pick(WORDS[kind]) if self._random() < 0.6 else self._adjunct("time")
            parts.append(replace(time, field="time"))
        return Clause(frame.verb, subject, tuple(parts), tense == "past", auxiliary, middle)

    def _adjunct(self, kind: str) -> Part:
        if kind == "manner":
            return self._pick(WORDS["manner"])
        form, *sorts = self._pick(ADJUNCTS[kind])
        return replace(phrase(form, self._nominal(self._pick(sorts), is_definite=True)), field="adjunct")

    def _adjective(self, sort: str) -> Part:
        adjective = self._pick([a for sorts, group in ADJECTIVES.items() if sort in sorts.split() for a in group])
        self.content.append(adjective.english)
        return adjective

    def _name(self) -> str:
        self.content.append(self._pick(lexicon.NAMES))
        return self.content[-1]

    def _nominal(
        self, sort: str, *, is_definite: bool = False, has_relative: bool = False, pronouns: Sequence[Nominal] = PRONOUNS[:3]
    ) -> Nominal:
        if sort != "person" or has_relative or self._random() < 0.7:
            return self._noun_phrase(sort, is_definite=is_definite, has_relative=has_relative)
        return self._pick(pronouns) if self._random() < 0.5 else pronoun(*[self._name()] * 5)

    def _noun_phrase(self, sort: str, *, is_definite: bool, has_relative: bool = False) -> Nominal:
        noun = self._pick(NOUNS[sort])
        modifiers = [m for heads, group in MODIFIERS.items() if noun.english in heads.split() for m in group]
        if modifiers and self._random() < 0.4:
            noun = compound(self._pick(modifiers), noun)
        self.content += noun.english.split()
        is_plural = noun.plural != "" and self._random() < 0.3
        number = "plural" if is_plural else "singular" if noun.plural else "mass"
        determiner = self._pick(DETERMINERS["definite"] + DETERMINERS[number] * (not is_definite))
        if self._random() < 0.06:
            name = self._name()
            determiner = Determiner(name + "'s", name + "'s", name + "s", "Annas")
        adjective = self._adjective(sort) if self._random() < 0.4 else None
        nominal = noun_phrase(noun, determiner, is_plural=is_plural, adjective=adjective)
        if has_relative:
            return modified(nominal, self._relative_clause(relative_pronoun(noun, is_plural=is_plural, is_person=sort == "person"), sort))
        if determiner.english == "the" and self._random() < 0.15:
            owner = self._noun_phrase("person", is_definite=True)
            return modified(nominal, Part("of " + owner.english[2], owner.german["gen"]))
        return nominal

    def _relative_clause(self, gap: Nominal, sort: str) -> Part:
        tense = self._pick(("present", "past"))
        as_subject = [(frame, -1) for frame in PLAIN if sort in frame.subjects]
        as_complement = [(frame, index) for frame in PLAIN for index, slot in enumerate(frame.slots) if sort in slot]
        frame, index = self._pick(as_subject + as_complement)
        if index < 0:
            return relative(self._clause(frame, tense, sort=sort, subject=gap))
        return relative(replace(self._clause(frame, tense, gap=index), front=phrase(frame.slots[index][0], gap)))
