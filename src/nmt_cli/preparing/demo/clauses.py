"""Clauses of the demo grammar: agreement, auxiliaries and word order in both languages."""

import re
from dataclasses import dataclass

from nmt_cli.preparing.demo.lexemes import Paradigm, Part, Verb
from nmt_cli.preparing.demo.phrases import Nominal, join


def _verb(english: str, german: str) -> Verb:
    return Verb(Paradigm(*english.split()), Paradigm(*german.split()), takes_sein=german.startswith("sein"))


BE = _verb("be is are was were been", "sein ist sind war waren gewesen")
HAVE = _verb("have has have had had had", "haben hat haben hatte hatten gehabt")
PASSIVE = _verb("be is are was were been", "werden wird werden wurde wurden worden")
WILL = _verb("will will will - - -", "werden wird werden - - -")
CAN = _verb("can can can - - -", "können kann können - - -")
SHOULD = _verb("should should should - - -", "sollen sollte sollten - - -")
MUST = _verb("have has have had had had to", "müssen muss müssen musste mussten gemusst")
WANT = _verb("want wants want wanted wanted wanted to", "wollen will wollen wollte wollten gewollt")
DO = Paradigm("do", "does", "do", "did", "did", "done")
# The order of the German middle field: what is known stands before the adjuncts, what is new behind them.
FIELDS = ("pronoun", "time", "dative", "known", "negation", "adjunct", "new", "complement", "clause")
NOT = Part("not", "nicht", "negation")


@dataclass(frozen=True, slots=True)
class Clause:
    """A verb with its parts in English order; a clause without a subject is an infinitive clause."""

    verb: Verb
    subject: Nominal | None
    parts: tuple[Part, ...] = ()
    is_past: bool = False
    auxiliary: Verb | None = None
    middle: Part | None = None
    front: Part | None = None
    is_question: bool = False

    def finite(self, verb: Paradigm) -> str:
        """The form of `verb` that agrees with the subject, in either language."""
        if self.subject is None:
            return verb.infinitive
        if self.is_past:
            return verb.past_plural if self.subject.is_plural else verb.past
        return verb.plural if self.subject.is_plural else verb.third

    def infinite(self, verb: Paradigm) -> str:
        """The form of `verb` that the auxiliary demands."""
        return verb.participle if self.auxiliary in (HAVE, PASSIVE) else verb.infinitive


def english(clause: Clause) -> str:
    """The English clause; questions and negation need an auxiliary, if need be a form of do."""
    verb, head = clause.verb.english, (clause.auxiliary or clause.verb).english
    rest = [head.particle, clause.infinite(verb), verb.particle] if clause.auxiliary else [verb.particle]
    inverts = clause.verb is BE or (clause.auxiliary is not None and not head.particle)
    if (clause.is_question or clause.middle is NOT) and not inverts:
        head, rest, inverts = DO, [head.infinitive, *rest], True
    finite, middle = clause.finite(head), clause.middle.english if clause.middle else ""
    subject = clause.subject.english[0] if clause.subject else "to"
    order = [finite, subject, middle] if clause.is_question else [subject, finite, middle]
    order = order if inverts else [subject, middle, finite]
    return join(clause.front.english if clause.front else "", *order, *rest, *(part.english for part in clause.parts))


def german(clause: Clause, *, is_verb_last: bool) -> str:
    """The German clause; the finite verb is second (first in a yes-no question) or last."""
    verb, head = clause.verb.german, (clause.auxiliary or clause.verb).german
    if clause.auxiliary is HAVE and clause.verb.takes_sein:
        head = BE.german
    finite, rest = clause.finite(head), verb.particle + clause.infinite(verb) if clause.auxiliary else ""
    parts = sorted([*clause.parts, clause.middle or Part("", "")], key=lambda part: FIELDS.index(part.field))
    middle = join(*(part.german for part in parts if part.field != "clause"))
    after = join(*(part.german for part in parts if part.field == "clause"))
    front = clause.front.german if clause.front else ""
    if clause.subject is None:
        return join(middle, head.particle + "zu" + finite if head.particle else "zu " + finite, after)
    subject = clause.subject.german["nom"]
    if is_verb_last:
        return join(front, subject, middle, rest, head.particle + finite, after)
    start = [front, finite, subject] if front or clause.is_question else [subject, finite]
    return join(*start, middle, rest, head.particle, after)


def linked(conjunction: Part, clause: Clause) -> Part:
    """The clause behind its conjunction, in German between commas; only behind aber is the verb second."""
    body = german(clause, is_verb_last=conjunction.german != "aber")
    return Part(join(conjunction.english, english(clause)), join(",", conjunction.german, body, ","), "clause")


def relative(clause: Clause) -> Part:
    """The relative clause, which its subject or its front makes one."""
    return Part(english(clause), f", {german(clause, is_verb_last=True)} ,", "clause")


def sentence(clause: Clause) -> tuple[str, str]:
    """The English and the German sentence, with a capital and a punctuation mark."""
    texts = (re.sub(r"(?: ,)+", ",", text).strip(", ") for text in (english(clause), german(clause, is_verb_last=False)))
    first, second = (text[0].upper() + text[1:] + ("?" if clause.is_question else ".") for text in texts)
    return first, second
