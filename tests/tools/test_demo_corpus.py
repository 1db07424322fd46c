from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from nmt_cli.decompression import open_bytes
from tools.demo_corpus import grammar, lexicon, sampling
from tools.demo_corpus.generate import demo_files
from tools.demo_corpus.grammar import CAN, HAVE, MUST, NOT, WANT, WILL, Clause, Nominal, linked, modified
from tools.demo_corpus.lexemes import Determiner, Part, compound, read_noun, read_verb
from tools.demo_corpus.sampling import DemoCorpus, generate

SIMPLE_NOUNS = {noun.english[0]: noun for noun in chain(*sampling.NOUNS.values())}
COMPOUNDS = {
    noun.english[0]: noun
    for heads, modifiers in sampling.MODIFIERS.items()
    for noun in (compound(modifier, SIMPLE_NOUNS[head]) for head in heads.split() for modifier in modifiers)
}
NOUN_FORMS = {form: noun for noun in (SIMPLE_NOUNS | COMPOUNDS).values() for form in noun.english}
ADJECTIVES = {word.english: word for word in chain(*sampling.ADJECTIVES.values())}
DETERMINERS = {word: each for each in chain(*sampling.DETERMINERS.values()) for word in (each.singular, each.plural)}
DETERMINERS |= {"": Determiner("", "", "", "zwei"), "Anna's": Determiner("Anna's", "Anna's", "Annas", "Annas")}
PRONOUNS = {each.english[form]: each for each in sampling.PRONOUNS for form in (0, 1)}
VERBS = {
    f"{frame.verb.english.infinitive} {frame.verb.english.particle}".strip(): frame.verb for frame in sampling.FRAMES
}

YESTERDAY, TOMORROW = Part("yesterday", "gestern"), Part("tomorrow", "morgen")
THAT, WHETHER, TO, IN_ORDER_TO = Part("that", "dass"), Part("whether", "ob"), Part("to", ""), Part("in order to", "um")


def nominal(text: str) -> Nominal:
    """The noun phrase, pronoun or name of an English text: `two old doors`, `them`, `Anna`."""
    if text in PRONOUNS:
        return PRONOUNS[text]
    if text in lexicon.NAMES:
        return grammar.pronoun(text, text, text, text, text)
    words = text.split()
    determiner = DETERMINERS[words.pop(0) if words[0] in DETERMINERS else ""]
    adjective = ADJECTIVES[words.pop(0)] if words[0] in ADJECTIVES else None
    noun = NOUN_FORMS[" ".join(words)]
    return grammar.noun_phrase(noun, determiner, is_plural=" ".join(words) == noun.english[1], adjective=adjective)


def part(form: str, text: str) -> Part:
    return grammar.phrase(form, nominal(text))


def say(subject: str | Nominal | None, verb: str, *parts: Part) -> Clause:
    return Clause(VERBS[verb], nominal(subject) if isinstance(subject, str) else subject, parts)


def past(clause: Clause) -> Clause:
    return replace(clause, is_past=True)


def that(text: str, *, form: str, clause: Clause) -> Nominal:
    """The noun phrase `text` with a relative clause, whose pronoun is the subject ("nom") or has another form."""
    noun = NOUN_FORMS[text.split()[-1]]
    is_person = noun in sampling.NOUNS["person"]
    pronoun = grammar.relative_pronoun(noun, is_plural=text.endswith(noun.english[1]), is_person=is_person)
    clause = replace(clause, subject=pronoun) if form == "nom" else replace(clause, front=grammar.phrase(form, pronoun))
    return modified(nominal(text), linked(Part("", ""), clause))


# --- words ---


