"""Glossaries as DeepL's client makes them, and what they do to a translation."""

from __future__ import annotations

import io
import json
from pathlib import Path

import deepl
import pytest
from deepl.api_data import MultilingualGlossaryDictionaryEntries

from nmt_cli.errors import UsageError
from nmt_cli.serving.glossaries import Dictionary, GlossaryStore
from nmt_cli.serving.keys import KeyOwner
from nmt_cli.serving.request_errors import RequestError
from tests.serving.servers import Server, save_model
from tests.serving.test_clients import translate_text

ENTRIES = {"sea": "Meer", "house": "Haus"}
JSON = {"Content-Type": "application/json"}
UNKNOWN = "def3a26b-3e84-45b3-84ae-0c0aaf3525f7"


@pytest.fixture
def client(server: Server) -> deepl.DeepLClient:
    return deepl.DeepLClient("any", server_url=server.url)


@pytest.mark.usefixtures("hurried_deepl")
def test_a_glossary_of_version_2_is_made_used_and_deleted(client: deepl.DeepLClient) -> None:
    assert {(one.source_lang, one.target_lang) for one in client.get_glossary_languages()} == {
        ("en", "de"),
        ("de", "en"),
    }
    made = client.create_glossary("ships", "EN", "DE", ENTRIES)
    assert (made.name, made.source_lang, made.target_lang, made.entry_count, made.ready) == (
        "ships",
        "EN",
        "DE",
        2,
        True,
    )
    assert client.get_glossary(made.glossary_id).creation_time == made.creation_time
    assert [one.glossary_id for one in client.list_glossaries()] == [made.glossary_id]
    assert client.get_glossary_entries(made) == ENTRIES
    plain = translate_text(client, "the old sea", source_lang="EN", target_lang="DE")
    found = translate_text(client, "the old sea", source_lang="EN", target_lang="DE", glossary=made)
    assert "Meer" in found.text.split()
    assert "Meer" not in plain.text
    marked = translate_text(
        client, "<b>the old</b> sea. The house.", source_lang="EN", target_lang="DE", glossary=made, tag_handling="html"
    )
    assert marked.text.count("<b>") == marked.text.count("Meer") == marked.text.count("Haus") == 1
    out = io.BytesIO()
    client.translate_document(
        "<p>the sea", out, filename="a.html", source_lang="EN", target_lang="DE", glossary=made.glossary_id
    )
    assert b"Meer" in out.getvalue()
    client.delete_glossary(made)
    assert client.list_glossaries() == []
    with pytest.raises(deepl.GlossaryNotFoundException, match="Glossary not found"):
        client.get_glossary(made.glossary_id)
    with pytest.raises(deepl.DeepLException, match="Glossary not found"):
        client.translate_text("the sea", source_lang="EN", target_lang="DE", glossary=made)


def test_a_glossary_of_version_3_has_dictionaries_that_change(client: deepl.DeepLClient) -> None:
    entries = MultilingualGlossaryDictionaryEntries
    made = client.create_multilingual_glossary(
        "both", [entries("EN", "DE", ENTRIES), entries("de", "en-US", {"Meer": "sea"})]
    )
    assert [(one.source_lang.lower(), one.entry_count) for one in made.dictionaries] == [("en", 2), ("de", 1)]
    assert client.update_multilingual_glossary_name(made, "more").name == "more"
    changed = client.update_multilingual_glossary_dictionary(made, entries("EN", "DE", {"sea": "See", "fish": "Fisch"}))
    assert [one.entry_count for one in changed.dictionaries] == [3, 1]
    found = client.get_multilingual_glossary_entries(made, "EN", "DE")
    assert str(found.dictionaries[0].entries) == "sea\tSee\nhouse\tHaus\nfish\tFisch"
    replaced = client.replace_multilingual_glossary_dictionary(made, entries("EN", "DE", {"sea": "Meer"}))
    assert replaced.entry_count == 1
    result = translate_text(client, "the sea", source_lang="EN", target_lang="DE", glossary=made)
    assert "Meer" in result.text
    client.delete_multilingual_glossary_dictionary(made, source_lang="de", target_lang="en")
    assert [one.source_lang for one in client.get_multilingual_glossary(made.glossary_id).dictionaries] == ["EN"]
    with pytest.raises(deepl.GlossaryNotFoundException, match="Dictionary de-en not found"):
        client.get_multilingual_glossary_entries(made, "DE", "EN")
    from_csv = client.create_multilingual_glossary_from_csv("csv", "EN", "DE", 'sea,"Meer, See"\n')
    both = translate_text(
        client, "the sea", source_lang="EN", target_lang="DE", glossary_ids=[made.glossary_id, from_csv.glossary_id]
    )
    assert "Meer" in both.text
    assert len(client.list_multilingual_glossaries()) == 2
    for one in (made, from_csv):
        client.delete_multilingual_glossary(one)
    assert client.list_multilingual_glossaries() == []


