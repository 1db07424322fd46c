"""Languages: their codes, names and scripts, and which language a text is in.

A code has three normal forms: `standard_code` is BCP 47's, `_macro_code` also takes zh for cmn, and `short_code` is the
language of the latter alone, without script and region.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from nmt_cli.errors import DataError, UsageError

if TYPE_CHECKING:
    import regex
    from py3langid.langid import LanguageIdentifier

logger = logging.getLogger(__name__)

NO_LANGUAGE = "zxx"
"""The identifier's label for text in no language."""
IDENTIFIED_CHARACTERS = 4000
"""Languages are told by the beginning of a text, of this many characters."""
_FARTHEST = 1000
_LEAST_CONFIDENCE = 0.7  # in the language or close ones
_CLEAR_CONFIDENCE = 0.9  # among all languages
_MOST_WORDS, _NEARLY_ALL = 0.5, 0.9  # of the words of a text, and of those in the script of another language

# Codes that langcodes does not know or takes for others: of LibreTranslate and of .NET.
_OTHER_CODES = {"pb": "pt-BR", "zt": "zh-Hant", "zh-chs": "zh-Hans", "zh-cht": "zh-Hant"}
_SAME_LANGUAGES = {"nb": "no", "fil": "tl", "pbt": "ps"}
# The scripts of languages for which Unicode's likely subtags have none, or another one.
_USUAL_SCRIPTS = {"acm": "Arab", "acq": "Arab", "gan": "Hans", "grc": "Grek", "hbo": "Hebr", "uzs": "Arab"}
_SCRIPTS_WITHOUT_SPACES = frozenset(
    ["Hani", "Hans", "Hant", "Jpan", "Thai", "Laoo", "Khmr", "Mymr", "Tibt", "Bali", "Java", "Lana", "Talu", "Yiii"]
)
_MECAB = {"Jpan": ("ja", "MeCab"), "Kore": ("ko", "mecab_ko")}
# The scripts of Unicode that one of ISO 15924 consists of, if they are not the same.
_UNICODE_SCRIPTS = {
    "Hani": ("Han", "Bopo"),
    "Hans": ("Han", "Bopo"),
    "Hant": ("Han", "Bopo"),
    "Jpan": ("Han", "Hira", "Kana"),
    "Kore": ("Hang", "Han"),
    "Aran": ("Arab",),
}
_ONE_WORD_PER_CHARACTER = ("Han", "Bopo", "Hira", "Kana")
_NO_SCRIPT = ("Zyyy", "Zinh", "Zzzz")  # common, inherited, unknown
_NAMES_OF_OTHER_COLUMNS = ("id", "nr", "to", "ts")
# Groups of languages that an identifier takes for each other, or that go by one name.
_CLOSE_GROUPS = (
    "da fo nn no sv, bs hr sl sr, be bg mk ru uk, cs sk, an ca es ext gl oc pt, it lij vec, br fr gcf gcr ht wa, "
    "af fy nl, de lb, en pcm, id jv ms su, lt ltg lv, az crh tk tr, ba kk ky tt, ug uz uzs, ar ary arz, "
    "fa ku ps sdh ur, gom hi mr ne sa, as bn, el grc, he hbo, ja lzh wuu yue zh, ga gd, bcl tl, nso st xh zu"
)
_CLOSE_LANGUAGES = [frozenset(group.split()) for group in _CLOSE_GROUPS.split(",")]


def parse_languages(pair: str) -> tuple[str, str]:
    """The codes in SOURCE-TARGET, the value of --languages; UsageError if it is not two codes."""
    codes = pair.split("-")
    if len(codes) != 2 or not all(re.fullmatch(r"[A-Za-z]\w*", code, flags=re.ASCII) for code in codes):
        hint = "for example --languages en-de, or en-pt_BR with two parts of one code"
        raise UsageError(f"`languages` {pair!r} is not SOURCE-TARGET", setting="languages", hint=hint)
    return codes[0], codes[1]


@lru_cache(maxsize=1 << 14)
def are_close(code: str, other: str) -> bool:
    """True if two languages are the same, or so similar that an identifier takes one for the other."""
    codes = {short_code(code), short_code(other)}
    return len(codes) == 1 or any(codes <= group for group in _CLOSE_LANGUAGES)