# English; nominative, accusative, dative and genitive in German. Without a determiner the adjective is strong.
DECLENSIONS = """
the old teacher; der alte Lehrer, den alten Lehrer, dem alten Lehrer, des alten Lehrers
the old teachers; die alten Lehrer, die alten Lehrer, den alten Lehrern, der alten Lehrer
a small house; ein kleines Haus, ein kleines Haus, einem kleinen Haus, eines kleinen Hauses
small houses; kleine Häuser, kleine Häuser, kleinen Häusern, kleiner Häuser
my young student; mein junger Student, meinen jungen Studenten, meinem jungen Studenten, meines jungen Studenten
my young students; meine jungen Studenten, meine jungen Studenten, meinen jungen Studenten, meiner jungen Studenten
no expensive bag; keine teure Tasche, keine teure Tasche, keiner teuren Tasche, keiner teuren Tasche
no expensive bags; keine teuren Taschen, keine teuren Taschen, keinen teuren Taschen, keiner teuren Taschen
this dark cellar; dieser dunkle Keller, diesen dunklen Keller, diesem dunklen Keller, dieses dunklen Kellers
many dark cellars; viele dunkle Keller, viele dunkle Keller, vielen dunklen Kellern, vieler dunkler Keller
Anna's new car; Annas neues Auto, Annas neues Auto, Annas neuem Auto, Annas neuen Autos
two new cars; zwei neue Autos, zwei neue Autos, zwei neuen Autos, zwei neuer Autos
every tired mother; jede müde Mutter, jede müde Mutter, jeder müden Mutter, jeder müden Mutter
our tired mothers; unsere müden Mütter, unsere müden Mütter, unseren müden Müttern, unserer müden Mütter
an apple tree; ein Apfelbaum, einen Apfelbaum, einem Apfelbaum, eines Apfelbaumes
apple trees; Apfelbäume, Apfelbäume, Apfelbäumen, Apfelbäume
the kitchen chair; der Küchenstuhl, den Küchenstuhl, dem Küchenstuhl, des Küchenstuhles
the kitchen chairs; die Küchenstühle, die Küchenstühle, den Küchenstühlen, der Küchenstühle
fresh bread; frisches Brot, frisches Brot, frischem Brot, frischen Brotes
cold milk; kalte Milch, kalte Milch, kalter Milch, kalter Milch
hot coffee; heißer Kaffee, heißen Kaffee, heißem Kaffee, heißen Kaffees
"""


@pytest.mark.parametrize("line", DECLENSIONS.strip().splitlines())
def test_noun_phrases_decline(line: str) -> None:
    english, _, german = line.partition("; ")
    phrase = nominal(english.replace("an ", "a "))
    assert phrase.english[0] == english
    assert ", ".join(phrase.german.values()) == german


@pytest.mark.parametrize(
    ("entry", "german", "english"),
    [
        (
            "call an-rufen ruft rief gerufen",
            "rufen ruft rufen rief riefen gerufen an",
            "call calls call called called called ",
        ),
        ("open öffnen", "öffnen öffnet öffnen öffnete öffneten geöffnet ", "open opens open opened opened opened "),
        (
            "tidy_up auf-räumen",
            "räumen räumt räumen räumte räumten geräumt auf",
            "tidy tidies tidy tidied tidied tidied up",
        ),
        (
            "prepare vor-bereiten",
            "bereiten bereitet bereiten bereitete bereiteten bereitet vor",
            "prepare prepares prepare prepared prepared prepared ",
        ),
        (
            "photograph fotografieren",
            "fotografieren fotografiert fotografieren fotografierte fotografierten fotografiert ",
            "photograph photographs photograph photographed photographed photographed ",
        ),
        (
            "know/knew/known wissen weiß wusste gewusst",
            "wissen weiß wissen wusste wussten gewusst ",
            "know knows know knew knew known ",
        ),
        (
            "draw/drew/drawn zeichnen",
            "zeichnen zeichnet zeichnen zeichnete zeichneten gezeichnet ",
            "draw draws draw drew drew drawn ",
        ),
    ],
)
def test_verb_entries_give_all_forms(entry: str, german: str, english: str) -> None:
    verb = read_verb(entry)
    for paradigm, forms in ((verb.german, german), (verb.english, english)):
        assert " ".join(getattr(paradigm, name) for name in type(paradigm).__slots__) == forms
    assert not verb.takes_sein


