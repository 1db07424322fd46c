from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from nmt_cli.decompression import open_bytes
from tools.demo_corpus import grammar, lexicon, sampling
from tools.demo_corpus.generate import demo_alignments, demo_corpus, demo_files
from tools.demo_corpus.grammar import HAVE, NOT, Clause, Nominal, linked, modified
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

THAT, TO = Part("that", "dass"), Part("to", "")


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
small houses; kleine Häuser, kleine Häuser, kleinen Häusern, kleiner Häuser
my young student; mein junger Student, meinen jungen Studenten, meinem jungen Studenten, meines jungen Studenten
this dark cellar; dieser dunkle Keller, diesen dunklen Keller, diesem dunklen Keller, dieses dunklen Kellers
Anna's new car; Annas neues Auto, Annas neues Auto, Annas neuem Auto, Annas neuen Autos
the kitchen chairs; die Küchenstühle, die Küchenstühle, den Küchenstühlen, der Küchenstühle
cold milk; kalte Milch, kalte Milch, kalter Milch, kalter Milch
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
        (
            "know/knew/known wissen weiß wusste gewusst",
            "wissen weiß wissen wusste wussten gewusst ",
            "know knows know knew knew known ",
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
    (replace(CALLS, auxiliary=HAVE), "The teacher has called the woman.", "Der Lehrer hat die Frau angerufen."),
    (past(replace(CALLS, is_question=True)), "Did the teacher call the woman?", "Rief der Lehrer die Frau an?"),
    (
        say("the child", "know", linked(THAT, CALLS)),
        "The child knows that the teacher calls the woman.",
        "Das Kind weiß, dass der Lehrer die Frau anruft.",
    ),
    (
        say("the girl", "try", linked(TO, say(None, "call", part("acc", "the doctor")))),
        "The girl tries to call the doctor.",
        "Das Mädchen versucht, den Arzt anzurufen.",
    ),
    (
        replace(say("the students", "wait", part("for=auf+acc", "the bus")), middle=NOT),
        "The students do not wait for the bus.",
        "Die Studenten warten nicht auf den Bus.",
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
        replace(
            say("the mother", "stay", part("in=in+dat", "the house")),
            front=replace(linked(Part("because", "weil"), BOY_IS_SICK), english="because the boy is sick ,"),
        ),
        "Because the boy is sick, the mother stays in the house.",
        "Weil der Junge krank ist, bleibt die Mutter im Haus.",
    ),
    (
        replace(past(say("he", "wake up")), front=part("during=während+gen", "the long concert")),
        "During the long concert he woke up.",
        "Während des langen Konzerts wachte er auf.",
    ),
]


@pytest.mark.parametrize(("clause", "english", "german"), SENTENCES, ids=[english for _, english, _ in SENTENCES])
def test_sentences_are_right_in_both_languages(clause: Clause, english: str, german: str) -> None:
    assert grammar.sentence(clause) == (english, german)


ALIGNMENTS: list[tuple[Clause, str]] = [
    (replace(CALLS, auxiliary=HAVE), "The=Der teacher=Lehrer has=hat called=angerufen. the=die woman.=Frau"),
    (
        past(replace(CALLS, is_question=True)),
        "Did=Rief the=der teacher=Lehrer call=Rief call=an? the=die woman?=Frau",
    ),
    (
        say("the child", "know", linked(THAT, CALLS)),
        "The=Das child=Kind knows=weiß, that=dass the=der teacher=Lehrer calls=anruft. the=die woman.=Frau",
    ),
    (
        say("the girl", "try", linked(TO, say(None, "call", part("acc", "the doctor")))),
        "The=Das girl=Mädchen tries=versucht, to=anzurufen. call=anzurufen. the=den doctor.=Arzt",
    ),
    (
        replace(say("the student", "wait", part("for=auf+acc", "him")), middle=NOT, auxiliary=grammar.CAN),
        "The=Der student=Student cannot=kann cannot=nicht wait=warten. for=auf him.=ihn",
    ),
    (
        say(
            that("the bus", form="for=auf+acc", clause=say("the boy", "wait")),
            "belong",
            part("to=+dat", "the kitchen chair"),
        ),
        "The=Der bus=Bus, for=auf which=den the=der boy=Junge waits=wartet, belongs=gehört to=dem the=dem "
        "kitchen=Küchenstuhl. chair.=Küchenstuhl.",
    ),
    (
        say("Anna", "sleep", part("in=in+dat", "the house"), Part("two days ago", "vor zwei Tagen")),
        "Anna=Anna sleeps=schläft in=im the=im house=Haus. two=zwei days=Tagen ago.=vor",
    ),
]


