"""The rules of the demo grammar: phrases, clauses and sentences, each built in both languages at once."""

import re
from dataclasses import dataclass, replace

from tools.demo_corpus.lexemes import Determiner, Noun, Paradigm, Part, Verb

CASES = ("nom", "acc", "dat", "gen")
# The order of the German middle field: what is known stands before the adjuncts, what is new behind them.
FIELDS = ("pronoun", "time", "dative", "known", "negation", "adjunct", "new", "complement", "clause")


def _table(*rows: str) -> dict[str, dict[str, str]]:
    return {case: dict(zip("mfnp", row.split(), strict=True)) for case, row in zip(CASES, rows, strict=True)}


def _verb(english: str, german: str) -> Verb:
    return Verb(Paradigm(*english.split()), Paradigm(*german.split()), takes_sein=False)


ARTICLES = _table("der die das die", "den die das die", "dem der dem den", "des der des der")
RELATIVES = _table("der die das die", "den die das die", "dem der dem denen", "dessen deren dessen deren")
ENDINGS = _table("er e es e", "en e es e", "em er em en", "es er es er")
STRONG = _table("er e es e", "en e es e", "em er em en", "en er en er")
WEAK = _table("e e e en", "en e e en", "en en en en", "en en en en")
UNINFLECTED = {("nom", "m"), ("nom", "n"), ("acc", "n")}  # ein, mein, kein
STEMS = {"dunkel": "dunkl", "teuer": "teur", "müde": "müd"}
CONTRACTIONS = {"in dem": "im", "in das": "ins", "an dem": "am", "zu dem": "zum", "zu der": "zur", "von dem": "vom"}
BE = _verb("be is are was were been", "sein ist sind war waren gewesen")
HAVE = _verb("have has have had had had", "haben hat haben hatte hatten gehabt")
WILL = _verb("will will will - - -", "werden wird werden - - -")
CAN = _verb("can can can - - -", "können kann können - - -")
SHOULD = _verb("should should should - - -", "sollen sollte sollten - - -")
MUST = _verb("have has have had had had to", "müssen muss müssen musste mussten gemusst")
WANT = _verb("want wants want wanted wanted wanted to", "wollen will wollen wollte wollten gewollt")
MODALS = {"present": [WILL, CAN, SHOULD, MUST, WANT], "past": [MUST, WANT]}
DO = Paradigm("do", "does", "do", "did", "did", "done")
NOT, NOTHING = Part("not", "nicht", "negation"), Part("", "", "time")


@dataclass(frozen=True, slots=True)
class Nominal:
    """A noun phrase, name or pronoun: English as subject, as object and behind a preposition, German by case."""

    english: tuple[str, str, str]
    german: dict[str, str]
    is_plural: bool
    field: str = "pronoun"
    contracts: bool = False


@dataclass(frozen=True, slots=True)
class Clause:
    """A verb with its parts in English order; a clause without a subject is an infinitive clause."""

    verb: Verb
    subject: Nominal | None
    parts: tuple[Part, ...] = ()
    is_past: bool = False
    auxiliary: Verb | None = None
    middle: Part = NOTHING
    front: Part = NOTHING
    is_question: bool = False

    def finite(self, verb: Paradigm) -> str:
        """The form of `verb` that agrees with the subject, in either language."""
        if self.subject is None:
            return verb.infinitive
        forms = (verb.past, verb.past_plural) if self.is_past else (verb.third, verb.plural)
        return forms[self.subject.is_plural]


def join(*words: str) -> str:
    """The words that are not empty, with spaces between them."""
    return " ".join(word for word in words if word)


def pronoun(subject: str, obj: str, *german: str) -> Nominal:
    """A personal pronoun or a name: English subject and object, German nominative, accusative and dative."""
    return Nominal((subject, obj, obj), dict(zip(CASES, german, strict=False)), is_plural=subject in ("they", "we"))


def relative_pronoun(noun: Noun, *, is_plural: bool, is_person: bool) -> Nominal:
    """The pronoun of a relative clause that modifies `noun`."""
    english = ("who", "whom", "whom") if is_person else ("that", "that", "which")
    german = {case: row["p" if is_plural else noun.gender] for case, row in RELATIVES.items()}
    return Nominal(english, german, is_plural)


def noun_phrase(noun: Noun, determiner: Determiner, *, is_plural: bool, adjective: Part | None) -> Nominal:
    """Determiner, adjective and noun; the adjective is weak behind a determiner that shows the case, else strong."""
    words = join(adjective.english if adjective else "", noun.english[is_plural])
    article = determiner.plural if is_plural else determiner.singular
    english = join("an" if article == "a" and words[0] in "aeiou" else article, words)
    german = {}
    for case in CASES:
        column = "p" if is_plural else noun.gender
        word, endings = inflect_determiner(determiner, case=case, column=column)
        form = STEMS.get(adjective.german, adjective.german) + endings[case][column] if adjective else ""
        german[case] = join(word, form, inflect_noun(noun, case=case, is_plural=is_plural))
    field = "new" if determiner.inflection in ("ein", "viele", "zwei") else "known"
    return Nominal((english,) * 3, german, is_plural, field, contracts=determiner.inflection == "der")


