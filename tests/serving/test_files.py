"""Documents sent to the server, by LibreTranslate's and DeepL's paths."""

from __future__ import annotations

import asyncio
import html
import io
import time
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import deepl
import pytest

from nmt_cli.api import Translator
from nmt_cli.errors import DataError
from nmt_cli.serving.document_store import DocumentStore, StoredDocument
from nmt_cli.serving.keys import KeyOwner
from nmt_cli.serving.request_errors import RequestError
from tests.serving.servers import MULTIPART, Answer, Server, Site, form_body
from tests.waiting import wait_until

PAGE = "<!DOCTYPE html>\n<title>{}</title>\n<p class='a &amp; b'>{}<br>\n<img src=x></p>\n"
TEXTS = ["the old sea", "a small house stands"]
SENT = PAGE.format(*TEXTS)


@pytest.fixture(scope="module")
def expected(translator: Translator) -> str:
    return PAGE.format(*(html.escape(one.text, quote=False) for one in translator.translate(TEXTS, stop_loops=True)))


def send(
    site: Site, path: str, fields: Mapping[str, str], content: bytes, *, name: str = "page.html", **headers: str
) -> Answer:
    body = form_body(fields.items(), file=(name, content))
    return site.post(path, body, Content_Type=MULTIPART, **headers)


LIBRE = {"source": "en", "target": "de", "api_key": ""}


@pytest.mark.parametrize("source", ["en", "auto"])
def test_a_file_sent_as_to_libretranslate_comes_back_at_an_address(server: Server, expected: str, source: str) -> None:
    answer = send(server, "/translate_file", LIBRE | {"source": source}, SENT.encode(), name="my päge.html")
    assert answer.status == 200, answer.body
    address = urlsplit(answer.json["translatedFileUrl"])
    assert address.netloc == f"127.0.0.1:{server.port}"
    assert address.path.startswith("/download_file/")
    found = server.get(address.path)
    assert found.body.decode() == expected
    assert found.headers["content-type"] == "text/html; charset=utf-8"
    assert found.headers["content-disposition"] == "attachment; filename*=utf-8''my%20p%C3%A4ge_de.html"
    missing = server.get(address.path.replace("/download_file/", "/download_file/x"))
    assert (missing.status, missing.json) == (
        404,
        {"error": "Document not found (it is kept for an hour; send it again)"},
    )
    settings = server.get("/frontend/settings").json
    assert settings["filesTranslation"] is True
    assert ".html" in settings["supportedFilesFormat"]


@pytest.mark.usefixtures("hurried_deepl")
def test_deepls_client_translates_a_document(server: Server, strict: Server, expected: str) -> None:
    client = deepl.DeepLClient("any", server_url=server.url)
    out = io.BytesIO()
    status = client.translate_document(
        SENT, out, source_lang="EN", target_lang="DE", filename="page.html", formality="prefer_more"
    )
    assert (status.done, status.billed_characters) == (True, sum(map(len, TEXTS)))
    assert out.getvalue().decode() == expected
    with pytest.raises(deepl.DeepLException, match="no ending of a document"):
        client.translate_document(b"x", io.BytesIO(), target_lang="DE", filename="page.exe")
    owner, other = (deepl.DeepLClient(f"{name}-secret-key", server_url=strict.url) for name in ("alice", "carol"))
    handle = owner.translate_document_upload(SENT, source_lang="EN", target_lang="DE", filename="page.html")
    owner.translate_document_wait_until_done(handle)
    owner.translate_document_download(handle, out := io.BytesIO())
    assert out.getvalue().decode() == expected
    with pytest.raises(deepl.DeepLException, match="Document not found"):
        other.translate_document_get_status(handle)
    wrong = deepl.DocumentHandle(handle.document_id, "wrong-é")
    with pytest.raises(deepl.DeepLException, match="Document not found"):
        owner.translate_document_get_status(wrong)