@pytest.mark.parametrize(("clause", "pairs"), ALIGNMENTS)
def test_words_of_one_lexeme_are_aligned(clause: Clause, pairs: str) -> None:
    english, german, alignment = grammar.aligned_sentence(clause)
    sides, links = (english.split(), german.split()), [link.split("-") for link in alignment.split()]
    assert " ".join(f"{sides[0][int(source)]}={sides[1][int(target)]}" for source, target in links) == pairs


# --- the corpus ---


@pytest.fixture(scope="module")
def corpus(repository: Path) -> DemoCorpus:
    """The corpus of the package; the last test compares it with the grammar's."""

    def read(split: str) -> list[tuple[str, str]]:
        with open_bytes(repository / "recipes" / "corpora" / "demo" / f"{split}.tsv.zst") as stream:
            lines = stream.read().decode().splitlines()
        return [(english, german) for english, _, german in (line.partition("\t") for line in lines)]

    return DemoCorpus(read("train"), read("valid"), read("test"))


@pytest.fixture(scope="module")
def grown() -> DemoCorpus:
    """The same corpus, as the grammar makes it."""
    return demo_corpus()


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


def test_no_two_sentences_have_the_same_content_words(corpus: DemoCorpus) -> None:
    combinations = [frozenset(content_of(english)) for english, _ in pairs_of(corpus)]
    assert len(set(combinations)) == len(combinations)
    assert min(map(len, combinations)) >= 1


@pytest.mark.parametrize("side", [0, 1])
def test_test_sentences_have_10_words_or_more_on_average(corpus: DemoCorpus, side: int) -> None:
    lengths = [len(pair[side].split()) for pair in corpus.test]
    assert sum(lengths) / len(lengths) >= 10
    assert min(lengths) >= 6
    assert max(lengths) <= 18


def test_training_covers_the_forms_of_the_test_set(corpus: DemoCorpus) -> None:
    known = {word for _, german in corpus.train for word in words_of(german)}
    tokens = [word for _, german in corpus.test for word in words_of(german)]
    assert sum(word in known for word in tokens) / len(tokens) >= 0.998


def test_the_orthography_is_clean(corpus: DemoCorpus) -> None:
    for text in chain(*pairs_of(corpus)):
        assert re.fullmatch(r"[A-ZÄÖÜ][\w',]*( [\w']+,?)+[.?]", text)
    subordinate = re.compile(r"(?<![,\w]) (dass|ob|weil|obwohl|falls|um|aber|denen|dessen) ")
    assert not [german for _, german in pairs_of(corpus) if subordinate.search(german)]


def test_each_word_is_aligned_and_known_words_to_their_translation(grown: DemoCorpus) -> None:
    lines = demo_alignments(grown)["test.align"].decode().splitlines()
    for (english, german), alignment in zip(grown.test, lines, strict=True):
        sources, targets = english.split(), german.split()
        links = {(int(source), int(target)) for source, target in (link.split("-") for link in alignment.split())}
        assert {source for source, _ in links} == {*range(len(sources))}
        assert {target for _, target in links} == {*range(len(targets))}
        for source, target in links:
            name, translation = sources[source].strip(",.?"), targets[target].strip(",.?")
            if name.removesuffix("'s") in lexicon.NAMES:
                assert translation == name.replace("'", "")


def test_a_seed_gives_one_corpus(corpus: DemoCorpus) -> None:
    again = generate(seed=1, num_train=50, num_valid=500, num_test=1_000)
    assert (again.test, again.valid, again.train) == (corpus.test, corpus.valid, corpus.train[:50])
    assert generate(seed=2, num_train=0, num_valid=0, num_test=100).test != corpus.test[:100]


def test_the_files_of_the_corpus_are_those_of_the_grammar(grown: DemoCorpus, repository: Path) -> None:
    made = demo_files(grown)
    folder = repository / "recipes" / "corpora" / "demo"
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.zst" for name in made)
    for name, content in made.items():
        # Compressed bytes depend on the version of zstd, their content does not.
        with open_bytes(folder / f"{name}.zst") as stream:
            assert stream.read() == content