def test_come_forms_its_perfect_with_sein() -> None:
    assert read_verb("come/came/come kommen kommt kam ist gekommen").takes_sein


def test_noun_entries_give_all_forms() -> None:
    child, milk = read_noun("child/children das Kind -es -er"), read_noun("milk die Milch -")
    assert (child.english, child.german, child.gender) == (("child", "children"), ("Kind", "Kindes", "Kinder"), "n")
    assert (milk.german, milk.gender) == (("Milch", "Milch", ""), "f")


# --- sentences ---

CALLS = say("the teacher", "call", part("acc", "the woman"))
BOY_IS_SICK = Clause(grammar.BE, nominal("the boy"), (Part("sick", "krank", "complement"),))
SENTENCES: list[tuple[Clause, str, str]] = [
    (CALLS, "The teacher calls the woman.", "Der Lehrer ruft die Frau an."),
    (
        past(replace(CALLS, front=YESTERDAY)),
        "Yesterday the teacher called the woman.",
        "Gestern rief der Lehrer die Frau an.",
    ),
    (replace(CALLS, auxiliary=HAVE), "The teacher has called the woman.", "Der Lehrer hat die Frau angerufen."),
    (replace(CALLS, auxiliary=WANT), "The teacher wants to call the woman.", "Der Lehrer will die Frau anrufen."),
    (past(replace(CALLS, auxiliary=MUST)), "The teacher had to call the woman.", "Der Lehrer musste die Frau anrufen."),
    (past(replace(CALLS, is_question=True)), "Did the teacher call the woman?", "Rief der Lehrer die Frau an?"),
    (replace(CALLS, middle=NOT), "The teacher does not call the woman.", "Der Lehrer ruft die Frau nicht an."),
    (
        say("the child", "know", linked(THAT, CALLS)),
        "The child knows that the teacher calls the woman.",
        "Das Kind weiß, dass der Lehrer die Frau anruft.",
    ),
    (
        past(say("the child", "say", linked(THAT, replace(CALLS, auxiliary=HAVE)))),
        "The child said that the teacher has called the woman.",
        "Das Kind sagte, dass der Lehrer die Frau angerufen hat.",
    ),
    (
        say("they", "ask", part("acc", "him"), linked(WHETHER, replace(CALLS, auxiliary=CAN, middle=NOT))),
        "They ask him whether the teacher cannot call the woman.",
        "Sie fragen ihn, ob der Lehrer die Frau nicht anrufen kann.",
    ),
    (
        say("the girl", "try", linked(TO, say(None, "call", part("acc", "the doctor")))),
        "The girl tries to call the doctor.",
        "Das Mädchen versucht, den Arzt anzurufen.",
    ),
    (
        past(say("the boys", "begin", linked(TO, say(None, "clean", part("acc", "their room"))))),
        "The boys began to clean their room.",
        "Die Jungen fingen an, ihr Zimmer zu putzen.",
    ),
    (
        replace(
            say("the daughter", "take part", part("in=an+dat", "the exam")),
            is_question=True,
            front=Part("why", "warum"),
        ),
        "Why does the daughter take part in the exam?",
        "Warum nimmt die Tochter an der Prüfung teil?",
    ),
    (
        replace(say("the students", "wait", part("for=auf+acc", "the bus")), middle=NOT),
        "The students do not wait for the bus.",
        "Die Studenten warten nicht auf den Bus.",
    ),
    (
        say("the neighbour", "buy", part("acc", "no bread")),
        "The neighbour buys no bread.",
        "Der Nachbar kauft kein Brot.",
    ),
    (
        past(say("the boys", "help", part("dat", "the old man"))),
        "The boys helped the old man.",
        "Die Jungen halfen dem alten Mann.",
    ),
    (
        say("the woman", "give", part("dat", "the student"), part("acc", "a wooden bowl")),
        "The woman gives the student a wooden bowl.",
        "Die Frau gibt dem Studenten eine Holzschale.",
    ),
    (
        replace(say("she", "send", part("dat", "them"), part("acc", "the rings")), auxiliary=WILL, front=TOMORROW),
        "Tomorrow she will send them the rings.",
        "Morgen wird sie ihnen die Ringe schicken.",
    ),
    (
        say("the father", "explain", part("acc", "the story"), part("to=+dat", "the children"), TOMORROW),
        "The father explains the story to the children tomorrow.",
        "Der Vater erklärt morgen den Kindern die Geschichte.",
    ),
    (
        replace(say("the guests", "go", part("into=in+acc", "the garden")), auxiliary=HAVE),
        "The guests have gone into the garden.",
        "Die Gäste sind in den Garten gegangen.",
    ),
    (
        say("the waitress", "go", part("to=zu+dat", "the school")),
        "The waitress goes to the school.",
        "Die Kellnerin geht zur Schule.",
    ),
    (
        say("Peter", "buy", part("acc", "a coat"), replace(part("in=in+dat", "the shop"), field="adjunct")),
        "Peter buys a coat in the shop.",
        "Peter kauft im Laden einen Mantel.",
    ),
    (
        say("Peter", "buy", part("acc", "the coat"), replace(part("in=in+dat", "the shop"), field="adjunct")),
        "Peter buys the coat in the shop.",
        "Peter kauft den Mantel im Laden.",
    ),
    (
        past(say("we", "visit", part("acc", "her"), YESTERDAY)),
        "We visited her yesterday.",
        "Wir besuchten sie gestern.",
    ),
    (
        say(that("the woman", form="nom", clause=say(None, "call", part("acc", "the doctor"))), "sleep"),
        "The woman who calls the doctor sleeps.",
        "Die Frau, die den Arzt anruft, schläft.",
    ),
    (
        say("Anna", "eat", grammar.phrase("acc", that("the egg", form="acc", clause=past(say("the boy", "cook"))))),
        "Anna eats the egg that the boy cooked.",
        "Anna isst das Ei, das der Junge kochte.",
    ),
    (
        replace(
            say("Anna", "find", grammar.phrase("acc", that("the box", form="acc", clause=past(say("they", "sell"))))),
            auxiliary=HAVE,
        ),
        "Anna has found the box that they sold.",
        "Anna hat die Kiste, die sie verkauften, gefunden.",
    ),
    (
        say(that("the friends", form="dat", clause=say("we", "thank")), "dance"),
        "The friends whom we thank dance.",
        "Die Freunde, denen wir danken, tanzen.",
    ),
    (
        say(
            that("the bus", form="for=auf+acc", clause=say("the children", "wait")),
            "belong",
            part("to=+dat", "the city"),
        ),
        "The bus for which the children wait belongs to the city.",
        "Der Bus, auf den die Kinder warten, gehört der Stadt.",
    ),
    (
        say("they", "live", grammar.phrase("in=in+dat", that("the village", form="acc", clause=say("we", "admire")))),
        "They live in the village that we admire.",
        "Sie wohnen in dem Dorf, das wir bewundern.",
    ),
    (
        replace(
            say("the mother", "stay", part("in=in+dat", "the house")),
            front=replace(linked(Part("because", "weil"), BOY_IS_SICK), english="because the boy is sick ,"),
        ),
        "Because the boy is sick, the mother stays in the house.",
        "Weil der Junge krank ist, bleibt die Mutter im Haus.",
    ),
    (
        say("the brother", "get up", linked(IN_ORDER_TO, say(None, "prepare", part("acc", "the exam")))),
        "The brother gets up in order to prepare the exam.",
        "Der Bruder steht auf, um die Prüfung vorzubereiten.",
    ),
    (
        past(say("Julia", "dance", linked(Part("but", "aber"), past(say("the dogs", "sleep"))))),
        "Julia danced but the dogs slept.",
        "Julia tanzte, aber die Hunde schliefen.",
    ),
    (
        replace(past(say("he", "wake up")), front=part("during=während+gen", "the long concert")),
        "During the long concert he woke up.",
        "Während des langen Konzerts wachte er auf.",
    ),
    (
        say(
            modified(nominal("the house"), Part("of our neighbours", nominal("our neighbours").german["gen"])),
            "belong",
            part("to=+dat", "them"),
        ),
        "The house of our neighbours belongs to them.",
        "Das Haus unserer Nachbarn gehört ihnen.",
    ),
    (
        replace(say("she", "listen", part("to=+dat", "Anna's sister")), middle=Part("often", "oft"), auxiliary=WILL),
        "She will often listen to Anna's sister.",
        "Sie wird oft Annas Schwester zuhören.",
    ),
]