def test_csv_may_name_its_languages_and_a_translation_several_forms(server: Server, client: deepl.DeepLClient) -> None:
    made = client.create_glossary_from_csv("csv", "EN", "DE", 'sea,Meer|Meeres,en,de\n"a, b",c; d; e; f,en,de\n')
    assert client.get_glossary_entries(made) == {"sea": "Meer|Meeres", "a, b": "c; d; e; f"}
    result = translate_text(client, "the sea", source_lang="EN", target_lang="DE", glossary=made)
    assert {"Meer", "Meeres"} & set(result.text.split())
    client.delete_glossary(made)
    own = {"text": "the sea", "source": "en", "target": "de", "terms": {"sea": "Meer|Meeres"}}
    found = server.post("/v1/translate", own).json["translations"][0]
    assert {"Meer", "Meeres"} & set(found["text"].split())
    assert found["sentences"][0]["unmet_terms"] == []


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"entries": ""}, 400, "there are no terms in entries"),
        ({"entries": "sea\tMeer\n\t\nx\t \n"}, 400, "line 3 has an empty translation"),
        ({"entries": "\tMeer"}, 400, "line 1 has an empty term"),
        ({"entries": "sea\tMeer|"}, 400, "line 1 has an empty translation"),
        ({"entries": "sea\tMeer\nsea\tSee"}, 400, "line 2 translates 'sea' by 'See', but it is 'Meer' in line 1"),
        ({"entries": "sea\tMeer\tx"}, 400, "line 1 has 3 columns, and a term needs two"),
        ({"entries": "sea", "entries_format": "csv"}, 400, "line 1 has 1 column, and"),
        ({"entries": "a\tb", "entries_format": "xls"}, 400, "entries_format"),
        ({"entries": "\ud800\tx"}, 400, "half a character"),
        ({"name": " "}, 400, "missing name parameter"),
        ({"name": "\ud800"}, 400, "half a character"),
        ({"target_lang": "FR"}, 400, "FR is not supported"),
        ({"entries": "s" * 13_000_000}, 413, "bytes"),
    ],
)
def test_wrong_glossaries_are_refused_in_deepls_form(
    server: Server, change: dict[str, str], status: int, message: str
) -> None:
    fields = {"name": "x", "source_lang": "en", "target_lang": "de", "entries": "a\tb", "entries_format": "tsv"}
    answer = server.post("/v2/glossaries", fields | change)
    assert (answer.status, set(answer.json)) == (status, {"message"}), answer.body
    assert message in answer.json["message"]
    dictionary = {name: value for name, value in (fields | change).items() if name != "name"}
    third = server.post("/v3/glossaries", {"name": (fields | change)["name"], "dictionaries": [dictionary]})
    assert third.status == status
    assert set(third.json) == {"message"}


def test_a_glossary_has_one_dictionary_for_a_pair_and_at_most_10_mib(server: Server, client: deepl.DeepLClient) -> None:
    pair = {"source_lang": "en", "target_lang": "de"}
    twice = {"name": "x", "dictionaries": [pair | {"entries": "a\tb"}, pair | {"entries": "c\td"}]}
    refused = server.post("/v3/glossaries", twice)
    assert (refused.status, "the same languages" in refused.json["message"]) == (400, True)
    made = server.post("/v3/glossaries", twice | {"dictionaries": twice["dictionaries"][:1]}).json
    path = f"/v3/glossaries/{made['glossary_id']}"
    answers = [
        server.ask("PATCH", path, json.dumps({"dictionaries": [pair | {"entries": entries}]}).encode(), headers=JSON)
        for entries in ("\n".join(f"{letter}{number}\t{'y' * 1000}" for number in range(6000)) for letter in "cd")
    ]
    assert [answer.status for answer in answers] == [200, 413]
    assert "the glossary would have" in answers[1].json["message"]
    assert server.get(path).json["dictionaries"][0]["entry_count"] == 6001
    client.delete_multilingual_glossary(made["glossary_id"])


