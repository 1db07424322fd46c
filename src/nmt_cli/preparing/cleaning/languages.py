"""What the code of a language says about text in it: the script, and whether a text is identified as the language."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nmt_cli.errors import DataError
from nmt_cli.preparing.cleaning.characters import code_points, starts

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

# The languages that are not written in Latin letters, by script (ISO 15924).
_LANGUAGES = {
    "Arab": "ar ary arz ckb fa ks pnb ps sd ug ur",
    "Armn": "hy",
    "Beng": "as bn",
    "Cyrl": "ab av ba be bg ce cv kk ky mk mn os ru sah sr tg tt udm uk",
    "Deva": "bho gom hi mai mr ne sa",
    "Ethi": "am ti",
    "Geor": "ka",
    "Grek": "el grc",
    "Gujr": "gu",
    "Guru": "pa",
    "Hani": "lzh wuu yue zh",
    "Hebr": "he hbo yi",
    "Jpan": "ja",
    "Khmr": "km",
    "Knda": "kn",
    "Kore": "ko",
    "Laoo": "lo",
    "Mlym": "ml",
    "Mymr": "my",
    "Orya": "or",
    "Sinh": "si",
    "Taml": "ta",
    "Telu": "te",
    "Thaa": "dv",
    "Thai": "th",
    "Tibt": "bo dz",
}
_SCRIPT_OF_LANGUAGE = {code: script for script, codes in _LANGUAGES.items() for code in codes.split()}
# How the Unicode names of a script's letters begin; several scripts are written together in some languages.
_LETTER_NAMES = {
    "Arab": ("ARABIC",),
    "Armn": ("ARMENIAN",),
    "Beng": ("BENGALI",),
    "Cans": ("CANADIAN",),
    "Cher": ("CHEROKEE",),
    "Cyrl": ("CYRILLIC",),
    "Deva": ("DEVANAGARI",),
    "Ethi": ("ETHIOPIC",),
    "Geor": ("GEORGIAN",),
    "Grek": ("GREEK",),
    "Gujr": ("GUJARATI",),
    "Guru": ("GURMUKHI",),
    "Hani": ("CJK", "IDEOGRAPHIC", "BOPOMOFO"),
    "Hebr": ("HEBREW",),
    "Jpan": ("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"),
    "Khmr": ("KHMER",),
    "Knda": ("KANNADA",),
    "Kore": ("HANGUL", "CJK"),
    "Laoo": ("LAO",),
    "Latn": ("LATIN",),
    "Mlym": ("MALAYALAM",),
    "Mong": ("MONGOLIAN",),
    "Mtei": ("MEETEI",),
    "Mymr": ("MYANMAR",),
    "Olck": ("OL",),
    "Orya": ("ORIYA",),
    "Sinh": ("SINHALA",),
    "Syrc": ("SYRIAC",),
    "Taml": ("TAMIL",),
    "Telu": ("TELUGU",),
    "Tfng": ("TIFINAGH",),
    "Thaa": ("THAANA",),
    "Thai": ("THAI",),
    "Tibt": ("TIBETAN",),
}
_SAME_LETTERS = {"Hans": "Hani", "Hant": "Hani", "Hang": "Kore", "Hira": "Jpan", "Kana": "Jpan", "Aran": "Arab"}
_KNOWN_NAMES = frozenset(name for names in _LETTER_NAMES.values() for name in names)
# ISO 639-3 (and 639-2/B where it differs) to 639-1, for the languages that have both and that data sets name so.
_SHORT_CODES: dict[str, str] = dict(
    re.findall(
        r"(\w+):(\w+)",
        """
        afr:af alb:sq amh:am ara:ar arb:ar arm:hy asm:as aze:az azj:az baq:eu bel:be ben:bn bos:bs bre:br bul:bg bur:my
        cat:ca ces:cs chi:zh cmn:zh cym:cy cze:cs dan:da deu:de dut:nl ell:el eng:en epo:eo est:et eus:eu fas:fa fin:fi
        fra:fr fre:fr fry:fy geo:ka ger:de gla:gd gle:ga glg:gl gre:el guj:gu hau:ha heb:he hin:hi hrv:hr hun:hu hye:hy
        ibo:ig ice:is ind:id isl:is ita:it jav:jv jpn:ja kan:kn kat:ka kaz:kk khm:km kin:rw kir:ky kor:ko kur:ku lao:lo
        lat:la lav:lv lin:ln lit:lt ltz:lb lug:lg lvs:lv mac:mk mal:ml mar:mr may:ms mkd:mk mlg:mg mlt:mt mon:mn khk:mn
        msa:ms mya:my nep:ne npi:ne nld:nl nno:nn nob:no nor:no nb:no nya:ny oci:oc ori:or ory:or pan:pa per:fa pes:fa
        pol:pl por:pt prs:fa pus:ps pbt:ps ron:ro rum:ro rus:ru sin:si slk:sk slo:sk slv:sl sna:sn snd:sd som:so spa:es
        sqi:sq als:sq srp:sr sun:su swa:sw swh:sw swe:sv tam:ta tat:tt tel:te tgk:tg tgl:tl tha:th tib:bo bod:bo tir:ti
        tuk:tk tur:tr uig:ug ukr:uk urd:ur uzb:uz uzn:uz vie:vi wel:cy xho:xh yid:yi ydd:yi yor:yo zho:zh zsm:ms zul:zu
        """,
    )
)
_NUM_CODES = 0x40000  # no letter lies beyond the third plane
_OWN, _OTHER = 1, 2

_MIN_CHARACTERS = 30  # a shorter text is too often taken for another language
_MIN_OTHER = 0.5
_MAX_OWN = 0.05


class ScriptRule:
    """Finds the texts of which more than half of the letters belong to another script than the language's.

    What no script of the table owns (digits, signs, mathematical letters) does not count; nor does a text without
    letters break the rule.
    """

    def __init__(self, code: str) -> None:
        self._script = script_of(code)

    def __call__(self, texts: Sequence[str]) -> list[int]:
        """The places of these texts, which hold no surrogates."""
        places = [place for place, text in enumerate(texts) if self._script != "Latn" or not text.isascii()]
        if not places:
            return []
        chosen = [texts[place] for place in places]
        codes = code_points(chosen)
        owners = _owners(self._script)[np.minimum(codes, _NUM_CODES - 1)]
        own, other = (np.add.reduceat(owners == owner, starts(chosen), dtype=np.int64) for owner in (_OWN, _OTHER))
        return [places[index] for index in np.flatnonzero(other > own).tolist()]


class LanguageRule:
    """Finds the texts that are identified as another language than theirs, and can hardly be theirs.

    Short texts are passed over. Raises DataError where py3langid is missing or does not know the language.
    """

    def __init__(self, code: str) -> None:
        self._identifier = language_identifier()
        self._language = short_code(code)
        if self._language not in self._identifier.labels:
            raise DataError(
                f"py3langid cannot identify {code!r}",
                where="cleaning.other_language",
                hint="switch the rule off: --set cleaning.other_language=false",
            )

    def __call__(self, texts: Sequence[str]) -> list[int]:
        """The places of these texts."""
        return [place for place, text in enumerate(texts) if len(text) >= _MIN_CHARACTERS and self._is_other(text)]

    def _is_other(self, text: str) -> bool:
        best, probability = self._identifier.classify(text)
        if best == self._language or probability < _MIN_OTHER:
            return False
        return bool(dict(self._identifier.rank(text))[self._language] < _MAX_OWN)


def script_of(code: str) -> str:
    """The script of a language by its code, in ISO 15924: what the code names, as in sr-Latn, else the usual one.

    Latn where the language is not in the table.
    """
    for part in re.split("[-_]", code)[1:]:
        script = _SAME_LETTERS.get(part.title(), part.title())
        if script in _LETTER_NAMES:
            return script
    return _SCRIPT_OF_LANGUAGE.get(short_code(code), "Latn")


def short_code(code: str) -> str:
    """The language of a code, in two letters where ISO 639-1 has it: de for deu, de-AT and ger_Latn."""
    language = re.split("[-_]", code)[0].lower()
    return _SHORT_CODES.get(language, language)


@lru_cache(maxsize=1)
def language_identifier() -> LanguageIdentifier:
    """The identifier of py3langid with probabilities; DataError where it is not installed."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ModuleNotFoundError:
        raise DataError(
            "cleaning.other_language identifies languages with py3langid, which is not installed",
            where="cleaning.other_language",
            hint="pip install 'nmt-cli[langid]'",
        ) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@lru_cache(maxsize=2)
def _owners(script: str) -> NDArray[np.uint8]:
    """For every character: 1 if it is a letter of the script, 2 if of another in the table, 0 if neither."""
    names = _LETTER_NAMES[script]
    owners = np.zeros(_NUM_CODES, dtype=np.uint8)
    for code in range(_NUM_CODES):
        character = chr(code)
        if character.isalpha():
            name = unicodedata.name(character, "").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
            first = name.split(" ", 1)[0]
            owners[code] = _OWN if first in names else _OTHER if first in _KNOWN_NAMES else 0
    return owners