def test_a_long_document_leaves_room_for_others_and_is_not_ready_before_it_is_done(server: Server) -> None:
    page = "".join(f"<p>the old <b>sea</b> {number}</p>" for number in range(400)).encode()
    answer = send(server, "/v2/document", {"target_lang": "DE", "source_lang": "EN"}, page)
    assert answer.status == 200, answer.body
    path, key = f"/v2/document/{answer.json['document_id']}", {"document_key": answer.json["document_key"]}
    early = server.post(f"{path}/result", key)
    assert (early.status, early.json["message"]) == (503, "the document is not translated (try again in 1 s)")
    assert server.post(path, key).json["status"] == "translating"
    started = time.monotonic()
    assert server.post("/v1/translate", {"text": "the sea", "source": "en", "target": "de"}).status == 200
    assert time.monotonic() - started < 20
    wait_until(lambda: server.post(path, key).json["status"] == "done", seconds=300, told=lambda: server.log)
    assert server.post(f"{path}/result", key).body.count(b"</b>") == 400


@pytest.mark.parametrize(
    ("change", "content", "name", "status", "message"),
    [
        ({}, b"<p>the sea", "page", 400, "no ending of a document"),
        ({}, b"", "page.html", 200, ""),
        ({}, b"id,text\n1,the sea\n", "table.csv", 400, "(send a table with only the column to translate)"),
        ({}, b"\xff\xfe\x00x\x00", "page.html", 400, ""),
        ({"target": "xx"}, b"<p>the sea", "page.html", 400, "xx is not supported"),
        ({"target": ""}, b"<p>the sea", "page.html", 400, "is not supported"),
        ({}, b"<p>" + b"the sea " * 20_000, "page.html", 413, "characters in a document are too many"),
        ({}, b" " * 12_000_000, "page.html", 413, "bytes"),
        ({}, b"<b>" * 10_000 + b"the sea", "../../etc/page.html", 200, ""),
    ],
)
def test_a_file_that_is_wrong_or_too_long_is_refused_in_a_sentence(
    server: Server, change: dict[str, str], content: bytes, name: str, status: int, message: str
) -> None:
    answer = send(server, "/translate_file", LIBRE | change, content, name=name)
    assert answer.status == status, answer.body
    if status != 200:
        assert message in answer.json["error"]
    else:
        assert "/etc/" not in answer.json["translatedFileUrl"]


def test_what_is_no_form_with_a_file_is_refused(server: Server) -> None:
    no_form = server.post("/translate_file", {"source": "en"})
    assert (no_form.status, "the file is not sent in a form" in no_form.json["error"]) == (400, True)
    no_file = server.post("/translate_file", form_body([]), Content_Type=MULTIPART)
    assert (no_file.status, "file" in no_file.json["error"]) == (400, True)
    text_file = send(server, "/v2/document", {"target_lang": "DE", "output_format": "pdf"}, b"<p>the sea")
    assert (text_file.status, "output_format" in text_file.json["message"]) == (400, True)


def test_room_is_made_of_documents_that_have_failed_or_were_fetched() -> None:
    owner, error = KeyOwner("anonymous", per_minute=60), DataError("no text", hint="write one")

    async def translate(number: int) -> bytes:
        if number == 3:
            raise error
        return b"x"

    async def fill_store() -> None:
        store = DocumentStore()

        def start(number: int) -> StoredDocument:
            store.make_room(owner)
            return store.start(f"{number}.html", translate(number), target="de", characters=1, owner=owner)

        def is_kept(document: StoredDocument) -> bool:
            with suppress(RequestError):
                return store.find(document.id, key=document.key, owner=owner) is document
            return False

        documents = [start(number) for number in range(50)]
        with pytest.raises(RequestError, match="50 documents are in work, or wait to be fetched"):
            start(50)
        await asyncio.wait([document.work for document in documents])
        failed = documents[3].error
        assert failed is not None
        assert (failed.status, failed.message_with_hint) == (400, "no text (write one)")
        documents[7].is_fetched = True
        assert start(51).name == "51_de.html"
        assert [is_kept(documents[number]) for number in (2, 3, 7)] == [True, False, True]
        start(52)
        assert [is_kept(documents[number]) for number in (2, 7)] == [True, False]
        with pytest.raises(RequestError, match="wait to be fetched"):
            start(53)

    asyncio.run(fill_store())


def test_a_document_counts_by_its_length(strict: Server) -> None:
    keys = {"Authorization": "DeepL-Auth-Key bob-secret-key"}
    content = b"<p>" + b"the sea. " * 60  # as three texts of 200 characters
    answer = send(strict, "/v2/document", {"target_lang": "DE"}, content, **keys)
    assert (answer.status, "counts as 3 requests" in answer.json["message"]) == (413, True)