def test_terms_are_met_in_a_line_in_capitals(server: Server) -> None:
    asked = {"text": "THE OLD SEA", "source": "en", "target": "de", "terms": {"sea": "Meer"}}
    found = server.post("/v1/translate", asked).json["translations"][0]
    assert ("MEER" in found["text"].split(), found["sentences"][0]["unmet_terms"]) == (True, [])
    for terms, message in (
        ({"sea": ""}, "terms has an empty text"),
        ({" ": "Meer"}, "terms has an empty text"),
        ({"sea": "Meer|"}, "terms has an empty translation"),
        ({"sea": ["Meer", "Meeres"]}, "a translation in terms is no string"),
    ):
        refused = server.post("/v1/translate", asked | {"terms": terms})
        assert (refused.status, message in refused.json["error"]["message"]) == (400, True), refused.body


def test_a_hundred_thousand_entries_are_taken_and_found(server: Server, client: deepl.DeepLClient) -> None:
    many = {f"word{number}": f"Wort{number}" for number in range(100_000)}
    made = client.create_glossary("many", "EN", "DE", many | {"sea": "Meer"})
    assert made.entry_count == 100_001
    result = translate_text(client, "the old sea", source_lang="EN", target_lang="DE", glossary=made)
    assert "Meer" in result.text
    client.delete_glossary(made)


def test_a_glossary_belongs_to_its_key_and_needs_a_source(strict: Server) -> None:
    owner, other = (deepl.DeepLClient(f"{name}-secret-key", server_url=strict.url) for name in ("alice", "carol"))
    made = owner.create_glossary("mine", "EN", "DE", ENTRIES)
    assert other.list_glossaries() == []
    with pytest.raises(deepl.GlossaryNotFoundException):
        other.delete_glossary(made)
    asked = {"text": "the sea", "source_lang": "EN", "target_lang": "DE"}
    for client, change, status in (
        ("carol", {"glossary_id": made.glossary_id}, 404),
        ("alice", {"glossary_id": UNKNOWN}, 404),
        ("alice", {"glossary_id": made.glossary_id, "source_lang": ""}, 400),
        ("alice", {"glossary_id": made.glossary_id}, 200),
    ):
        answer = strict.post("/v2/translate", asked | change, Authorization=f"DeepL-Auth-Key {client}-secret-key")
        assert answer.status == status, answer.body
    owner.delete_glossary(made)


def test_a_folder_that_keeps_nothing_is_told_at_the_start_and_later_is_no_mistake_of_a_client(tmp_path: Path) -> None:
    folder = tmp_path / "glossaries"
    store, owner = GlossaryStore(folder), KeyOwner("anonymous", per_minute=60)
    folder.rmdir()
    folder.touch()
    with pytest.raises(UsageError) as refused:
        GlossaryStore(folder)
    assert refused.value.setting == "glossaries"
    with pytest.raises(RequestError) as failed:
        store.create("ships", [Dictionary("en", "de", ENTRIES)], owner)
    assert failed.value.status == 500


@pytest.mark.slow
def test_glossaries_in_a_folder_outlive_the_server(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", "en", "de")
    ids = set()
    for turn in range(2):
        server = Server(tmp_path / f"{turn}.log", "-m", model, "--glossaries", tmp_path / "glossaries").wait()
        client = deepl.DeepLClient("any", server_url=server.url)
        if turn == 0:
            ids.add(client.create_glossary("ships", "EN", "DE", ENTRIES).glossary_id)
        assert {one.glossary_id for one in client.list_glossaries()} == ids
        assert client.get_glossary_entries(next(iter(ids))) == ENTRIES
        assert server.stop() == 0
