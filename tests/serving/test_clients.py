"""Clients that people already have, unchanged, over a socket: LibreTranslate's and DeepL's."""

from __future__ import annotations

import html
import urllib.error
from typing import Any
from urllib.parse import urlencode

import deepl
import pytest
from deep_translator import LibreTranslator
from libretranslatepy import LibreTranslateAPI

from nmt_cli.api import Translator
from tests.serving.servers import FORM, MULTIPART, Server, form_body

TEXT = "the old sea"


@pytest.fixture(scope="module")
def expected(translator: Translator) -> str:
    return translator.translate([TEXT])[0].text


@pytest.fixture(autouse=True)
def _no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepl.http_client, "max_network_retries", 0)


def translate_text(client: deepl.DeepLClient, text: str, **options: Any) -> deepl.TextResult:
    """The translation of one text; the client's own type may be a list."""
    result = client.translate_text(text, **options)
    assert isinstance(result, deepl.TextResult)
    return result


def test_libretranslatepy(server: Server, strict: Server, expected: str) -> None:
    client = LibreTranslateAPI(server.url)
    assert client.translate(TEXT, "en", "de") == expected
    assert client.detect("ein kleines Haus steht am alten Meer")[0]["language"] == "de"
    assert client.languages() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": ["en"]},
    ]
    assert LibreTranslateAPI(strict.url, "alice-secret-key").translate(TEXT, "en", "de") == expected
    with pytest.raises(urllib.error.HTTPError, match="403"):
        LibreTranslateAPI(strict.url, "wrong-secret-key").translate(TEXT, "en", "de")


def test_deep_translator(server: Server, strict: Server, expected: str) -> None:
    client = LibreTranslator(source="en", target="de", api_key="any", custom_url=f"{server.url}/")
    assert client.translate(TEXT) == expected
    assert client.translate_batch([TEXT, TEXT]) == [expected, expected]
    client = LibreTranslator(source="en", target="de", api_key="alice-secret-key", custom_url=f"{strict.url}/")
    assert client.translate(TEXT) == expected


def test_deepl(server: Server, expected: str) -> None:
    client = deepl.DeepLClient("any", server_url=server.url)
    result = translate_text(client, TEXT, source_lang="EN", target_lang="DE")
    assert (result.text, result.detected_source_lang, result.billed_characters) == (expected, "EN", len(TEXT))
    both = client.translate_text([TEXT, "das Meer"], target_lang="DE", source_lang="EN")
    assert isinstance(both, list)
    assert (len(both), both[0].text) == (2, expected)
    found = translate_text(client, "ein kleines Haus steht am alten Meer", target_lang="EN-US")
    assert found.detected_source_lang == "DE"
    assert [language.code for language in client.get_source_languages()] == ["EN", "DE"]
    assert [language.name for language in client.get_target_languages()] == ["German", "English"]
    usage = client.get_usage()
    assert not usage.any_limit_reached
    assert usage.character.count is not None
    assert usage.character.count >= len(TEXT)


def test_deepl_with_keys(strict: Server, expected: str) -> None:
    client = deepl.DeepLClient("alice-secret-key", server_url=strict.url)
    result = translate_text(client, TEXT, target_lang="DE")
    assert result.text == expected
    with pytest.raises(deepl.AuthorizationException):
        deepl.DeepLClient("wrong-secret-key", server_url=strict.url).translate_text(TEXT, target_lang="DE")
    with pytest.raises(deepl.DeepLException, match="too many"):
        client.translate_text(["x"] * 5, target_lang="DE")
    with pytest.raises(deepl.DeepLException, match="'formality' is not supported for given 'target_lang'"):
        client.translate_text(TEXT, target_lang="DE", formality=deepl.Formality.MORE)
    with pytest.raises(deepl.DeepLException, match="Glossary not found"):
        client.translate_text(TEXT, source_lang="EN", target_lang="DE", glossary="def3a26b-3e84-45b3-84ae-0c0aaf3525f7")
    limited = deepl.DeepLClient("bob-secret-key", server_url=strict.url)
    with pytest.raises(deepl.DeepLException, match="this counts as 3 requests, and this key has 2 per minute") as error:
        limited.translate_text(["sea"] * 3, target_lang="DE")
    assert (error.value.http_status_code, error.value.should_retry) == (413, False)
    for _ in range(2):
        limited.translate_text("sea", target_lang="DE")
    with pytest.raises(deepl.TooManyRequestsException):
        limited.translate_text("sea", target_lang="DE")


