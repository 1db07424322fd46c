"""The service behind the APIs: which model, how much, for whom and for how long."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from nmt_cli.errors import DataError
from nmt_cli.languages import DetectedLanguage
from nmt_cli.serving import keys as serving_keys
from nmt_cli.serving.api.endpoints import Call
from nmt_cli.serving.api.v1 import TranslateRequest, translate
from nmt_cli.serving.keys import ApiKeys, KeyOwner
from nmt_cli.serving.models import ServedModel
from nmt_cli.serving.queue import QueuedSentence
from nmt_cli.serving.queued_texts import Caller
from nmt_cli.serving.request_errors import TIMEOUT, ClientGone, RequestError, invalid_request_error, server_busy_error
from nmt_cli.serving.request_limits import RequestLimits, SearchOptions
from nmt_cli.serving.router import ModelRoute, ModelRouter
from nmt_cli.serving.server_metrics import ServerMetrics
from nmt_cli.serving.service import Service
from nmt_cli.serving.worker_model import NextWordsTask, SearchTask
from nmt_cli.serving.worker_pool import WorkerPool
from tests.serving.servers import MODEL_SETTINGS, asked_sentence, save_model

pytestmark = pytest.mark.anyio
SEARCH = SearchTask(beam=2, nbest=2, length_penalty=0.6, max_extra_tokens=5, prefix="")
LIMITS = RequestLimits(
    characters=1000, texts=9, sentences=9, concurrent_requests=9, timeout_seconds=0.2, alternatives=3, beam=8
)


def queued_sentence(*, tokens: int) -> QueuedSentence:
    return QueuedSentence(asked_sentence("the sea"), tokens, SEARCH, "one", asyncio.get_running_loop().create_future())


async def test_a_text_that_takes_too_long_or_has_no_client_leaves_the_queue(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ServedModel(models["en-de"], MODEL_SETTINGS, ServerMetrics())  # nobody works
    service = Service(ModelRouter([model]), LIMITS, ApiKeys(), ServerMetrics())
    caller, other = Caller("one", asyncio.Future()), Caller("two", asyncio.Future())

    async def translate(plain_texts: list[str], *, caller: Caller) -> None:
        texts, route = await service.read_texts(plain_texts, None), ModelRoute(model, ("en", "de"), None)
        async for _ in service.translate(texts, [route], SearchOptions(nbest=2), caller=caller):
            pass

    with pytest.raises(RequestError, match="the translation took too long") as error:
        await translate(["the sea\nthe sea"], caller=caller)
    assert (error.value.status, error.value.retry_after_seconds) == (503, 1)
    caller.gone.set_result(None)
    with pytest.raises(ClientGone):
        await translate(["the sea"], caller=caller)
    with pytest.raises(RequestError, match="10 sentences are too many"):
        await translate(["sea\n" * 10], caller=caller)
    model.queue.submit(late := [queued_sentence(tokens=9999) for _ in range(2)])
    model.queue.learn_speed([queued_sentence(tokens=9999)], seconds=2)
    with pytest.raises(RequestError, match=r"the server is 4 s behind, and a request may take 0\.2 s") as error:
        await translate(["the sea"], caller=other)
    assert (error.value.status, error.value.retry_after_seconds) == (503, 2)
    for one in late:
        one.result.cancel()
    # All nine places are free again.
    asked = translate(["sea\n" * 9], caller=other)
    waiting = asyncio.ensure_future(asked)
    await asyncio.sleep(0)
    assert await asyncio.wait_for(model.queue.take(), 60)
    waiting.cancel()
    refusal = RequestError("the model en-de is not loaded now", hint="wait", status=503, code="not_loaded")
    monkeypatch.setattr(WorkerPool, "refusal", refusal)
    with pytest.raises(RequestError, match="the model en-de is not loaded now"):
        await translate(["sea"], caller=other)


async def test_a_stream_that_fails_in_the_middle_ends_with_the_error_and_counts_no_characters(
    models: dict[str, Path],
) -> None:
    model = ServedModel(models["en-de"], MODEL_SETTINGS, ServerMetrics())  # nobody works, and a blank text needs nobody
    service = Service(ModelRouter([model]), LIMITS, ApiKeys(), ServerMetrics())
    bob = KeyOwner("bob", per_minute=2)
    request = Request({"type": "http"}, receive=asyncio.Future)
    fields = TranslateRequest(text=[" ", "the sea"], source="en", stream=True)
    answer = await translate(fields, Call(service, request, bob))
    assert isinstance(answer, StreamingResponse)
    blank, error = [json.loads(line) async for line in answer.body_iterator if isinstance(line, bytes)]
    assert (blank["text"].strip(), error["error"]["code"], bob.characters) == ("", TIMEOUT, 0)


async def test_languages_are_detected_and_sentences_split_where_no_other_request_waits(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    route, num_pieces = ModelRouter.route, ServedModel.num_pieces

    def find(self: ModelRouter, *languages: str | None, text: str) -> ModelRoute:
        threads.append(threading.current_thread())
        return route(self, *languages, text=text)

    def count(self: ServedModel, text: str) -> int:
        threads.append(threading.current_thread())
        return num_pieces(self, text)

    monkeypatch.setattr(ModelRouter, "route", find)
    monkeypatch.setattr(ServedModel, "num_pieces", count)
    model = ServedModel(models["en-de"], MODEL_SETTINGS, ServerMetrics())
    service = Service(ModelRouter([model]), LIMITS, ApiKeys(), ServerMetrics())
    asking = asyncio.ensure_future(
        service.translate_each(
            await service.read_texts([f"The sea{' and the sea' * 6}. " * 9], None),
            SearchOptions(),
            source=None,
            target=None,
            owner=service.keys.anonymous,
            caller=Caller("one", asyncio.Future()),
        )
    )
    assert await asyncio.wait_for(model.queue.take(), 60)
    asking.cancel()
    found = len(threads)
    assert found >= 2
    task, route_to_de = NextWordsTask("the sea " * 99, num_words=3, beam=2), ModelRoute(model, ("en", "de"), None)
    with pytest.raises(RequestError, match="the prefix is too long to look into"):
        await service.ask_about_words("the sea", task, route_to_de, caller=Caller("one", asyncio.Future()))
    assert len(threads) > found
    assert threading.current_thread() not in threads


async def test_a_text_is_detected_among_the_languages_of_the_models_to_the_target(
    models: dict[str, Path], tmp_path: Path
) -> None:
    german = "Das Haus steht am alten Meer."
    paths = [*models.values(), save_model(tmp_path / "en-fr", "en", "fr")]
    served = ModelRouter([ServedModel(path, MODEL_SETTINGS, ServerMetrics()) for path in paths])
    assert served.route("auto", "FR", text="The house stands by the old sea.").model.name == "en-fr"
    assert served.route(None, None, text=german).model.name == "de-en"
    with pytest.raises(RequestError, match="the target language is missing, and the text was detected as en") as error:
        served.route(None, None, text="The house stands by the old sea.")
    assert error.value.hint == "give target: one of de, fr; or give source, if the text is in another language"
    with pytest.raises(RequestError, match="de to fr is not supported") as error:
        served.route("de", "fr", text=german)
    with pytest.raises(RequestError, match="it is not supported") as error:
        served.route("auto", "it", text=german)


@pytest.mark.parametrize(
    ("pair", "text", "source", "is_translated"),
    [
        ("en-de", "Das Haus steht am alten Meer.", "de", False),
        ("en-de", "The house stands by the old sea.", "en", True),
        ("en-de", "Server error", "en", True),  # looks German, but not surely
        ("en_GB-zho_Hans", "我们明天一起去公园看电影吧。", "zh-Hans", False),
        ("hsb-de", "Pies śpi w domu mojej babci.", "hsb", True),  # to the identifier, it is Polish
    ],
)
async def test_a_text_in_the_language_of_the_target_is_left_unchanged(
    tmp_path: Path, pair: str, text: str, source: str, is_translated: bool
) -> None:
    served = ServedModel(save_model(tmp_path / "model", *pair.split("-")), MODEL_SETTINGS, ServerMetrics())
    router = ModelRouter([served])
    for target in (served.targets[0], None):
        route = router.route("auto", target, text=text)
        assert (route.source, route.is_translated) == (source, is_translated)
    assert is_translated or router.detect(text).code == source


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("我们明天一起去公园看电影吧。", "zh"),
        ("Le chien dort dans la maison de ma grand-mère.", "fr"),
        ("Köpek evde uyuyor.", "tr"),
    ],
)
async def test_a_text_in_another_language_is_not_detected_as_one_of_the_models(
    models: dict[str, Path], text: str, code: str
) -> None:
    router = ModelRouter([ServedModel(models["en-de"], MODEL_SETTINGS, ServerMetrics())])
    assert router.detect(text).code == code
    with pytest.raises(RequestError, match=f"the text is in {code}"):
        router.route("auto", "de", text=text)
    assert [router.detect(text) for text in ("123", "")] == [DetectedLanguage("en", 0.0)] * 2


@pytest.mark.parametrize("pairs", [["en-de"], ["en-de", "ru-de"], ["hsb-de"], ["zh_CN-en", "de-en"]])
async def test_a_text_is_detected_as_it_is_translated_to_the_only_target(tmp_path: Path, pairs: list[str]) -> None:
    paths = [save_model(tmp_path / pair, *pair.split("-")) for pair in pairs]
    router = ModelRouter([ServedModel(path, MODEL_SETTINGS, ServerMetrics()) for path in paths])
    target = router.targets[0] if len(router.targets) == 1 else None
    short = [
        "",
        "1",
        "ok",
        "Ja",
        "no",
        "Server error",
        "OK да",
        "да",
        "水",
        "Haus",
        "the sea",
        "Das Haus steht am Meer.",
    ]
    texts = [
        *short,
        "The house stands by the sea.",
        "Le chien dort dans la maison de ma grand-mère.",
        "12 " * 2000 + "да",
    ]
    num_routed = 0
    for text in texts:
        with suppress(RequestError):  # it is in another language, or names no target
            found = router.route("auto", target, text=text).detected
            assert found == router.detect(text), text
            num_routed += 1
    assert num_routed > 5


async def test_served_languages_have_standard_codes(tmp_path: Path) -> None:
    pairs = [("en", "pt_br"), ("pt_br", "en"), ("en", "zho_Hant"), ("en", "zh_CN")]
    paths = [save_model(tmp_path / str(number), *pair) for number, pair in enumerate(pairs)]
    router = ModelRouter([ServedModel(path, MODEL_SETTINGS, ServerMetrics()) for path in paths])
    assert (router.sources, router.targets) == (["en", "pt-BR"], ["pt-BR", "en", "zh-Hant", "zh-CN"])
    asked = {"zh-TW": "zh-Hant", "ZH-HANS": "zh-CN", "zh": "zh-CN", "PT": "pt-BR", "pb": "pt-BR"}
    assert {target: router.route("en", target, text="").target for target in asked} == asked
    assert router.route("PT-BR", "EN-US", text="").model.name == "pt-BR-en"


def write_keys(folder: Path, text: str) -> Path:
    (folder / "keys").write_text(text)
    return folder / "keys"


def owner(keys: ApiKeys, key: str) -> KeyOwner:
    found = keys.find(key)
    assert found is not None
    return found


def test_a_key_refills_evenly_and_no_request_is_worth_more_than_it_ever_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    lines = "bob bob-secret-key 2\nrare rare-secret-key 0.5\ncarol carol-secret-key 60\n"
    monkeypatch.setattr(serving_keys, "monotonic", lambda: now)
    keys = ApiKeys(write_keys(tmp_path, lines))
    bob, rare, carol = (owner(keys, f"{name}-secret-key") for name in ("bob", "rare", "carol"))
    with pytest.raises(RequestError, match="this counts as 1,000 requests, and this key has 60 per minute") as error:
        carol.spend(1000)
    # Not 429: DeepL's clients would send it again and again.
    assert (error.value.status, error.value.code, error.value.retry_after_seconds) == (413, "too_large", None)
    carol.spend(60)
    bob.spend(1)
    bob.spend(1)
    rare.spend(1)
    for spender, seconds in ((bob, 30), (rare, 120)):
        with pytest.raises(RequestError, match=r"this key has used its (2|0\.5) requests per minute") as error:
            spender.spend(1)
        assert (error.value.status, error.value.retry_after_seconds) == (429, seconds)
    now = 30.0
    with pytest.raises(RequestError, match="this key has fewer than 2 left of its 2 requests per minute") as error:
        bob.spend(2)
    assert (error.value.hint, error.value.retry_after_seconds) == ("try again in 30 s", 30)
    bob.spend(1)  # the refused request took nothing
    now = 120.0
    bob.spend(2)
    rare.spend(1)


def test_a_refused_request_costs_nothing_and_one_that_was_in_work_does(tmp_path: Path) -> None:
    keys = ApiKeys(write_keys(tmp_path, "bob bob-secret-key 2\n"))
    bob = owner(keys, "bob-secret-key")
    for _ in range(5):
        with pytest.raises(RequestError, match="fr is not supported"), bob.charged(requests=2, characters=0):
            raise invalid_request_error("fr is not supported", hint="source: one of en, de")
    with pytest.raises(ClientGone), bob.charged(requests=1, characters=0):
        raise ClientGone
    took_long = server_busy_error("the translation took too long", retry_after_seconds=1, code=TIMEOUT)
    with pytest.raises(RequestError, match="took too long"), bob.charged(requests=1, characters=0):
        raise took_long
    with pytest.raises(RequestError, match="this key has used its 2 requests per minute"):
        bob.spend(1)


def test_keys_that_are_read_again_keep_what_they_used_and_others_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_keys(tmp_path, "\ufeffbob bob-secret-key 2\nalice alice-secret-key 60\n")
    caplog.set_level("INFO")
    keys = ApiKeys(file)
    assert owner(keys, "bob-secret-key").name == "bob"
    with owner(keys, "bob-secret-key").charged(requests=2, characters=7):
        file.write_text("bob bob-secret-key 3\ncarol carol-secret-key 60\n")
        keys.read_again()
    assert keys.find("alice-secret-key") is None
    assert owner(keys, "carol-secret-key").name == "carol"
    bob = owner(keys, "bob-secret-key")
    assert bob.characters == 7
    with pytest.raises(RequestError, match="this key has used its 3 requests per minute"):
        bob.spend(1)
    file.write_text("nonsense\n")
    with pytest.raises(DataError, match="line 1 is not a key"):
        keys.read_again()
    assert owner(keys, "carol-secret-key").name == "carol"
    assert caplog.messages == [f"2 keys are read from {file}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alice alice-secret-key", "line 1 is not a key"),
        ("# none\n", "keys has no keys"),
        ("\nalice secret 5", "the key of alice has fewer than 8 characters"),
        ("a same-secret 5\nb same-secret 5", "the key of b is there twice"),
        ("a long-secret 0", "line 1 is not a key"),
    ],
)
def test_a_wrong_key_file_is_refused_by_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        ApiKeys(write_keys(tmp_path, text))
    assert "secret" not in error.value.message


def test_a_key_file_that_cannot_be_read_is_answered(tmp_path: Path) -> None:
    keys = write_keys(tmp_path, "alice long-secret 5")
    keys.write_bytes(b"\xff")
    with pytest.raises(DataError, match="the keys cannot be read"):
        ApiKeys(keys)