@lru_cache(maxsize=4096)
def standard_code(code: str) -> str:
    """The code as BCP 47 writes it: pt-BR for pt_br, he for iw, zh-Hant for zho_Hant. Other text stays as it is."""
    from langcodes import standardize_tag

    tag = code.strip().partition(".")[0].replace("_", "-")
    tag = re.sub("^([a-z]+)(.*)@(latin|cyrillic)$", _with_script, tag, flags=re.IGNORECASE)
    try:
        return standardize_tag(_OTHER_CODES.get(tag.lower(), tag.partition("@")[0]))
    except ValueError:
        return code


@lru_cache(maxsize=4096)
def language_name(code: str) -> str:
    """The English name of a language with its script and region, or the code if it has no name."""
    from langcodes import Language

    try:
        language = Language.get(_macro_code(code))
    except ValueError:
        return code
    return code if language.language_name().startswith("Unknown") else language.display_name()


def is_language(name: str) -> bool:
    """True if a name, such as that of a column or the ending of a file, is the English name or the code of a language.

    `id` and a few others name a column of another kind, and `No` is a word: no code begins with its only capital.
    """
    from langcodes import Language

    name = name.strip().rpartition(".")[2]
    code = short_code(name)
    if len(code) == 2 and code not in _NAMES_OF_OTHER_COLUMNS and not re.fullmatch("[A-Z][a-z]{1,2}", name):
        return Language.get(code).is_valid()
    found = code_of_name(name, in_language="en")
    return found is not None and language_name(found).lower() == name.lower()


def code_of_name(name: str, *, in_language: str | None) -> str | None:
    """The code of the language that has this name in a language, or in any: de for German and Deutsch; else None."""
    from langcodes import find

    try:
        return find(name, language=in_language).to_tag()
    except (LookupError, UnicodeError):  # the latter for bytes that are not UTF-8
        return None


def warning_of_code(code: str) -> str | None:
    """The warning of a code that no language has, with the code that is likely meant: ja for jp, en for english."""
    from langcodes import Language

    with suppress(ValueError):
        if Language.make(Language.get(standard_code(code)).language).is_valid():
            return None
    first = re.split("[-_]", code)[0]
    likely = _language_of_country(first) if re.fullmatch("[A-Za-z]{2}", first) else code_of_name(code, in_language=None)
    fix = f"if you mean {language_name(likely)}, write {likely}" if likely else "check it, unless you have invented it"
    return f"{code} is the code of no language: {fix}"


def match_code(wanted: str, codes: Sequence[str]) -> str | None:
    """The code in `codes` that is meant: the language and the script must be the same, and the nearest region is taken.

    `DE` and `deu` are de, and `EN-US` is en if there is no nearer code. `zh-TW` is zh-Hant, and never zh-Hans.
    """
    meant = standard_code(wanted)
    key = short_code(wanted), script_of(wanted)
    fitting = [code for code in codes if (short_code(code), script_of(code)) == key]
    return min(fitting, key=lambda code: _distance(meant, standard_code(code)), default=None)


def nearest_code(wanted: str, codes: Sequence[str]) -> str | None:
    """The code that may be meant, by a code of the language in another script or by its English name; else None."""
    named = code_of_name(wanted, in_language="en")
    meant = short_code(wanted), short_code(named or wanted)
    return next((code for code in codes if short_code(code) in meant), None)


@lru_cache(maxsize=4096)
def script_of(code: str) -> str:
    """The script of a language in ISO 15924: the script in its code, as in sr-Latn, or else its usual script."""
    from langcodes import Language

    try:
        language = Language.get(_macro_code(code))
    except ValueError:
        return "Latn"
    usual_script = _USUAL_SCRIPTS.get(short_code(code))
    script = language.script or usual_script or language.maximize().script or "Latn"
    return "Kore" if script == "Hang" else script  # Korean with and without Han characters