def test_wishes_of_deepls_clients_are_taken(server: Server, expected: str) -> None:
    client = deepl.DeepLClient("any", server_url=server.url)
    result = translate_text(
        client,
        f"{TEXT}\n",
        source_lang="EN",
        target_lang="DE",
        context="by the house",
        split_sentences=deepl.SplitSentences.NO_NEWLINES,
        preserve_formatting=True,
        formality=deepl.Formality.PREFER_MORE,
        outline_detection=False,
        model_type="quality_optimized",
    )
    assert (result.text, result.model_type_used) == (f"{expected}\n", "quality_optimized")
    assert server.post("/v2/translate", {"text": TEXT, "target_lang": "DE"}).json["translations"][0].keys() == {
        "text",
        "detected_source_language",
        "billed_characters",
    }


def test_deepls_clients_find_no_rules_and_memories(server: Server) -> None:
    client = deepl.DeepLClient("any", server_url=server.url)
    assert client.get_all_style_rules() == []
    assert client.list_translation_memories() == []
    with pytest.raises(deepl.GlossaryNotFoundException, match="message: Glossary not found"):
        client.get_multilingual_glossary("def3a26b-3e84-45b3-84ae-0c0aaf3525f7")


def test_deepls_newer_lists_of_languages(server: Server, strict: Server) -> None:
    found = server.get("/v3/languages?resource=translate_text").json
    assert [(one["lang"], one["name"], one["usable_as_source"], one["usable_as_target"]) for one in found] == [
        ("en", "English", True, True),
        ("de", "German", True, True),
    ]
    keys = {"Authorization": "DeepL-Auth-Key alice-secret-key"}
    (english, german) = strict.get("/v3/languages?resource=translate_text", **keys).json
    assert (english["usable_as_target"], german["usable_as_source"]) == (False, False)
    assert list(english["features"]) == ["auto_detection"]
    assert german["features"] == {}
    assert server.get("/v3/languages?resource=voice").json == []
    missing = server.get("/v3/languages")
    assert (missing.status, set(missing.json)) == (400, {"message"})


@pytest.mark.parametrize("path", ["/translate/", "//translate", "/v2/translate/", "//v2//translate"])
def test_needless_slashes_of_a_path_change_nothing(server: Server, path: str) -> None:
    asked = {"q": TEXT, "text": TEXT, "source": "en", "target": "de", "target_lang": "DE"}
    answer = server.post(path, asked)
    assert (answer.status, answer.json) == (200, server.post(path.replace("//", "/").removesuffix("/"), asked).json)
    assert server.get("/docs/").body == server.get("/docs").body


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"formality": "less"}, "'formality' is not supported for given 'target_lang' (take prefer_less,"),
        ({"custom_instructions": ["Be brief."]}, "custom_instructions is not supported"),
        ({"split_sentences": 2}, "Invalid request: split_sentences: "),
        ({"split_sentences": "nonewlines", "text": "the\nsea"}, "a line break of plain text ends a sentence"),
    ],
)
def test_what_would_be_another_translation_at_deepls_is_refused(
    server: Server, change: dict[str, Any], message: str
) -> None:
    answer = server.post("/v2/translate", {**DEEPL, **change})
    assert (answer.status, set(answer.json)) == (400, {"message"})
    assert answer.json["message"].startswith(message)