@pytest.mark.parametrize(("clause", "english", "german"), SENTENCES, ids=[english for _, english, _ in SENTENCES])
def test_sentences_are_right_in_both_languages(clause: Clause, english: str, german: str) -> None:
    assert grammar.sentence(clause) == (english, german)


# --- the corpus ---


@pytest.fixture(scope="module")
def corpus(repository: Path) -> DemoCorpus:
    """The corpus of the package; the last test compares it with the grammar's."""

    def read(split: str) -> list[tuple[str, str]]:
        with open_bytes(repository / "recipes" / "corpora" / "demo" / f"{split}.tsv.zst") as stream:
            lines = stream.read().decode().splitlines()
        return [(english, german) for english, _, german in (line.partition("\t") for line in lines)]

    return DemoCorpus(read("train"), read("valid"), read("test"))


def pairs_of(corpus: DemoCorpus) -> list[tuple[str, str]]:
    return corpus.train + corpus.valid + corpus.test


def words_of(text: str) -> list[str]:
    return re.findall(r"[\w']+", text)


def lemmas_of_forms() -> dict[str, set[str]]:
    """The English forms of all content words, from the entries and not from what the sampler notes down."""
    nouns = [(form, noun.english[0]) for noun in SIMPLE_NOUNS.values() for form in noun.english]
    modifiers = [modifier.split()[0] for modifier in chain(*sampling.MODIFIERS.values())]
    verbs = [verb.english for verb in VERBS.values()]
    verb_forms = [
        (form, verb.infinitive) for verb in verbs for form in (verb.infinitive, verb.third, verb.past, verb.participle)
    ]
    names = [(form, name) for name in lexicon.NAMES for form in (name, f"{name}'s")]
    lemmas: dict[str, set[str]] = {}
    for form, lemma in (*nouns, *verb_forms, *names, *((word, word) for word in (*modifiers, *ADJECTIVES))):
        lemmas.setdefault(form, set()).add(lemma)
    return lemmas


