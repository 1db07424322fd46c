"""Codes of languages as clients spell them, their names, and which language a text is in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from nmt_cli.serving.refusals import invalid

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

_NAMES: dict[str, str] = dict(
    re.findall(
        r"(\w+):(\w+)",
        """
        af:Afrikaans am:Amharic ar:Arabic az:Azerbaijani be:Belarusian bg:Bulgarian bn:Bengali br:Breton bs:Bosnian
        ca:Catalan cs:Czech cy:Welsh da:Danish de:German el:Greek en:English eo:Esperanto es:Spanish et:Estonian
        eu:Basque fa:Persian fi:Finnish fr:French ga:Irish gl:Galician gu:Gujarati ha:Hausa he:Hebrew hi:Hindi
        hr:Croatian hsb:Sorbian hu:Hungarian hy:Armenian id:Indonesian ig:Igbo is:Icelandic it:Italian iu:Inuktitut
        ja:Japanese ka:Georgian kk:Kazakh km:Khmer kn:Kannada ko:Korean ku:Kurdish ky:Kyrgyz la:Latin lb:Luxembourgish
        lo:Lao lt:Lithuanian lv:Latvian mg:Malagasy mk:Macedonian ml:Malayalam mn:Mongolian mr:Marathi ms:Malay
        mt:Maltese my:Burmese nb:Norwegian ne:Nepali nl:Dutch nn:Nynorsk no:Norwegian oc:Occitan pa:Punjabi pl:Polish
        ps:Pashto pt:Portuguese ro:Romanian ru:Russian si:Sinhala sk:Slovak sl:Slovenian so:Somali sq:Albanian
        sr:Serbian sv:Swedish sw:Swahili ta:Tamil te:Telugu tg:Tajik th:Thai tk:Turkmen tl:Tagalog tr:Turkish tt:Tatar
        ug:Uyghur uk:Ukrainian ur:Urdu uz:Uzbek vi:Vietnamese xh:Xhosa yi:Yiddish yo:Yoruba zh:Chinese zu:Zulu
        """,
    )
)
_FIRST_CHARACTERS = 4000


def name_of(code: str) -> str:
    """The English name of a language, or its code where the table has none."""
    return _NAMES.get(_base(code), code)


def match_code(wanted: str, codes: Sequence[str]) -> str | None:
    """The one of `codes` that is meant: `DE` is de, and `EN-US` is en where there is no nearer one."""
    plain = wanted.strip().replace("_", "-").lower()
    for code in codes:
        if code.replace("_", "-").lower() == plain:
            return code
    return next((code for code in codes if _base(code) == _base(plain)), None)


@dataclass(frozen=True, slots=True)
class Detected:
    """The language of a text by its code, and how sure that is, from 0 to 1; `is_only` where there is no other."""

    code: str
    confidence: float
    is_only: bool


@dataclass(frozen=True)
class Detector:
    """Finds out in which of some languages, or of some of these, a text is."""

    codes: tuple[str, ...]

    def prepare(self) -> None:
        """Read what the first detection would have to wait for."""
        if len(self.codes) > 1:
            self._identifier_of(self.codes)

    def detect(self, text: str, *, among: Sequence[str]) -> Detected:
        """The most likely of `among`, some of the languages; with one language it is that one, unseen.

        Refused where the identifier knows less than two of them.
        """
        if len(among) == 1:
            return Detected(among[0], 1.0, is_only=True)
        code_of = {_base(code): code for code in reversed(among)}
        identifier = self._identifier_of(among)
        if identifier is None:
            hint = f"give the source language: one of {', '.join(among)}"
            raise invalid("these languages cannot be told apart by their text", hint=hint, where="source")
        label, confidence = identifier.classify(text[:_FIRST_CHARACTERS])
        return Detected(code_of[str(label)], float(confidence), is_only=False)

    def _identifier_of(self, codes: Sequence[str]) -> LanguageIdentifier | None:
        """What tells these languages apart, as far as it knows them; None where it knows less than two."""
        key = frozenset(map(_base, codes))
        if key not in self._identifiers:
            known = sorted(key & set(map(str, self._whole.labels)))
            found = copy(self._whole) if len(known) > 1 else None
            if found is not None:
                found.set_languages(known)  # takes as long as many detections
            self._identifiers[key] = found
        return self._identifiers[key]

    @cached_property
    def _identifiers(self) -> dict[frozenset[str], LanguageIdentifier | None]:
        """By languages: as many as there are different sets of sources to a target."""
        return {}

    @cached_property
    def _whole(self) -> LanguageIdentifier:
        # Read when the models are loaded: importing it takes longer than the rest of the server.
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _base(code: str) -> str:
    return re.split("[-_]", code, maxsplit=1)[0].lower()