@pytest.mark.parametrize(
    ("markup", "texts"),
    [
        ("{}", ['Tom & the sea\'s "house" < that, &amp;']),
        ("{}", ["I <3 x<y"]),
        ("<p>{}</p>", [TEXT]),
        ('<p dir="auto">{}<br />{}</p>\n\n<P>{}</P>\n', [TEXT, "the & sea", "a house"]),
        ("<h2>{}</h2><div>\n<ul>\n<li>{}</li></ul></div>", ["the house", TEXT]),
    ],
)
def test_markup_is_plain_text_for_the_model_and_markup_again_in_the_answer(
    server: Server, translator: Translator, markup: str, texts: list[str]
) -> None:
    sent = markup.format(*map(html.escape, texts))
    expected = markup.format(*(html.escape(one.text, quote=False) for one in translator.translate(texts)))
    assert server.post("/translate", FIELDS | {"q": sent, "format": "html"}).json["translatedText"] == expected
    for kind in ("html", "xml") if markup == "{}" else ("html",):  # XML has no blocks of its own
        asked = DEEPL | {"text": sent, "tag_handling": kind}
        assert server.post("/v2/translate", asked).json["translations"][0]["text"] == expected


@pytest.mark.parametrize("kind", ["", None, "text"])
@pytest.mark.parametrize(
    ("markup", "texts"),
    [
        ("{} <b>{}</b> {}", ["the old", "sea", "stands"]),
        ("{}<br/>{}", ["the house", TEXT]),
        ('<a href="/x>y">{}</a><!-- sea -->', [TEXT]),
        ("{}", ["x <y and y> z, I <3 a < b <- c"]),
    ],
)
def test_tags_in_plain_text_stay_as_they_are(
    server: Server, translator: Translator, kind: str | None, markup: str, texts: list[str]
) -> None:
    sent, expected = markup.format(*texts), markup.format(*(one.text for one in translator.translate(texts)))
    assert server.post("/translate", FIELDS | {"q": sent, "format": kind}).json["translatedText"] == expected
    own = {"text": sent, "source": "en", "target": "de"}
    assert server.post("/v1/translate", own).json["translations"][0]["text"] == expected
    asked = DEEPL | {"text": sent, "tag_handling": "" if kind else None}
    assert server.post("/v2/translate", asked).json["translations"][0]["text"] == expected


FIELDS = {"q": TEXT, "source": "en", "target": "de"}
KEY_HINT = (
    "send one as Authorization: Bearer KEY, X-API-Key: KEY, Authorization: DeepL-Auth-Key KEY,"
    " LibreTranslate's api_key or DeepL's auth_key"
)
DEEPL = {"text": TEXT, "source_lang": "EN", "target_lang": "DE"}


def test_json_forms_and_query_strings_say_the_same(server: Server, expected: str) -> None:
    answers = [
        server.post("/translate", FIELDS),
        server.post("/translate", urlencode(FIELDS).encode(), Content_Type=FORM),
        server.post("/translate", form_body(FIELDS.items()), Content_Type=MULTIPART),
        server.post(f"/translate?{urlencode(FIELDS)}", b""),
        server.post(f"/translate?{urlencode(FIELDS | {'q': 'other'})}", {"q": TEXT}),
    ]
    assert [answer.json for answer in answers] == [{"translatedText": expected}] * 5


def test_lists_alternatives_and_detection(server: Server, translator: Translator) -> None:
    asked: dict[str, Any] = {"q": [TEXT, "the sea"], "source": "auto", "target": "de", "alternatives": 2}
    answer = server.post("/translate", asked).json
    translations = translator.translate([TEXT, "the sea"], beam=3, nbest=3)
    assert answer["translatedText"] == [one.text for one in translations]
    assert answer["alternatives"] == [[other.text for other in one.alternatives] for one in translations]
    assert [one["language"] for one in answer["detectedLanguage"]] == ["en", "en"]
    assert all(0 < one["confidence"] <= 100 for one in answer["detectedLanguage"])


def test_lines_of_a_form_end_as_libretranslate_ends_them(server: Server) -> None:
    form = urlencode({"q": "the\r\nsea", "source": "en", "target": "de"}).encode()
    assert "\r" not in server.post("/translate", form, Content_Type=FORM).json["translatedText"]
    assert "\r\n" in server.post("/translate", FIELDS | {"q": "the\r\nsea"}).json["translatedText"]