LEMMAS = {form: min(lemmas) for form, lemmas in lemmas_of_forms().items()}


def content_of(english: str) -> list[str]:
    found = (LEMMAS.get(word) or LEMMAS.get(word.lower()) for word in words_of(english))
    return [lemma for lemma in found if lemma]


def test_the_splits_have_their_sizes(corpus: DemoCorpus) -> None:
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (20_000, 500, 1_000)


def test_no_english_form_belongs_to_two_words() -> None:
    assert not {form: lemmas for form, lemmas in lemmas_of_forms().items() if len(lemmas) > 1}


def test_no_two_sentences_have_the_same_content_words(corpus: DemoCorpus) -> None:
    combinations = [frozenset(content_of(english)) for english, _ in pairs_of(corpus)]
    assert len(set(combinations)) == len(combinations)
    assert min(map(len, combinations)) >= 1


def test_german_has_1500_forms_however_they_are_counted(corpus: DemoCorpus) -> None:
    assert len({word.lower() for _, german in pairs_of(corpus) for word in words_of(german)}) >= 1_500


@pytest.mark.parametrize("side", [0, 1])
def test_test_sentences_have_10_words_or_more_on_average(corpus: DemoCorpus, side: int) -> None:
    lengths = [len(pair[side].split()) for pair in corpus.test]
    assert sum(lengths) / len(lengths) >= 10
    assert min(lengths) >= 6
    assert max(lengths) <= 18


