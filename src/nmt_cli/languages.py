"""Languages: their codes, names and scripts, and which language a text is in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from nmt_cli.errors import DataError, UsageError

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

_IDENTIFIED_CHARACTERS = 4000  # from the beginning of a text


def _parse_table(text: str) -> dict[str, str]:
    return dict(entry.split(":") for entry in text.split())


_LANGUAGE_NAMES = _parse_table(
    """
    af:Afrikaans am:Amharic ar:Arabic az:Azerbaijani be:Belarusian bg:Bulgarian bn:Bengali br:Breton bs:Bosnian
    ca:Catalan cs:Czech cy:Welsh da:Danish de:German el:Greek en:English eo:Esperanto es:Spanish et:Estonian
    eu:Basque fa:Persian fi:Finnish fr:French ga:Irish gl:Galician gu:Gujarati ha:Hausa he:Hebrew hi:Hindi
    hr:Croatian hsb:Sorbian hu:Hungarian hy:Armenian id:Indonesian ig:Igbo is:Icelandic it:Italian iu:Inuktitut
    ja:Japanese ka:Georgian kk:Kazakh km:Khmer kn:Kannada ko:Korean ku:Kurdish ky:Kyrgyz la:Latin
    lb:Luxembourgish lo:Lao lt:Lithuanian lv:Latvian mg:Malagasy mk:Macedonian ml:Malayalam mn:Mongolian
    mr:Marathi ms:Malay mt:Maltese my:Burmese ne:Nepali nl:Dutch nn:Nynorsk no:Norwegian oc:Occitan
    pa:Punjabi pl:Polish ps:Pashto pt:Portuguese ro:Romanian ru:Russian si:Sinhala sk:Slovak sl:Slovenian
    so:Somali sq:Albanian sr:Serbian sv:Swedish sw:Swahili ta:Tamil te:Telugu tg:Tajik th:Thai tk:Turkmen
    tl:Tagalog tr:Turkish tt:Tatar ug:Uyghur uk:Ukrainian ur:Urdu uz:Uzbek vi:Vietnamese xh:Xhosa yi:Yiddish
    yo:Yoruba zh:Chinese zu:Zulu
    """
)
# The languages that are not written in Latin letters, with their script (ISO 15924).
_USUAL_SCRIPTS = _parse_table(
    """
    ab:Cyrl acm:Arab acq:Arab aeb:Arab ajp:Arab am:Ethi apc:Arab ar:Arab arq:Arab ars:Arab ary:Arab arz:Arab as:Beng
    av:Cyrl awa:Deva azb:Arab ba:Cyrl be:Cyrl bg:Cyrl bho:Deva bn:Beng bo:Tibt brx:Deva ce:Cyrl chr:Cher ckb:Arab
    cr:Cans cv:Cyrl doi:Deva dv:Thaa dz:Tibt el:Grek fa:Arab gan:Hani gom:Deva grc:Grek gu:Gujr hbo:Hebr he:Hebr
    hi:Deva hne:Deva hy:Armn iu:Cans ja:Jpan ka:Geor kk:Cyrl km:Khmr kn:Knda ko:Kore kok:Deva ks:Arab kv:Cyrl
    ky:Cyrl lo:Laoo lzh:Hani mag:Deva mai:Deva mhr:Cyrl mk:Cyrl ml:Mlym mn:Cyrl mni:Beng mnw:Mymr mr:Deva my:Mymr
    myv:Cyrl ne:Deva new:Deva or:Orya os:Cyrl pa:Guru pnb:Arab ps:Arab ru:Cyrl rue:Cyrl sa:Deva sah:Cyrl sat:Olck
    sd:Arab sdh:Arab shn:Mymr si:Sinh skr:Arab sr:Cyrl syr:Syrc ta:Taml tcy:Knda te:Telu tg:Cyrl th:Thai ti:Ethi
    tt:Cyrl tyv:Cyrl udm:Cyrl ug:Arab uk:Cyrl ur:Arab uzs:Arab wuu:Hani xal:Cyrl yi:Hebr yue:Hani zgh:Tfng zh:Hani
    """
)
# How the Unicode names of a script's letters begin; several scripts are written together in some languages.
LETTER_NAME_PREFIXES = {
    script: tuple(prefixes.split(","))
    for script, prefixes in _parse_table(
        """
        Arab:ARABIC Armn:ARMENIAN Beng:BENGALI Cans:CANADIAN Cher:CHEROKEE Cyrl:CYRILLIC Deva:DEVANAGARI
        Ethi:ETHIOPIC Geor:GEORGIAN Grek:GREEK Gujr:GUJARATI Guru:GURMUKHI Hani:CJK,IDEOGRAPHIC,BOPOMOFO Hebr:HEBREW
        Jpan:CJK,IDEOGRAPHIC,HIRAGANA,KATAKANA,KATAKANA-HIRAGANA Khmr:KHMER Knda:KANNADA Kore:HANGUL,CJK Laoo:LAO
        Latn:LATIN Mlym:MALAYALAM Mong:MONGOLIAN Mtei:MEETEI Mymr:MYANMAR Olck:OL Orya:ORIYA Sinh:SINHALA
        Syrc:SYRIAC Taml:TAMIL Telu:TELUGU Tfng:TIFINAGH Thaa:THAANA Thai:THAI Tibt:TIBETAN
        """
    ).items()
}
_SCRIPT_ALIASES = {"Hans": "Hani", "Hant": "Hani", "Hang": "Kore", "Hira": "Jpan", "Kana": "Jpan", "Aran": "Arab"}
# ISO 639-3 (and 639-2/B if it differs) to 639-1, for the languages that have both and that data sets name so.
_TWO_LETTER_CODES = _parse_table(
    """
    afr:af alb:sq als:sq amh:am ara:ar arb:ar arm:hy asm:as aze:az azj:az bak:ba baq:eu bel:be ben:bn bod:bo bos:bs
    bre:br bul:bg bur:my cat:ca ces:cs chi:zh cmn:zh cym:cy cze:cs dan:da deu:de dut:nl dzo:dz ekk:et ell:el eng:en
    epo:eo est:et eus:eu fas:fa fin:fi fra:fr fre:fr fry:fy gaz:om geo:ka ger:de gla:gd gle:ga glg:gl gre:el guj:gu
    hat:ht hau:ha heb:he hin:hi hrv:hr hun:hu hye:hy ibo:ig ice:is ike:iu iku:iu ind:id isl:is ita:it jav:jv jpn:ja
    kan:kn kas:ks kat:ka kaz:kk khk:mn khm:km kin:rw kir:ky kmr:ku kor:ko kur:ku lao:lo lat:la lav:lv lin:ln lit:lt
    ltz:lb lug:lg lvs:lv mac:mk mal:ml mar:mr may:ms mkd:mk mlg:mg mlt:mt mon:mn msa:ms mya:my nb:no nep:ne nld:nl
    nno:nn nob:no nor:no npi:ne nya:ny oci:oc ori:or ory:or pan:pa pbt:ps per:fa pes:fa plt:mg pol:pl por:pt prs:fa
    pus:ps ron:ro rum:ro rus:ru san:sa sin:si slk:sk slo:sk slv:sl sna:sn snd:sd som:so sot:st spa:es sqi:sq srp:sr
    sun:su swa:sw swe:sv swh:sw tam:ta tat:tt tel:te tgk:tg tgl:tl tha:th tib:bo tir:ti tuk:tk tur:tr uig:ug ukr:uk
    urd:ur uzb:uz uzn:uz vie:vi wel:cy xho:xh ydd:yi yid:yi yor:yo zho:zh zsm:ms zul:zu
    """
)
# Languages that an identifier takes for each other, or that go by one name.
_CLOSE_LANGUAGES = [
    frozenset(codes.split())
    for codes in (
        "da fo nn no sv",
        "bs hr sl sr",
        "be bg mk ru uk",
        "cs sk",
        "an ca es ext gl oc pt",
        "it lij vec",
        "br fr gcf gcr ht wa",
        "af fy nl",
        "de lb",
        "en pcm",
        "id jv ms su",
        "lt ltg lv",
        "az crh tk tr",
        "ba kk ky tt",
        "ug uz uzs",
        "ar ary arz",
        "fa ku ps sdh ur",
        "gom hi mr ne sa",
        "as bn",
        "el grc",
        "he hbo",
        "ja lzh wuu yue zh",
        "ga gd",
        "bcl tl",
        "nso st xh zu",
    )
]


def parse_languages(pair: str) -> tuple[str, str]:
    """The codes in SOURCE-TARGET, the value of --languages; UsageError if it is not two codes."""
    codes, hint = pair.split("-"), "for example --languages en-de"
    if len(codes) > 2 and all(map(str.isalnum, codes)):
        # The second part belongs to the source if it is a country, a script or a region, as in en-US-de.
        languages = [i for i, code in enumerate(codes) if i and not re.fullmatch(r"[A-Z]{2}|[A-Za-z]{4}|\d{3}", code)]
        splits = languages or range(1, len(codes))
        commands = [f"--languages {'_'.join(codes[:split])}-{'_'.join(codes[split:])}" for split in splits]
        hint = f"a hyphen separates the two languages, and _ the parts of one: {', or '.join(commands)}"
    if len(codes) != 2 or not all(re.fullmatch(r"[A-Za-z]\w*", code, flags=re.ASCII) for code in codes):
        raise UsageError(f"`languages` {pair!r} is not SOURCE-TARGET", setting="languages", hint=hint)
    return codes[0], codes[1]


def are_close(code: str, other: str) -> bool:
    """True if two languages are the same, or so similar that an identifier takes one for the other."""
    codes = {short_code(code), short_code(other)}
    return len(codes) == 1 or any(codes <= group for group in _CLOSE_LANGUAGES)


def language_name(code: str) -> str:
    """The English name of a language, or its code if the table has no name."""
    return _LANGUAGE_NAMES.get(short_code(code), code)


def languages_called(names: Sequence[str]) -> dict[int, str]:
    """The codes of the languages that names are the English names or codes of, by index.

    `id` is an identifier, and `No` is a word: codes are written small or in capitals.
    """
    codes = {key: code for code, name in _LANGUAGE_NAMES.items() for key in (code, name.lower()) if key != "id"}
    parts = [name.strip().rpartition(".")[2] for name in names]
    keys = ["" if re.fullmatch("[A-Z][a-z]{1,2}", part) else short_code(part) for part in parts]
    return {index: codes[key] for index, key in enumerate(keys) if key in codes}


def match_code(wanted: str, codes: Sequence[str]) -> str | None:
    """The code in `codes` that is meant: `DE` and `deu` are de, and `EN-US` is en if there is no nearer code."""
    normalized = wanted.strip().replace("_", "-").lower()
    for code in codes:
        if code.replace("_", "-").lower() == normalized:
            return code
    return next((code for code in codes if short_code(code) == short_code(normalized)), None)


def script_of(code: str) -> str:
    """The script of a language in ISO 15924: the script in its code, as in sr-Latn, or else its usual script.

    A language that is not in the table has Latn.
    """
    for part in re.split("[-_]", code)[1:]:
        script = _SCRIPT_ALIASES.get(part.title(), part.title())
        if script in LETTER_NAME_PREFIXES:
            return script
    return _USUAL_SCRIPTS.get(short_code(code), "Latn")


def short_code(code: str) -> str:
    """The language of a code, in two letters if ISO 639-1 has it: de for deu, de-AT and ger_Latn."""
    language = re.split("[-_]", code)[0].lower()
    return _TWO_LETTER_CODES.get(language, language)


def language_identifier(*, where: str | None) -> LanguageIdentifier:
    """The identifier of py3langid, with probabilities. DataError, which names `where`, if it is not installed."""
    if find_spec("py3langid") is None:
        message = "identifying a language takes py3langid, which is not installed"
        raise DataError(message, where=where, hint="pip install 'nmt-cli[langid]'")
    return _load_identifier()


@dataclass(frozen=True, slots=True)
class DetectedLanguage:
    """The language of a text by its code, and its probability; `is_only` if there was no other language to choose."""

    code: str
    confidence: float
    is_only: bool


def detect_language(text: str, *, among: Sequence[str]) -> DetectedLanguage | None:
    """The most likely language of a text; a single language is the answer for any text.

    None if the identifier knows fewer than two of the languages.
    """
    if len(among) == 1:
        return DetectedLanguage(among[0], 1.0, is_only=True)
    code_of = {short_code(code): code for code in reversed(among)}
    identifier = _identifier_for(frozenset(code_of))
    if identifier is None:
        return None
    label, confidence = identifier.classify(text[:_IDENTIFIED_CHARACTERS])
    return DetectedLanguage(code_of[str(label)], float(confidence), is_only=False)


@cache
def _load_identifier() -> LanguageIdentifier:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@cache
def _identifier_for(codes: frozenset[str]) -> LanguageIdentifier | None:
    """The identifier restricted to these languages, or None if it knows fewer than two of them."""
    full_identifier = language_identifier(where=None)
    known = sorted(codes & set(map(str, full_identifier.labels)))
    if len(known) < 2:
        return None
    identifier = copy(full_identifier)
    identifier.set_languages(known)  # takes as long as many detections
    return identifier
