"""Our own API over a socket, and that what a server answers is what `nmt decode` does."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nmt_cli.api import Translator
from tests.decoding.test_translator import lines_of_words
from tests.serving.servers import Answer, Server
from tests.waiting import wait_until


def test_a_translation_is_that_of_decode(server: Server, translator: Translator) -> None:
    answer = server.post("/v1/translate", {"text": "the old sea", "source": "en", "nbest": 2})
    assert answer.status == 200
    (best,) = translator.translate(["the old sea"], nbest=2)
    (found,) = answer.json["translations"]
    assert found["text"] == best.text
    assert found["score"] == pytest.approx(best.score, abs=1e-4)  # batches differ, and with them the order of sums
    assert found["alternatives"][0]["text"] == best.alternatives[0].text
    assert found["sentences"][0]["source"] == "the old sea"
    assert {answer.json[name] for name in ("source", "target", "detection")} == {"en", "de", "given"}


def test_many_clients_at_once_get_what_decode_answers(server: Server, translator: Translator) -> None:
    lines = lines_of_words(160)
    expected = [translation.text for translation in translator.translate(lines)]

    def ask(line: str) -> str:
        answer = server.post("/v1/translate", {"text": line, "source": "en", "target": "de"})
        text: str = answer.json["translations"][0]["text"]
        return text

    before = server.metric('nmt_batch_sentences_count{model="en-de"}')
    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(ask, lines)) == expected
    # They were translated together, not one by one.
    assert server.metric('nmt_batch_sentences_count{model="en-de"}') - before < 80


def test_a_text_keeps_its_layout_and_long_lines_are_split(server: Server, translator: Translator) -> None:
    text = "\n  the old sea \r\n\r\n" + "The old sea stands by a small house. " * 12 + "\n"
    answer = server.post("/v1/translate", {"text": text, "source": "en"})
    (found,) = answer.json["translations"]
    sentences = [sentence["source"] for sentence in found["sentences"]]
    assert sentences == ["the old sea"] + ["The old sea stands by a small house."] * 12
    whole = server.post("/v1/translate", {"text": text, "source": "en", "split_sentences": "never"}).json[
        "translations"
    ][0]
    assert 1 < len(whole["sentences"]) < 13
    assert " ".join(sentences) == " ".join(text.split())
    translated = [translation.text for translation in translator.translate(sentences)]
    assert found["text"].startswith(f"\n  {translated[0]} \r\n\r\n{translated[1]} ")
    assert found["text"].endswith(f"{translated[-1]} \n")


def test_blank_texts_stay_as_they_are(server: Server) -> None:
    blank = ["", " \n\t", "\u3000", "\n"]
    answer = server.post("/v1/translate", {"text": blank, "source": "en"})
    assert [one["text"] for one in answer.json["translations"]] == blank
    assert server.post("/v1/translate", {"text": [], "source": "en"}).json["translations"] == []


def test_options_reach_the_search(server: Server, translator: Translator) -> None:
    options = {"beam": 4, "length_penalty": 2.0, "max_extra_tokens": 1}
    answer = server.post("/v1/translate", {"text": "the old sea", "source": "en", **options})
    (expected,) = translator.translate(["the old sea"], beam=4, length_penalty=2.0, max_extra_tokens=1)
    assert answer.json["translations"][0]["score"] == round(expected.score, 6)


def test_a_translation_goes_on_from_a_prefix(server: Server) -> None:
    asked = {"text": "the old sea", "source": "en", "prefix": "am alten", "nbest": 4}
    (found,) = server.post("/v1/translate", asked).json["translations"]
    texts = [found["text"], *(other["text"] for other in found["alternatives"])]
    assert len(texts) == 4
    assert len(set(texts)) > 1
    assert all(text.startswith("am alten") for text in texts)


def test_texts_are_streamed_in_order(server: Server, translator: Translator) -> None:
    lines = lines_of_words(40)
    answer = server.post("/v1/translate", {"text": lines, "source": "en", "stream": True})
    assert answer.headers["content-type"] == "application/x-ndjson"
    found = [json.loads(line)["text"] for line in answer.body.decode().splitlines()]
    assert found == [translation.text for translation in translator.translate(lines)]


def test_alignments_and_attention(server: Server) -> None:
    answer = server.post("/v1/translate", {"text": "the old sea", "source": "en", "alignments": True})
    (sentence,) = answer.json["translations"][0]["sentences"]
    words = len(sentence["text"].split())
    assert {target for _, target in sentence["alignment"]} <= set(range(words))
    assert {source for source, _ in sentence["alignment"]} <= {0, 1, 2}
    assert sentence["alignment"]
    asked = {"text": "the old sea", "translation": "das alte Meer", "source": "en"}
    found = server.post("/v1/attention", asked).json
    assert found["columns"] == ["the", "old", "sea", "</s>"]
    assert found["rows"] == ["das", "alte", "Meer", "</s>"]
    (layer,) = found["weights"]
    assert len(layer) == 2
    assert all(abs(sum(row) - 1) < 0.01 for head in layer for row in head)


def test_words_that_may_come_next_differ_and_the_best_is_first(server: Server, translator: Translator) -> None:
    asked = {"text": "the old sea", "prefix": "am  alten", "source": "en"}
    found = server.post("/v1/words", asked).json["words"]
    words = [one["word"] for one in found]
    assert 1 < len(set(words)) == len(words) <= 10
    assert [one["log_prob"] for one in found] == sorted((one["log_prob"] for one in found), reverse=True)
    for one in found:
        assert one["score"] == round(one["score"], 6)
        assert one["text"].split()[:3] == ["am", "alten", one["word"]]
        (again,) = translator.translate(["the old sea"], prefixes=[f"am alten {one['word']}"])
        assert one["log_prob"] <= again.log_prob + 1e-4
    begun = server.post("/v1/words", {"text": "the old sea", "source": "en"}).json["words"]
    assert translator.translate(["the old sea"])[0].text.split()[0] in [one["word"] for one in begun]


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({"text": "the old sea by {name}"}, "{name}"),
        ({"text": "the old sea at https://example.org/a?b=1", "prefix": "am"}, "https://example.org/a?b=1"),
        ({"text": "the old sea", "prefix": "am", "terms": {"sea": "Meer"}}, "Meer"),
    ],
)
def test_other_words_keep_what_a_translation_keeps(server: Server, asked: dict[str, object], kept: str) -> None:
    found = server.post("/v1/words", {"source": "en"} | asked).json["words"]
    assert [one["text"] for one in found if kept not in one["text"]] == []
    assert found


def test_other_words_of_a_line_in_capitals_are_those_of_its_sentence(server: Server) -> None:
    def ask(text: str, prefix: str) -> list[str]:
        asked = {"text": text, "source": "en", "prefix": prefix, "terms": {"sea": "Meer"}}
        return [f"{one['word']}: {one['text']}" for one in server.post("/v1/words", asked).json["words"]]

    found = ask("THE OLD SEA STANDS", "AM")
    assert found == [one.upper() for one in ask("The old sea stands", "Am")]
    assert any("MEER" in one for one in found)


@pytest.mark.parametrize(
    ("path", "asked", "field"),
    [
        ("translate", {"beam": 99}, "beam"),
        ("translate", {"nbest": 11}, "nbest"),
        ("translate", {"prefix": "a", "text": "a\nb"}, "prefix"),
        ("translate", {"prefix": "x " * 40}, "prefix"),
        ("translate", {"source": "fr"}, "source"),
        ("translate", {"target": "en"}, "target"),
        ("attention", {"translation": " "}, "translation"),
        ("words", {"text": " "}, "text"),
        ("words", {"text": "\u200b"}, "text"),
    ],
)
def test_requests_that_make_no_sense_are_refused_by_their_field(
    server: Server, path: str, asked: dict[str, object], field: str
) -> None:
    answer = server.post(f"/v1/{path}", {"text": "the old sea", "source": "en"} | asked)
    error = answer.json["error"]
    assert (answer.status, error["code"], error["where"]) == (400, "invalid_request", field)


@pytest.mark.parametrize(("field", "text"), [("text", "the old sea " * 60), ("prefix", "am Meer " * 60)])
def test_long_texts_are_not_looked_into(server: Server, field: str, text: str) -> None:
    answer = server.post("/v1/words", {"text": "the old sea", "source": "en", field: text})
    assert (answer.status, answer.json["error"]["where"]) == (413, field)
    assert answer.json["error"]["message"] == f"the {field} is too long to look into"


@pytest.mark.parametrize("text", ["OK", "2016", "Hotel", "😀", "", " \n"])
def test_a_text_of_any_look_is_translated_into_the_target(server: Server, translator: Translator, text: str) -> None:
    expected = translator.translate([text])[0].text if any(map(str.isalpha, text)) else text
    ours = server.post("/v1/translate", {"text": text, "target": "de"}).json
    assert (ours["source"], ours["translations"][0]["text"]) == ("en", expected)
    assert ours["confidence"] < 0.1
    assert ours["detection"] == ("detected" if ours["confidence"] else "undecided")
    libre = server.post("/translate", {"q": text, "source": "auto", "target": "de"}).json
    assert libre["translatedText"] == expected
    assert libre["detectedLanguage"]["language"] == "en"
    assert libre["detectedLanguage"]["confidence"] < 10
    german = "ein kleines Haus steht am alten Meer"
    deepl = server.post("/v2/translate", {"text": [text, german], "target_lang": "DE"}).json["translations"]
    assert [one["text"] for one in deepl] == [expected, german]
    assert [one["detected_source_language"] for one in deepl] == ["EN", "DE"]
    assert server.post("/v1/translate", {"text": text}).status == 200


@pytest.mark.parametrize("is_streamed", [False, True])
def test_texts_in_the_language_of_the_target_stay_as_they_are(strict: Server, is_streamed: bool) -> None:
    texts = ["ein kleines Haus steht am alten Meer", " Das Meer ist alt. "]
    asked = {"text": texts, "target": "de", "stream": is_streamed}
    answer = strict.post("/v1/translate", asked, Authorization="Bearer alice-secret-key")
    if is_streamed:
        assert [json.loads(line)["text"] for line in answer.body.splitlines()] == texts
    else:
        assert (answer.json["source"], answer.json["detection"]) == ("de", "detected")
        assert [one["text"] for one in answer.json["translations"]] == texts


def test_health_readiness_metrics_and_documents(server: Server) -> None:
    assert server.get("/health").json == {"status": "ok"}
    assert server.get("/ready").json == {"status": "ready"}
    answer = server.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    names = {family.name for family in text_string_to_metric_families(answer.body.decode())}
    assert {"nmt_requests", "nmt_batch_tokens", "nmt_queue_sentences", "nmt_build_info", "nmt_tokens"} <= names
    assert "/v2/translate" in server.get("/openapi.json").json["paths"]
    page = server.get("/docs").body.decode()
    assert "/v1/translate" in page
    assert "http" not in page.replace("<!doctype html>", "")
    languages = page.split("<code>GET /v3/languages</code>")[1].split("<h2>")[0]
    assert "<td><code>resource</code></td>\n<td>string</td>\n<td>required</td>" in languages
    models = server.get("/v1/models").json
    assert [model["languages"][0] for model in models["models"]] == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": ["en"]},
    ]
    assert models["limits"]["characters"] == 10_000


def test_head_is_answered_as_get_without_a_body(server: Server) -> None:
    for path in ("/", "/docs", "/health", "/languages", "/nothing"):
        got, head = server.get(path), server.ask("HEAD", path)
        assert (head.status, head.body) == (got.status, b"")
        assert head.headers["content-length"] == got.headers["content-length"]
    assert server.ask("HEAD", "/translate").status == 405
    assert '"method": "HEAD", "endpoint": "/docs", "status": 200' in server.log


def test_the_log_and_the_metrics_have_no_text(server: Server) -> None:
    secret = "kleinesmeerhaus"
    for path in (f"/translate?q={secret}&source=en&target=de", f"/{secret}", f"/{secret}?q=1"):
        server.post(path, {"q": secret})
    server.post("/v1/translate", {"text": secret, "source": secret})
    assert secret not in server.log
    assert secret not in server.get("/metrics").body.decode()
    assert '"endpoint": "other", "status": 404' in server.log


def test_clients_that_vanish_leave_no_work_behind(server: Server) -> None:
    body = json.dumps({"text": lines_of_words(200), "source": "en"}).encode()
    head = f"POST /v1/translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    dropped = server.metric('nmt_dropped_sentences_total{model="en-de"}')
    for _ in range(4):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head.encode() + b"\r\n\r\n" + body)
    answer = server.post("/v1/translate", {"text": "the old sea", "source": "en"})
    assert answer.status == 200
    wait_until(lambda: server.metric('nmt_dropped_sentences_total{model="en-de"}') > dropped)
    wait_until(lambda: server.metric('nmt_queue_sentences{model="en-de"}') == 0)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_requests_of_the_documentation(server: Server, repository: Path) -> None:
    page = (repository / "docs/how-to/serve.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = [line[2:] for line in page.splitlines() if line.startswith("$ curl ")]
    assert len(commands) >= 3
    for command in commands:
        shown = command.replace("http://127.0.0.1:8000", server.url)
        done = subprocess.run(["bash", "-c", f"{shown} --fail --silent"], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)


def test_more_than_the_queue_holds_is_refused_at_once(strict: Server) -> None:
    asked = {"text": "the old sea\nby the sea\nthe house\nam Meer"}

    def ask(number: int) -> Answer:
        return strict.post("/v1/translate", asked, X_API_Key="alice-secret-key")

    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(ask, range(96)))
    assert {answer.status for answer in answers} == {200, 503}
    for answer in answers:
        if answer.status == 503:
            assert answer.json["error"]["code"] == "busy"
            assert int(answer.headers["retry-after"]) >= 1
    assert len({answer.body for answer in answers if answer.status == 200}) == 1