def test_every_content_word_is_frequent_in_training(corpus: DemoCorpus) -> None:
    counts = Counter(lemma for english, _ in corpus.train for lemma in content_of(english))
    assert {*LEMMAS.values()} == {*counts}
    assert min(counts.values()) >= 50


def test_training_covers_the_forms_of_the_test_set(corpus: DemoCorpus) -> None:
    known = {word for _, german in corpus.train for word in words_of(german)}
    tokens = [word for _, german in corpus.test for word in words_of(german)]
    assert sum(word in known for word in tokens) / len(tokens) >= 0.998


def test_an_english_sentence_has_one_translation() -> None:
    translations: dict[str, str] = {}
    for seed in range(2, 6):
        for english, german in pairs_of(generate(seed=seed, num_train=5_000, num_valid=0, num_test=0)):
            assert translations.setdefault(english, german) == german


def test_the_orthography_is_clean(corpus: DemoCorpus) -> None:
    for text in chain(*pairs_of(corpus)):
        assert re.fullmatch(r"[A-ZÄÖÜ][\w',]*( [\w']+,?)+[.?]", text)
    subordinate = re.compile(r"(?<![,\w]) (dass|ob|weil|obwohl|falls|um|aber|denen|dessen) ")
    assert not [german for _, german in pairs_of(corpus) if subordinate.search(german)]


@pytest.mark.parametrize(
    "pattern",
    [
        r", (weil|dass|obwohl) [^,]*\ban(ruft|rief|rufen|riefen)[,.]",  # verb last, prefix joined
        r"^[^,]* (ruft|rief|rufen|riefen) [^,]* an\.",  # verb second, prefix last
        r"\b(angerufen|anzurufen)\b",
        r"^(Gestern|Heute|Morgen|Bald) \w+(te|t|en|ten|wird|werden)? ",  # inversion
        r"\b(zum|zur|im|ins|am)\b",
        r", (den|dem|der|die|das|denen) [^,]*, ",
        r"\b(keinen?|keinem|keiner|keine)\b",
        r"\b(während|wegen) (des|der) ",
        r"\b(ist|sind) [^,]*gegangen\b",
        r"\bKüchen(tisch|stuhl)",
        r"^(Warum|Rief|Hat|Wird) .*\?$",
    ],
)
def test_the_phenomena_occur(corpus: DemoCorpus, pattern: str) -> None:
    assert sum(bool(re.search(pattern, german)) for _, german in corpus.train) >= 5


def test_a_seed_gives_one_corpus(corpus: DemoCorpus) -> None:
    again = generate(seed=1, num_train=50, num_valid=500, num_test=1_000)
    assert (again.test, again.valid, again.train) == (corpus.test, corpus.valid, corpus.train[:50])
    assert generate(seed=2, num_train=0, num_valid=0, num_test=100).test != corpus.test[:100]


def test_the_files_of_the_corpus_are_those_of_the_grammar(repository: Path) -> None:
    made = demo_files()
    folder = repository / "recipes" / "corpora" / "demo"
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.zst" for name in made)
    for name, content in made.items():
        # Compressed bytes depend on the version of zstd, their content does not.
        with open_bytes(folder / f"{name}.zst") as stream:
            assert stream.read() == content