def letters_of(script: str) -> str:
    """The letters of a script in ISO 15924, as a pattern for the package regex, to be put between brackets."""
    return "".join(f"\\p{{Script={name}}}" for name in _UNICODE_SCRIPTS.get(script, (script,)))


LETTERS_WITHOUT_SPACES = "".join(map(letters_of, sorted(_SCRIPTS_WITHOUT_SPACES)))
"""The letters of all scripts without spaces between words, as `letters_of` has those of one."""


def is_without_spaces(code: str) -> bool:
    """True if a language is written without spaces between its words, as Chinese and Thai are."""
    return script_of(code) in _SCRIPTS_WITHOUT_SPACES


@cache
def bleu_tokenizer(code: str | None) -> str:
    """The name of sacreBLEU's tokenizer for a language: its own, characters if it has no spaces, or else 13a.

    Japanese and Korean take characters as well if the package of their tokenizer is not installed.
    """
    script = "Latn" if code is None else script_of(code)
    if script in ("Hani", "Hans", "Hant"):
        return "zh"
    if script in _MECAB:
        language, package = _MECAB[script]
        if find_spec(package):
            return f"{language}-mecab"
        logger.info("BLEU counts characters; with pip install 'sacrebleu[%s]' it counts words", language)
        return "char"
    return "char" if script in _SCRIPTS_WITHOUT_SPACES else "13a"


@lru_cache(maxsize=4096)
def short_code(code: str) -> str:
    """The language of a code, in two letters if ISO 639-1 has it: de for deu, de-AT and ger_Latn; no for nb."""
    language = re.split("[-_]", _macro_code(code))[0].lower()
    return _SAME_LANGUAGES.get(language, language)


def language_identifier(*, where: str | None) -> LanguageIdentifier:
    """The identifier of py3langid, with probabilities. DataError, which names `where`, if it is not installed."""
    if find_spec("py3langid") is None:
        message = "identifying a language takes py3langid, which is not installed"
        raise DataError(message, where=where, hint="pip install 'nmt-cli[langid]'")
    return _load_identifier()


@dataclass(frozen=True, slots=True)
class DetectedLanguage:
    """The language of a text by its code, and its probability among the languages that it was compared with."""

    code: str
    confidence: float


def detect_language(text: str, *, among: Sequence[str]) -> DetectedLanguage | None:
    """The most likely language of a text; None if the text is in another script, or does not say which one it is.

    A language that alone has the script of the text is the answer; its probability is that among all languages of the
    script that the identifier knows.
    """
    text = text[:IDENTIFIED_CHARACTERS]
    code_of, known = _known_languages(tuple(_in_han_of(text, in_script_of(text, among))))
    if not code_of:
        return None
    compared = known if len(known) > 1 else known.union(in_script_of(text, [*_labels()]))
    identifier, of_no_text = _identifier_for(compared)
    label, confidence = identifier.classify(text)
    best = short_code(str(label))
    if confidence < _LEAST_CONFIDENCE or best not in code_of:
        probabilities = {short_code(str(label)): float(value) for label, value in identifier.rank(text)}
        best = max(code_of, key=lambda language: probabilities.get(language, 0.0))
        confidence = probabilities.get(best, 0.0)
        in_close_languages = sum(value for other, value in probabilities.items() if are_close(other, best))
        if len(code_of) > 1 and in_close_languages < _LEAST_CONFIDENCE:
            return None
    if len(code_of) > 1 and confidence == of_no_text:
        return None
    return DetectedLanguage(code_of[best], confidence)


def identify_language(text: str) -> DetectedLanguage | None:
    """The most likely of all languages that the identifier knows; None if the text does not say which one it is."""
    return detect_language(text, among=[*_labels()])


def identify_other(text: str, codes: Sequence[str]) -> DetectedLanguage | None:
    """The language of a text that clearly is in none of these languages, nor in one that is close to them.

    None if the identifier does not know all of these languages.
    """
    if not {*map(short_code, codes)} <= _labels().keys():
        return None
    found = identify_language(text)
    is_clear = found is not None and found.confidence >= _CLEAR_CONFIDENCE
    return found if found and is_clear and not any(are_close(found.code, code) for code in codes) else None