def test_what_a_page_of_libretranslate_asks_for(server: Server, strict: Server) -> None:
    settings = server.get("/frontend/settings").json
    assert (settings["charLimit"], settings["keyRequired"]) == (10_000, False)
    assert settings["language"]["source"] == {"code": "en", "name": "English"}
    assert strict.get("/frontend/settings").json["keyRequired"] is True
    only = strict.post("/translate", {**FIELDS, "source": "auto", "api_key": "alice-secret-key"}).json
    assert only["detectedLanguage"]["language"] == "en"
    assert 0 < only["detectedLanguage"]["confidence"] < 100


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"q": []}, 400, "Invalid request: missing q parameter"),
        ({"source": None}, 400, "Invalid request: missing source parameter"),
        ({"target": "xx"}, 400, "xx is not supported (target: one of de)"),
        ({"alternatives": 3}, 400, "3 alternatives are too many (ask for at most 2)"),
        ({"q": ["x"] * 5}, 413, "5 texts are too many (send at most 4)"),
        ({"q": "x" * 201}, 413, "201 characters in a text are too many (send at most 200)"),
        ({"api_key": None}, 400, f"this server needs an API key ({KEY_HINT})"),
        ({"api_key": "wrong-secret-key"}, 403, "Invalid API key"),
    ],
)
def test_refusals_have_libretranslates_form(strict: Server, change: dict[str, Any], status: int, message: str) -> None:
    answer = strict.post("/translate", {**FIELDS, "api_key": "alice-secret-key", **change})
    assert answer.status == status
    assert set(answer.json) == {"error"}
    assert answer.json["error"].startswith(message)


def test_the_characters_of_a_refused_request_are_not_counted(strict: Server) -> None:
    def count() -> int:
        usage = strict.get("/v2/usage", Authorization="DeepL-Auth-Key carol-secret-key").json
        characters: int = usage["character_count"]
        return characters

    before = count()
    asked = {"text": "The sea. The house.", "prefix": "Das"}  # a prefix is of one sentence
    for fields, status in ((asked, 400), ({"text": "sea"}, 200)):
        for stream in (False, True):
            answer = strict.post("/v1/translate", {**fields, "stream": stream}, X_API_Key="carol-secret-key")
            assert answer.status == status
    assert count() == before + 2 * len("sea")


@pytest.mark.parametrize("name", ["auth_key", "api_key"])
def test_keys_are_taken_from_fields_and_the_query_string(strict: Server, name: str) -> None:
    path, asked = ("/v2/translate", DEEPL) if name == "auth_key" else ("/translate", FIELDS)
    for key, status in (("alice-secret-key", 200), ("wrong-secret-key", 403)):
        form = urlencode(asked | {name: key}).encode()
        assert strict.post(path, form, Content_Type=FORM).status == status
        assert strict.post(path, asked | {name: key}).status == status
        assert strict.post(f"{path}?{name}={key}", asked).status == status
    assert strict.get("/v2/usage?auth_key=alice-secret-key").status == 200
    assert "alice-secret-key" not in strict.log


def test_keys_are_taken_from_headers_too(strict: Server) -> None:
    asked = {"text": "sea"}
    missing = strict.post("/v1/translate", asked)
    assert (missing.status, missing.json["error"]["hint"]) == (401, KEY_HINT)
    assert strict.post("/v1/translate", asked, Authorization="Bearer alice-secret-key").status == 200
    assert strict.post("/v1/translate", asked, X_API_Key="alice-secret-key").status == 200
    assert strict.post("/v1/translate", asked, X_API_Key="alice-secret-kex").status == 403
    assert strict.get("/v2/usage", Authorization="DeepL-Auth-Key alice-secret-key").json["character_count"] > 0
    assert "alice-secret-key" not in strict.log
    assert '"client": "alice"' in strict.log
