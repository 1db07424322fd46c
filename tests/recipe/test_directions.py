"""Which direction a model translates in: by the codes of languages, or by one that is left out."""

from __future__ import annotations

from typing import Any

import pytest

from nmt_cli.errors import UsageError
from nmt_cli.recipe.directions import Directions
from nmt_cli.recipe.schema import LanguagePair
from tests.artifacts.builders import single

SINGLE = single("en", "de")
SYMBOLS = {"de": "<2de>", "en": "<2en>", "fr": "<2fr>"}
PAIRS = [LanguagePair(source=source, target=target) for source, target in (("en", "de"), ("de", "en"), ("en", "fr"))]
SEVERAL = Directions(pairs=PAIRS, target_symbols=SYMBOLS)
NLLB = {"deu_Latn": "deu_Latn", "eng_Latn": "eng_Latn", "zho_Hant": "zho_Hant", "zho_Hans": "zho_Hans"}
HUNDRED = Directions(source_symbols=NLLB, target_symbols=NLLB, target_symbol_on="target")


def test_a_single_direction_is_written_as_two_codes() -> None:
    values = {"source": "en", "target": "de"}
    assert SINGLE.model_dump() == values
    assert Directions.model_validate(values) == SINGLE
    assert Directions.model_validate(SEVERAL.model_dump()) == SEVERAL
    assert (SINGLE.title, str(SEVERAL)) == ("en to de", "en-de, de-en, en-fr")
    assert "--from eng_Latn --to deu_Latn" in HUNDRED.decode_command("nllb")


@pytest.mark.parametrize(
    ("directions", "source", "target", "found"),
    [
        (SINGLE, None, None, ("en-de", (), ())),
        (SINGLE, "EN-US", "deu", ("en-de", (), ())),
        (SEVERAL, None, "fr", ("en-fr", ("<2fr>",), ())),
        (SEVERAL, None, "en", ("de-en", ("<2en>",), ())),
        (SEVERAL, "de", None, ("de-en", ("<2en>",), ())),
        (SEVERAL, "de", "fr", ("de-fr", ("<2fr>",), ())),
        (HUNDRED, "en", "de", ("eng_Latn-deu_Latn", ("eng_Latn",), ("deu_Latn",))),
        (HUNDRED, "en", "zh-TW", ("eng_Latn-zho_Hant", ("eng_Latn",), ("zho_Hant",))),
    ],
)
def test_a_direction_is_found_by_what_is_said(
    directions: Directions, source: str | None, target: str | None, found: tuple[Any, ...]
) -> None:
    direction = directions.find(source, target)
    assert (str(direction.languages), direction.source_symbols, direction.target_symbols) == found


@pytest.mark.parametrize(
    ("directions", "source", "target", "setting", "fix"),
    [
        (SEVERAL, "en", None, "to", 'to="de"'),
        (SINGLE, None, "fr", "to", 'to="de"'),
        (SINGLE, "de", None, "from", 'from_="en"'),
        (HUNDRED, None, "de", "from", 'from_="eng_Latn"'),
        (SEVERAL, None, "xx", "to", 'to="de"'),
        (SEVERAL, None, "french", "to", 'to="fr"'),
        (HUNDRED, "en-Cyrl", "de", "from", 'from_="eng_Latn"'),
        (SEVERAL, "en", "en", "to", "two languages"),
    ],
)
def test_what_is_missing_or_unknown_is_answered_with_the_languages(
    directions: Directions, source: str | None, target: str | None, setting: str, fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        directions.find(source, target)
    assert caught.value.setting == setting
    assert fix in str(caught.value)
