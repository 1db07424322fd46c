"""Texts in segments, languages by their codes, keys and their rates."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from nmt_cli.errors import DataError
from nmt_cli.languages import Detector
from nmt_cli.serving.api.deepl import DeepLTranslateRequest, refuse_unsupported
from nmt_cli.serving.api.requests import watch_caller
from nmt_cli.serving.errors import RequestError
from nmt_cli.serving.keys import read_keys
from nmt_cli.serving.metrics import ServerMetrics
from nmt_cli.serving.models import ServedModel
from nmt_cli.serving.routing import ModelRouter
from nmt_cli.serving.texts import segment_text
from nmt_cli.tokenization.segmentation import split_sentences
from tests.serving.servers import MODEL_SETTINGS, save_model

TEXT = "  One. Two!\r\n\r\n\tThree, four? \n"


def test_whitespace_and_line_breaks_stay() -> None:
    whole = segment_text(TEXT, fits=lambda text: True, by_sentence=False)
    assert whole.sentences == ["One. Two!", "Three, four?"]
    assert whole.join(["Eins.", "Drei?"]) == "  Eins.\r\n\r\n\tDrei? \n"
    sentences = segment_text(TEXT, fits=lambda text: True, by_sentence=True)
    assert sentences.sentences == ["One.", "Two!", "Three, four?"]
    parts = segment_text(TEXT, fits=lambda text: len(text) <= 6, by_sentence=False)
    assert parts.sentences == ["One.", "Two!", "Three,", "four?"]
    assert parts.join(["1", "2", "3", "4"]) == "  1 2\r\n\r\n\t3 4 \n"


@pytest.mark.parametrize(
    "text", ["." * 10_000, "x" * 5000 + " ." * 2500, ". " * 5000, "a. " * 3333, "。" * 10_000, "a" + " " * 9998 + "b"]
)
def test_no_text_takes_quadratic_time(text: str) -> None:
    started = time.process_time()
    found = segment_text(text, fits=lambda text: True, by_sentence=True)
    assert time.process_time() - started < 0.3  # linear: 0.02 s; it was seconds to minutes
    assert found.join(found.sentences) == text


def test_marks_at_the_end_are_no_sentence() -> None:
    assert split_sentences("好。。") == ["好。。"]


def is_short(longest: int, text: str) -> bool:
    return len(text) <= longest


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("One. Two! Three? Four", ["One. ", "Two! ", "Three? ", "Four"]),
        ("Mr. Smith met Dr. J. R. Brown. He left.", ["Mr. Smith met Dr. J. R. Brown. ", "He left."]),
        ("Am 3. Mai, z. B. um 5.30 Uhr. Gut.", ["Am 3. Mai, z. B. um 5.30 Uhr. ", "Gut."]),
        ("He said: “Go!” Then he went.", ["He said: “Go!” ", "Then he went."]),
        ("wait... what? no.", ["wait... what? no."]),
        ("Er kam … Sie ging. „Halt!“, rief er.", ["Er kam … ", "Sie ging. ", "„Halt!“, rief er."]),
        ("今日は。元気？はい", ["今日は。", "元気？", "はい"]),
        ("The U.S. Senate voted. ¿Qué? No!", ["The U.S. Senate voted. ", "¿Qué? ", "No!"]),
        ("", []),
    ],
)
def test_sentences_of_a_line(line: str, sentences: list[str]) -> None:
    assert split_sentences(line) == sentences


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from(" \n\r\t.!\u2028"), max_size=80))
def test_nothing_is_lost_between_sentences(text: str) -> None:
    for longest in (4, 1000):
        found = segment_text(text, fits=partial(is_short, longest), by_sentence=longest > 4)
        assert found.join(found.sentences) == text
        assert all(sentence == sentence.strip() != "" for sentence in found.sentences)
        assert all(not gap.strip() for gap in found.gaps)


def test_control_characters_are_spaces_to_the_model() -> None:
    assert segment_text("a\x00b\x07c", fits=lambda text: True, by_sentence=True).sentences == ["a b c"]
    assert segment_text("\x00", fits=lambda text: True, by_sentence=True).sentences == []


def test_a_text_is_detected_among_the_languages_of_the_models_to_the_target(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    german = "Das Haus steht am alten Meer."

    async def run() -> ModelRouter:
        paths = [*models.values(), save_model(tmp_path / "en-fr", "en", "fr")]
        return ModelRouter([ServedModel(path, MODEL_SETTINGS, ServerMetrics()) for path in paths])

    served = asyncio.run(run())
    found = served.route("auto", "FR", text=german)
    assert found.model.name == "en-fr"
    assert found.detected is not None
    assert found.detected.is_only
    assert served.route(None, None, text=german).model.name == "de-en"
    with pytest.raises(RequestError, match="the target language is missing, and the text was detected as en") as error:
        served.route(None, None, text="The house stands by the old sea.")
    assert error.value.hint == "give target: one of de, fr; or give source, if the text is in another language"
    with pytest.raises(RequestError, match="de to fr is not supported") as error:
        served.route("de", "fr", text=german)
    assert error.value.hint == "give source and target of one of the models: en-de, de-en, en-fr"
    with pytest.raises(RequestError, match="it is not supported") as error:
        served.route("auto", "it", text=german)
    assert error.value.hint == "target: one of de, en, fr"
    monkeypatch.setattr(Detector, "detect", lambda self, text, among: None)
    with pytest.raises(RequestError, match="these languages cannot be told apart by their text") as error:
        served.detect(german)
    assert error.value.hint == f"give the source language: one of {', '.join(served.sources)}"


def test_a_key_refills_evenly(tmp_path: Path) -> None:
    now = 0.0
    file = tmp_path / "keys"
    file.write_text("bob bob-secret-key 2\ncarol carol-secret-key 2 operator\n")
    keys = read_keys(file, clock=lambda: now)
    client, operator = keys.find("bob-secret-key"), keys.find("carol-secret-key")
    assert client is not None
    assert operator is not None
    assert (client.is_operator, operator.is_operator) == (False, True)
    client.spend(1)
    client.spend(1)
    with pytest.raises(RequestError, match="used its 2 requests a minute") as error:
        client.spend(1)
    assert (error.value.status, error.value.retry_after_seconds) == (429, 30)
    now = 30.0
    with pytest.raises(RequestError, match="this key has fewer than 2 left of its 2 requests a minute") as error:
        client.spend(2)
    assert (error.value.hint, error.value.retry_after_seconds) == ("try again in 30 s", 30)
    client.spend(1)  # what was refused took nothing
    now = 90.0
    client.spend(2)


def test_no_request_is_worth_more_than_a_key_ever_has(tmp_path: Path) -> None:
    now = 0.0
    file = tmp_path / "keys"
    file.write_text("bob bob-secret-key 60\nrare rare-secret-key 0.5\n")
    keys = read_keys(file, clock=lambda: now)
    bob, rare = keys.find("bob-secret-key"), keys.find("rare-secret-key")
    assert bob is not None
    assert rare is not None
    with pytest.raises(RequestError, match="1,000 texts are more than the 60 requests a minute of this key") as error:
        bob.spend(1000)
    # Not 429: DeepL's clients would send it again and again.
    assert (error.value.status, error.value.code, error.value.retry_after_seconds) == (413, "too_large", None)
    assert error.value.hint == "send at most 60 texts in a request"
    bob.spend(60)
    rare.spend(1)
    with pytest.raises(RequestError, match=r"used its 0\.5 requests a minute") as error:
        rare.spend(1)
    assert error.value.retry_after_seconds == 120
    now = 120.0
    rare.spend(1)


@pytest.mark.parametrize(
    ("state", "address", "name"),
    [({"client": "alice"}, ("192.0.2.1", 5), "alice"), ({}, ("192.0.2.1", 5), "192.0.2.1"), ({}, None, "")],
)
def test_who_asks_is_the_owner_of_the_key_or_else_an_address(
    state: dict[str, str], address: tuple[str, int] | None, name: str
) -> None:
    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def run() -> str:
        async with watch_caller(Request({"type": "http", "state": state, "client": address}, never)) as caller:
            return caller.name

    assert asyncio.run(run()) == name


def test_a_number_is_as_good_as_its_digits() -> None:
    asked = {"text": "the sea", "target_lang": "DE", "split_sentences": 0}
    assert DeepLTranslateRequest.model_validate(asked).split_sentences == "0"


@pytest.mark.parametrize(("text", "is_taken"), [("\nsea", True), ("sea\n \n", True), ("", True), ("the\n\nsea", False)])
def test_only_a_line_break_inside_a_text_is_too_many_for_nonewlines(text: str, is_taken: bool) -> None:
    asked = DeepLTranslateRequest(text=["the sea", text], target_lang="DE", split_sentences="nonewlines")
    if is_taken:
        refuse_unsupported(asked)
        return
    with pytest.raises(RequestError, match="a line break ends a sentence") as error:
        refuse_unsupported(asked)
    assert error.value.hint == "put each sentence on one line, or leave split_sentences out"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alice alice-secret-key", "line 1 is not a key"),
        ("# none\n", "keys has no keys"),
        ("\nalice secret 5", "the key of alice has fewer than 8 characters"),
        ("a same-secret 5\nb same-secret 5", "the key of b is there twice"),
        ("a long-secret 0", "line 1 is not a key"),
        ("a long-secret 5 boss", "line 1 is not a key"),
        ("a long-secret operator", "line 1 is not a key"),
        ("a long-secret nan", "line 1 is not a key"),
    ],
)
def test_a_wrong_key_file_is_refused_by_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(DataError, match=message) as error:
        read_keys(file, clock=lambda: 0.0)
    assert error.value.hint
    assert "secret" not in error.value.message
    with pytest.raises(DataError, match="the keys cannot be read"):
        read_keys(tmp_path / "none", clock=lambda: 0.0)