def in_script_of(text: str, codes: Sequence[str]) -> list[str]:
    """The languages in whose script most of a text is written; a Han or Kana character counts like a word."""
    scripts = _scripts_of(tuple(codes))
    possible = {"Latn"} if text.isascii() else {*scripts}
    counts = {script: len(_words_of(script).findall(text)) for script in possible.intersection(scripts)}
    least = max(_MOST_WORDS * len(_words_of(None).findall(text)), _NEARLY_ALL * max(counts.values(), default=0), 1)
    return [code for code, script in zip(codes, scripts, strict=True) if counts.get(script, 0) >= least]


def _macro_code(code: str) -> str:
    """The standard code with the language that an individual language belongs to, such as zh for cmn."""
    from langcodes import standardize_tag

    try:
        return standardize_tag(standard_code(code), macro=True)
    except ValueError:
        return code


def _language_of_country(code: str) -> str | None:
    """The language of the country that has this code, if it is the country of the language too."""
    from langcodes import Language

    language = Language.get(f"und-{code}").maximize().language or "und"
    return language if Language.get(language).maximize().territory == code.upper() else None


def _with_script(locale: re.Match[str]) -> str:
    """The code for the name of a locale: sr-Latn-RS for sr-RS@latin."""
    language, region, script = locale.groups()
    return f"{language}-{'Latn' if script.lower() == 'latin' else 'Cyrl'}{region}"


@lru_cache(maxsize=4096)
def _distance(wanted: str, code: str) -> tuple[bool, int, int]:
    """How far two standard codes of one language and script are apart; of equal ones the shorter is nearer."""
    from langcodes import tag_distance

    try:
        distance = tag_distance(wanted, code)
    except ValueError:  # en_ is no tag
        distance = _FARTHEST
    return wanted != code, distance, len(code)


def _in_han_of(text: str, codes: Sequence[str]) -> list[str]:
    """The languages; of simplified and traditional Chinese, only the one that fits the text, simplified if both do."""
    if not {"Hans", "Hant"} <= {*_scripts_of(tuple(codes))}:
        return [*codes]
    simplified, traditional = (len(text.encode(encoding, "ignore")) for encoding in ("gb2312", "big5"))
    other = "Hans" if simplified < traditional else "Hant"
    return [code for code in codes if script_of(code) != other]


@cache
def _words_of(script: str | None) -> regex.Pattern[str]:
    """The pattern of a word of a script, or of any script with None."""
    import regex

    if script is None:
        each, none = (
            "".join(f"\\p{{Script={name}}}" for name in names) for names in (_ONE_WORD_PER_CHARACTER, _NO_SCRIPT)
        )
        return regex.compile(f"[{each}]|[^{each}{none}]+")
    names = _UNICODE_SCRIPTS.get(script, (script,))
    return regex.compile(
        "|".join(f"\\p{{Script={name}}}{'' if name in _ONE_WORD_PER_CHARACTER else '+'}" for name in names)
    )


@cache
def _load_identifier() -> LanguageIdentifier:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@cache
def _labels() -> dict[str, str]:
    """The identifier's labels of languages by their short codes."""
    labels = map(str, language_identifier(where=None).labels)
    return {short_code(label): label for label in labels if label != NO_LANGUAGE}


@lru_cache(maxsize=256)
def _scripts_of(codes: tuple[str, ...]) -> list[str]:
    return [*map(script_of, codes)]


@lru_cache(maxsize=256)
def _known_languages(codes: tuple[str, ...]) -> tuple[dict[str, str], frozenset[str]]:
    """The first of the codes of each language, by `short_code`, and the short codes that the identifier knows."""
    code_of = {short_code(code): code for code in reversed(codes)}
    return code_of, frozenset(code_of.keys() & _labels().keys())


@lru_cache(maxsize=256)
def _identifier_for(codes: frozenset[str]) -> tuple[LanguageIdentifier, float]:
    """The identifier restricted to these languages, and the highest probability that it gives one without a text."""
    identifier = copy(language_identifier(where=None))
    identifier.set_languages(sorted(_labels()[code] for code in codes))  # takes as long as many detections
    return identifier, identifier.classify("")[1]
