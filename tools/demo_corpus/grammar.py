"""The rules of the demo grammar: phrases, clauses and sentences, each built in both languages at once.

Words that are made of one lexeme get a key in common (`word_keys.py`), so each sentence has its word alignment.
"""

import re
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tools.demo_corpus.lexemes import Determiner, Noun, Paradigm, Part, Verb
from tools.demo_corpus.word_keys import keys_of, new_key, pharaoh, with_key, with_keys, without_keys

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
class ClauseKeys:
    """The keys of the words that a clause itself adds: verb, auxiliary, German zu, and what stands in the middle.

    English `do` has the key of an auxiliary, and so has the finite German verb.
    """

    verb: str = field(default_factory=new_key)
    auxiliary: str = field(default_factory=new_key)
    infinitive: str = field(default_factory=new_key)
    middle: str = field(default_factory=new_key)


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
    keys: ClauseKeys = field(default_factory=ClauseKeys)

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


def keyed_nominal(nominal: Nominal) -> Nominal:
    """The phrase with keys in all of its forms."""
    english, german = with_keys(nominal.english, [*nominal.german.values()])
    subject, obj, oblique = english
    return replace(nominal, english=(subject, obj, oblique), german=dict(zip(nominal.german, german, strict=True)))


def keyed_part(part: Part) -> Part:
    """The part with keys."""
    (english,), (german,) = with_keys([part.english], [part.german])
    return replace(part, english=english, german=german)


def keyed_clause(clause: Clause) -> Clause:
    """The clause with keys in its phrases."""
    subject, parts = clause.subject and keyed_nominal(clause.subject), tuple(map(keyed_part, clause.parts))
    return replace(clause, subject=subject, parts=parts, front=keyed_part(clause.front))


def modified(nominal: Nominal, modifier: Part) -> Nominal:
    """The noun phrase with an owner or a relative clause behind it; a relative clause prevents contraction."""
    nominal = keyed_nominal(nominal)
    subject, obj, oblique = (f"{form} {modifier.english}" for form in nominal.english)
    german = {case: f"{form} {modifier.german}" for case, form in nominal.german.items()}
    contracts = nominal.contracts and not modifier.german.startswith(",")
    return replace(nominal, english=(subject, obj, oblique), german=german, contracts=contracts)


def phrase(form: str, nominal: Nominal) -> Part:
    """The object or prepositional phrase of a form: `dat`, or prepositions with a case, `with=mit+dat`, `to=+dat`.

    An English preposition without a German one is aligned to the first German word, which shows the case.
    """
    nominal = keyed_nominal(nominal)
    english, _, german = form.rpartition("=")
    german, _, case = german.rpartition("+")
    (english,), (preposition,) = with_keys([english.replace("_", " ")], [german])
    words = join(preposition, nominal.german[case])
    if not preposition:
        english = with_key(english, keys_of(words.split(" ")[0]))
    start = " ".join(words.split(" ", 2)[:2])
    if nominal.contracts and without_keys(start) in CONTRACTIONS:
        words = with_key(CONTRACTIONS[without_keys(start)], keys_of(start)) + words.removeprefix(start)
    is_dative = case == "dat" and nominal.field != "pronoun"
    place = "complement" if preposition else "dative" if is_dative else nominal.field
    return Part(join(english, nominal.english[2 if english else 1]), words, place)


def in_english(clause: Clause) -> str:
    """The English clause; questions and negation need an auxiliary, if need be a form of do."""
    verb, head = clause.verb.english, (clause.auxiliary or clause.verb).english
    key, middle = clause.keys.verb, with_key(clause.middle.english, clause.keys.middle)
    head_key = clause.keys.auxiliary if clause.auxiliary else key
    infinite = with_key(verb.participle if clause.auxiliary is HAVE else verb.infinitive, key)
    rest = [with_key(verb.particle, key)]
    if clause.auxiliary:
        rest = [with_key(head.particle, head_key), infinite, *rest]
    inverts = clause.auxiliary is HAVE or head.infinitive in ("be", "will", "can", "should")
    if (clause.is_question or clause.middle is NOT) and not inverts:
        head, rest, inverts = DO, [with_key(head.infinitive, head_key), *rest], True
        head_key = clause.keys.auxiliary
    finite, subject = with_key(clause.finite(head), head_key), clause.subject.english[0] if clause.subject else ""
    order = [finite, subject, middle] if clause.is_question else [subject, finite, middle]
    order = order if inverts else [subject, middle, finite]
    return join(clause.front.english, *order, *rest, *(part.english for part in clause.parts))


def in_german(clause: Clause, *, is_verb_last: bool) -> str:
    """The German clause; the finite verb is second (first in a yes-no question) or last."""
    verb, head = clause.verb.german, (clause.auxiliary or clause.verb).german
    head = BE.german if clause.auxiliary is HAVE and clause.verb.takes_sein else head
    infinite = verb.participle if clause.auxiliary is HAVE else verb.infinitive
    finite = with_key(clause.finite(head), clause.keys.auxiliary + ("" if clause.auxiliary else clause.keys.verb))
    rest = with_key(verb.particle + infinite, clause.keys.verb) if clause.auxiliary else ""
    negation = replace(clause.middle, german=with_key(clause.middle.german, clause.keys.middle))
    parts = sorted([*clause.parts, negation], key=lambda part: FIELDS.index(part.field))
    middle = join(*(part.german for part in parts if part.field != "clause"))
    after = join(*(part.german for part in parts if part.field == "clause"))
    if clause.subject is None:
        zu = clause.keys.infinitive
        return join(middle, head.particle + "zu" + finite + zu if head.particle else f"zu{zu} {finite}", after)
    front, subject = clause.front.german, clause.subject.german["nom"]
    if is_verb_last:
        return join(front, subject, middle, rest, head.particle + finite, after)
    start = [front, finite, subject] if front or clause.is_question else [subject, finite]
    return join(*start, middle, rest, with_key(head.particle, clause.keys.verb), after)


def linked(conjunction: Part, clause: Clause) -> Part:
    """The clause behind its conjunction, in German between commas; only behind aber is the verb second.

    English `to` before an infinitive is aligned to German zu.
    """
    clause, english, to = keyed_clause(clause), conjunction.english, ""
    if clause.subject is None:
        english, to = english.removesuffix("to").strip(), with_key("to", clause.keys.infinitive)
    (english,), (conjunction_in_german,) = with_keys([english], [conjunction.german])
    german = in_german(clause, is_verb_last=conjunction.german != "aber")
    return Part(join(english, to, in_english(clause)), join(",", conjunction_in_german, german, ","), "clause")


class AlignedSentence(NamedTuple):
    """A sentence in both languages, with its pairs of words in Pharaoh's format."""

    english: str
    german: str
    alignment: str


def sentence(clause: Clause) -> tuple[str, str]:
    """The English and the German sentence, with a capital and a punctuation mark."""
    english, german, _ = aligned_sentence(clause)
    return english, german


def aligned_sentence(clause: Clause) -> AlignedSentence:
    """The same sentence with its word alignment."""
    clause = keyed_clause(clause)
    texts = re.sub(r"can(\W?) not", r"cannot\1", in_english(clause)), in_german(clause, is_verb_last=False)
    english, german = (re.sub(r"(?: ,)+", ",", text).strip(", ") for text in texts)
    mark = "?" if clause.is_question else "."
    plain_english, plain_german = (
        text[0].upper() + text[1:] + mark for text in (without_keys(english), without_keys(german))
    )
    return AlignedSentence(plain_english, plain_german, pharaoh(english, german))