def inflect_determiner(determiner: Determiner, *, case: str, column: str) -> tuple[str, dict[str, dict[str, str]]]:
    """The German determiner and the endings of the adjective behind it."""
    inflection = determiner.inflection
    if inflection == "der":
        return ARTICLES[case][column], WEAK
    if inflection in ("zwei", "Annas") or (inflection in ("ein", "mein") and (case, column) in UNINFLECTED):
        return determiner.german, STRONG
    return determiner.german + ENDINGS[case][column], STRONG if inflection == "viele" else WEAK


def inflect_noun(noun: Noun, *, case: str, is_plural: bool) -> str:
    """The German noun; a weak masculine has one form in all cases but the nominative: dem Studenten."""
    singular, genitive, plural = noun.german
    if is_plural:
        return plural + ("n" if case == "dat" and plural[-1] not in "ns" else "")
    is_weak = noun.gender == "m" and genitive[-1] == "n"
    return genitive if case == "gen" or (is_weak and case != "nom") else singular


def modified(nominal: Nominal, modifier: Part) -> Nominal:
    """The noun phrase with an owner or a relative clause behind it; a relative clause prevents contraction."""
    subject, obj, oblique = (f"{form} {modifier.english}" for form in nominal.english)
    german = {case: f"{form} {modifier.german}" for case, form in nominal.german.items()}
    contracts = nominal.contracts and not modifier.german.startswith(",")
    return replace(nominal, english=(subject, obj, oblique), german=german, contracts=contracts)


def phrase(form: str, nominal: Nominal) -> Part:
    """The object or prepositional phrase of a form: `dat`, or prepositions with a case, `with=mit+dat`, `to=+dat`."""
    english, _, german = form.rpartition("=")
    preposition, _, case = german.rpartition("+")
    words = join(preposition, nominal.german[case])
    start = " ".join(words.split(" ", 2)[:2])
    if nominal.contracts and start in CONTRACTIONS:
        words = CONTRACTIONS[start] + words.removeprefix(start)
    is_dative = case == "dat" and nominal.field != "pronoun"
    field = "complement" if preposition else "dative" if is_dative else nominal.field
    return Part(join(english.replace("_", " "), nominal.english[2 if english else 1]), words, field)


def in_english(clause: Clause) -> str:
    """The English clause; questions and negation need an auxiliary, if need be a form of do."""
    verb, head = clause.verb.english, (clause.auxiliary or clause.verb).english
    infinite = verb.participle if clause.auxiliary is HAVE else verb.infinitive
    rest = [head.particle, infinite, verb.particle] if clause.auxiliary else [verb.particle]
    inverts = clause.auxiliary is HAVE or head.infinitive in ("be", "will", "can", "should")
    if (clause.is_question or clause.middle is NOT) and not inverts:
        head, rest, inverts = DO, [head.infinitive, *rest], True
    finite, subject = clause.finite(head), clause.subject.english[0] if clause.subject else ""
    order = [finite, subject, clause.middle.english] if clause.is_question else [subject, finite, clause.middle.english]
    order = order if inverts else [subject, clause.middle.english, finite]
    return join(clause.front.english, *order, *rest, *(part.english for part in clause.parts))


def in_german(clause: Clause, *, is_verb_last: bool) -> str:
    """The German clause; the finite verb is second (first in a yes-no question) or last."""
    verb, head = clause.verb.german, (clause.auxiliary or clause.verb).german
    head = BE.german if clause.auxiliary is HAVE and clause.verb.takes_sein else head
    infinite = verb.participle if clause.auxiliary is HAVE else verb.infinitive
    finite, rest = clause.finite(head), verb.particle + infinite if clause.auxiliary else ""
    parts = sorted([*clause.parts, clause.middle], key=lambda part: FIELDS.index(part.field))
    middle = join(*(part.german for part in parts if part.field != "clause"))
    after = join(*(part.german for part in parts if part.field == "clause"))
    if clause.subject is None:
        return join(middle, head.particle + "zu" + finite if head.particle else "zu " + finite, after)
    front, subject = clause.front.german, clause.subject.german["nom"]
    if is_verb_last:
        return join(front, subject, middle, rest, head.particle + finite, after)
    start = [front, finite, subject] if front or clause.is_question else [subject, finite]
    return join(*start, middle, rest, head.particle, after)


def linked(conjunction: Part, clause: Clause) -> Part:
    """The clause behind its conjunction, in German between commas; only behind aber is the verb second."""
    german = in_german(clause, is_verb_last=conjunction.german != "aber")
    return Part(join(conjunction.english, in_english(clause)), join(",", conjunction.german, german, ","), "clause")


def sentence(clause: Clause) -> tuple[str, str]:
    """The English and the German sentence, with a capital and a punctuation mark."""
    texts = in_english(clause).replace("can not", "cannot"), in_german(clause, is_verb_last=False)
    english, german = (re.sub(r"(?: ,)+", ",", text).strip(", ") for text in texts)
    mark = "?" if clause.is_question else "."
    return english[0].upper() + english[1:] + mark, german[0].upper() + german[1:] + mark
