"""Noun phrases and prepositional phrases of the demo grammar; each rule builds both languages at once."""

from dataclasses import dataclass, replace

from nmt_cli.preparing.demo.lexemes import Determiner, Noun, Part

CASES = ("nom", "acc", "dat", "gen")
Table = dict[str, dict[str, str]]


def _table(*rows: str) -> Table:
    """Forms by case, then by gender or "p" for plural."""
    return {case: dict(zip("mfnp", row.split(), strict=True)) for case, row in zip(CASES, rows, strict=True)}


ARTICLES = _table("der die das die", "den die das die", "dem der dem den", "des der des der")
RELATIVES = _table("der die das die", "den die das die", "dem der dem denen", "dessen deren dessen deren")
ENDINGS = _table("er e es e", "en e es e", "em er em en", "es er es er")
STRONG = _table("er e es e", "en e es e", "em er em en", "en er en er")
WEAK = _table("e e e en", "en e e en", "en en en en", "en en en en")
UNINFLECTED = {("nom", "m"), ("nom", "n"), ("acc", "n")}  # ein, mein, kein
STEMS = {"hoch": "hoh", "dunkel": "dunkl", "teuer": "teur", "müde": "müd"}
CONTRACTIONS = {"in dem": "im", "in das": "ins", "an dem": "am", "zu dem": "zum", "zu der": "zur", "von dem": "vom"}


@dataclass(frozen=True, slots=True)
class Nominal:
    """A noun phrase, name or pronoun: English as subject, as object and behind a preposition, German by case."""

    english: tuple[str, str, str]
    german: dict[str, str]
    is_plural: bool = False
    field: str = "pronoun"
    contracts: bool = False


def join(*words: str) -> str:
    """The words that are not empty, with spaces between them."""
    return " ".join(word for word in words if word)


def pronoun(subject: str, obj: str, nom: str, acc: str, dat: str) -> Nominal:
    """A personal pronoun or a name: English subject and object, then German cases."""
    return Nominal((subject, obj, obj), {"nom": nom, "acc": acc, "dat": dat, "gen": nom + "s"}, subject in ("they", "we"))


def relative_pronoun(noun: Noun, *, is_plural: bool, is_person: bool) -> Nominal:
    """The pronoun of a relative clause that modifies `noun`."""
    english = ("who", "whom", "whom") if is_person else ("that", "that", "which")
    return Nominal(english, {case: row["p" if is_plural else noun.gender] for case, row in RELATIVES.items()}, is_plural)


def possessive(english: str, german: str) -> Determiner:
    """The determiner made of a name (Anna's, Annas) or of a relative pronoun (whose, dessen)."""
    return Determiner(english, english, german, "Annas")


def noun_phrase(noun: Noun, determiner: Determiner, *, is_plural: bool, adjective: Part | None) -> Nominal:
    """Determiner, adjective and noun; the adjective is weak behind a determiner that shows the case, else strong."""
    words = join(adjective.english if adjective else "", noun.english_plural if is_plural else noun.english)
    article = determiner.english_plural if is_plural else determiner.english
    english = join("an" if article == "a" and words[0] in "aeiou" else article, words)
    column = "p" if is_plural else noun.gender
    german = {}
    for case in CASES:
        word, endings = inflect_determiner(determiner, case=case, column=column)
        form = STEMS.get(adjective.german, adjective.german) + endings[case][column] if adjective else ""
        german[case] = join(word, form, inflect_noun(noun, case=case, is_plural=is_plural))
    is_definite = determiner.inflection in ("der", "dieser", "mein", "Annas")
    return Nominal((english,) * 3, german, is_plural, "known" if is_definite else "new", determiner.inflection == "der")


def inflect_determiner(determiner: Determiner, *, case: str, column: str) -> tuple[str, Table]:
    """The German determiner and the endings of the adjective behind it."""
    match determiner.inflection:
        case "der":
            return ARTICLES[case][column], WEAK
        case "zwei" | "Annas":
            return determiner.german, STRONG
        case "ein" | "mein" if (case, column) in UNINFLECTED:
            return determiner.german, STRONG
        case inflection:
            return determiner.german + ENDINGS[case][column], STRONG if inflection == "viele" else WEAK


def inflect_noun(noun: Noun, *, case: str, is_plural: bool) -> str:
    """The German noun; a weak masculine has one form in all cases but the nominative: dem Studenten."""
    if is_plural:
        return noun.plural + ("n" if case == "dat" and noun.plural[-1] not in "ns" else "")
    is_weak = noun.gender == "m" and noun.genitive[-1] == "n"
    return noun.genitive if case == "gen" or (is_weak and case != "nom") else noun.german


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
    field: str = "complement" if preposition else "dative" if is_dative else nominal.field
    return Part(join(english.replace("_", " "), nominal.english[2 if english else 1]), words, field)
