"""A server of a model of three directions and a model of one: each is chosen, and answered as decode answers."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import deepl
import pytest
from deep_translator import LibreTranslator
from libretranslatepy import LibreTranslateAPI

from nmt_cli.api import Translator
from nmt_cli.errors import UsageError
from nmt_cli.recipe.directions import Directions
from nmt_cli.serving.api.endpoints import SourceLanguage
from nmt_cli.serving.models import ServedModel
from nmt_cli.serving.request_errors import RequestError
from nmt_cli.serving.router import ModelRouter
from nmt_cli.serving.server_metrics import ServerMetrics
from nmt_cli.serving.worker_model import AttentionTask, EngineSettings, NextWordsTask, SearchTask, WorkerModel
from tests.forks import run_forked
from tests.serving.servers import MODEL_SETTINGS, THREE, Server, asked_sentence, save_model, save_model_of
from tests.serving.test_clients import translate_text

TEXT = {"en": "the old sea", "de": "das alte Meer", "it": "il vecchio mare"}
PAIRS = [("en", "de"), ("de", "en"), ("en", "fr"), ("it", "de")]
GREEDY = SearchTask(beam=1, nbest=1, length_penalty=0.6, max_extra_tokens=5, prefix="")
# M2M-100's.
_CODES = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id ig
ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so
sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu
"""
HUNDRED = _CODES.split()


@pytest.fixture
def server(servers: dict[str, Server]) -> Server:
    return servers["several"]


@pytest.fixture(scope="module")
def expected(three: Path, italian: Path) -> dict[tuple[str, str], str]:
    """What decode writes for the text of each direction."""
    several, single = (Translator.from_pretrained(path, device="cpu") for path in (three, italian))
    found = {
        pair: (single if pair[0] == "it" else several).translate([TEXT[pair[0]]], from_=pair[0], to=pair[1])[0].text
        for pair in PAIRS
    }
    assert len(set(found.values())) == len(PAIRS)  # the symbols count
    return found


def test_clients_choose_each_direction(server: Server, expected: dict[tuple[str, str], str]) -> None:
    libre, official = LibreTranslateAPI(server.url), deepl.DeepLClient("any", server_url=server.url)
    for source, target in PAIRS:
        text = TEXT[source]
        client = LibreTranslator(source=source, target=target, api_key="any", custom_url=f"{server.url}/")
        of_deepl = translate_text(official, text, source_lang=source, target_lang="EN-US" if target == "en" else target)
        own = server.post("/v1/translate", {"text": text, "source": source, "target": target}).json
        found = [libre.translate(text, source, target), client.translate(text), of_deepl.text]
        assert [*found, own["translations"][0]["text"]] == [expected[source, target]] * 4
        assert (own["source"], own["target"]) == (source, target)


def test_a_translation_is_that_of_decode(three: Path, expected: dict[tuple[str, str], str]) -> None:
    options = ["-m", str(three), "--to", "fr", "--device", "cpu", "--quiet"]
    done = run_forked([sys.executable, "-m", "nmt_cli", "decode", *options], input=TEXT["en"])
    assert (done.stdout, done.stderr) == (expected["en", "fr"] + "\n", "")


def test_the_lists_have_the_directions_of_all_models(server: Server) -> None:
    libre, official = LibreTranslateAPI(server.url), deepl.DeepLClient("any", server_url=server.url)
    assert {language["code"]: language["targets"] for language in libre.languages()} == {
        "en": ["de", "fr"],
        "de": ["en"],
        "it": ["de"],
        "fr": [],
    }
    assert [language.code for language in official.get_source_languages()] == ["EN", "DE", "IT"]
    assert [language.code for language in official.get_target_languages()] == ["DE", "EN", "FR"]
    assert [(one.source_lang, one.target_lang) for one in official.get_glossary_languages()] == PAIRS
    newer = server.get("/v3/languages?resource=translate_text").json
    assert [one["lang"] for one in newer if one["usable_as_source"] and one["usable_as_target"]] == ["en", "de"]
    models = server.get("/v1/models").json["models"]
    targets = [{one["code"]: one["targets"] for one in model["languages"]} for model in models]
    assert targets == [{"en": ["de", "fr"], "de": ["en"], "fr": []}, {"it": ["de"], "de": []}]


def test_the_direction_follows_the_language_of_each_text(server: Server, expected: dict[tuple[str, str], str]) -> None:
    texts = {"en": "The old house stands by the sea.", "it": "La vecchia casa è vicino al mare, e il cane dorme."}
    answer = server.post("/translate", {"q": [*texts.values()], "source": "auto", "target": "de"}).json
    assert [one["language"] for one in answer["detectedLanguage"]] == ["en", "it"]
    given = [
        server.post("/translate", {"q": text, "source": source, "target": "de"}).json["translatedText"]
        for source, text in texts.items()
    ]
    assert answer["translatedText"] == given
    german = server.post("/v1/translate", {"text": "Das alte Haus steht am Meer."}).json  # its only target
    assert (german["source"], german["target"], german["detection"]) == ("de", "en", "detected")
    unclear = server.post("/v1/translate", {"text": texts["en"]})
    assert (unclear.status, unclear.json["error"]["hint"][:27]) == (400, "give target: one of de, fr;")


def test_an_untrained_direction_is_answered_if_a_model_has_both_languages(server: Server, three: Path) -> None:
    fields = {"q": TEXT["de"], "source": "de", "target": "fr"}
    translation = Translator.from_pretrained(three, device="cpu").translate([TEXT["de"]], from_="de", to="fr")[0]
    assert server.post("/translate", fields).json == {"translatedText": translation.text}
    refused = server.post("/translate", {**fields, "source": "it"})
    assert (refused.status, refused.json["error"]) == (400, "it to fr is not supported (target: one of de)")
    assert server.post("/translate", {**fields, "source": "fr"}).status == 400
    assert server.post("/translate", {**fields, "target": "de"}).status == 400


@pytest.mark.usefixtures("hurried_deepl")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_bilingual_file_names_its_language(
    encoding: str, server: Server, expected: dict[tuple[str, str], str]
) -> None:
    client, out = deepl.DeepLClient("any", server_url=server.url), io.BytesIO()
    unit = f"<unit id='1'><segment><source>{TEXT['it']}</source></segment></unit>"
    namespace = "urn:oasis:names:tc:xliff:document:2.0"
    file = f"<xliff xmlns='{namespace}' version='2.0' srcLang='it' trgLang='de'><file id='1'>{unit}</file></xliff>"
    client.translate_document(file.encode(encoding), out, filename="a.xlf", target_lang="DE")
    assert f"<target>{expected['it', 'de']}</target>" in out.getvalue().decode(encoding)


@pytest.mark.usefixtures("hurried_deepl")
def test_documents_and_glossaries_have_the_direction(server: Server) -> None:
    client, out = deepl.DeepLClient("any", server_url=server.url), io.BytesIO()
    made = client.create_glossary("ships", "EN", "FR", {"sea": "Meer"})
    client.translate_document(
        "<p>the old sea", out, filename="a.html", target_lang="FR", source_lang="EN", glossary=made
    )
    (document,) = out.getvalue().decode().split("<p>")[1:]
    assert "Meer" in document
    fields = {"text": "the sea", "source_lang": "EN", "target_lang": "DE", "glossary_id": made.glossary_id}
    assert server.post("/v2/translate", fields).json["message"].startswith("Dictionary en-de not found")


def test_a_model_of_several_directions_is_called_by_them(server: Server, three: Path) -> None:
    name = "en-de, de-en, en-fr"
    server.post("/translate", {"q": "the sea", "source": "en", "target": "fr"})
    assert server.metric(f'nmt_batch_sentences_count{{model="{name}"}}') > 0
    assert server.metric('nmt_workers_ready{model="it-de"}') == 1
    assert f"{name}: {three} is loaded" in server.log


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_a_batch_may_have_several_directions(three: Path, engine: str) -> None:
    pytest.importorskip(engine)
    model = WorkerModel(three, EngineSettings(engine, "cpu", "fp32", 1))
    sentences = [asked_sentence("the old sea", "en", target) for target in ("de", "fr", "de")]
    sentences.append(asked_sentence("das Meer", "de", "en"))
    together = [answer["text"] for answer in model.answer(sentences, GREEDY)]
    assert together == [model.answer([sentence], GREEDY)[0]["text"] for sentence in sentences]
    assert together[0] == together[2] != together[1]


def test_attention_and_next_words_are_of_the_direction(three: Path) -> None:
    model = WorkerModel(three, EngineSettings("torch", "cpu", "fp32", 1))
    sentences = [asked_sentence("the old sea", "en", target) for target in ("de", "fr")]
    maps = [json.loads(model.answer([one], AttentionTask("das Meer"))[0]["map"]) for one in sentences]
    assert [one["columns"][-4:] for one in maps] == [["the", "old", "sea", "</s>"]] * 2
    assert maps[0]["weights"] != maps[1]["weights"]
    answers = [model.answer([one], NextWordsTask("", 3, 2))[0]["words"] for one in sentences]
    assert answers[0][0]["text"] != answers[1][0]["text"]
    translator = Translator.from_pretrained(three, device="cpu")
    for sentence, words in zip(sentences, answers, strict=True):
        prefixes = [one["word"] for one in words]
        again = translator.translate(["the old sea"] * len(words), to=sentence.pair[1], prefixes=prefixes, beam=2)
        assert words[0]["text"] in [one.text for one in again]


def test_symbols_take_the_room_of_pieces(three: Path, models: dict[str, Path]) -> None:
    several, single = (ServedModel(path, MODEL_SETTINGS, ServerMetrics()) for path in (three, models["en-de"]))
    assert several.max_pieces == single.max_pieces - 1
    longest = "x" * (several.max_pieces - several.num_pieces(""))
    longest = longest[: len(longest) - (several.num_pieces(longest) - several.max_pieces)]
    assert several.num_pieces(longest) == several.max_pieces
    worker = WorkerModel(three, EngineSettings("torch", "cpu", "fp32", 1))
    (answer,) = worker.answer([asked_sentence(longest)], GREEDY)
    (whole,) = Translator.from_pretrained(three, device="cpu").translate([longest], to="de", beam=1, max_extra_tokens=5)
    assert answer["text"] == whole.text


@pytest.mark.anyio
async def test_a_model_whose_directions_changed_needs_a_restart(tmp_path: Path) -> None:
    path = save_model_of(tmp_path / "model", THREE)
    model = ServedModel(path, MODEL_SETTINGS, ServerMetrics())
    fewer = Directions(pairs=THREE.pairs[:2], target_symbols=THREE.target_symbols)
    save_model_of(path, fewer, overwrite=True)
    with pytest.raises(UsageError, match="now translates en-de, de-en") as error:
        await model.reload()
    assert error.value.hint == "restart nmt serve"


def test_a_hundred_languages_are_offered_each_into_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    symbols = {code: f"<{number % 9}>" for number, code in enumerate(HUNDRED)}  # the router does not read them
    directions = Directions(target_symbols=symbols, source_symbols=symbols, target_symbol_on="target")
    path = save_model_of(tmp_path / "model", directions)
    model = ServedModel(path, MODEL_SETTINGS, ServerMetrics())
    assert model.name == "100 languages into 100"
    router = ModelRouter([model])
    assert len(router.pairs) == len(HUNDRED) * 99
    assert router.sources[:3] == ["en", "af", "am"]  # English counts for unclear text
    languages = SourceLanguage.of_pairs(router.pairs)
    assert {language.code: language.name for language in languages}["fil"] == "Filipino"
    assert {len(language.targets) for language in languages} == {99}
    assert router.route("tl", "no", text="").pair == ("fil", "no")
    assert router.route("auto", "de", text="Le chien dort dans la maison de ma grand-mère.").pair == ("fr", "de")
    assert not router.route("auto", "de", text="Das Haus steht am alten Meer.").is_translated
    with pytest.raises(RequestError, match="tlh is not supported") as error:
        router.route("en", "tlh", text="")
    assert error.value.hint.endswith("am, ar, ast, az, ba, be, bg, bn, br, bs, ca and 88 more, which /languages lists")


def test_a_general_model_serves_what_no_special_model_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nllb = dict.fromkeys(("eng_Latn", "zho_Hans", "fra_Latn", "deu_Latn"), "<2de>")
    directions = Directions(target_symbols=nllb, source_symbols=nllb, target_symbol_on="target")
    paths = [save_model_of(tmp_path / name, directions) for name in ("general", "other")]
    paths += [save_model(tmp_path / pair, *pair.split("-")) for pair in ("de-en", "zh-en")]
    general, other, german, chinese = (ServedModel(path, MODEL_SETTINGS, ServerMetrics()) for path in paths)
    with caplog.at_level("INFO"):
        router = ModelRouter([general, german, chinese])
    assert caplog.messages == [f"{general.name}: left to other models: de-en"]
    routes = [router.route(source, target, text="") for source, target in (("de", "en"), ("en", "de"), ("zh", "en"))]
    assert [route.model for route in routes] == [german, general, chinese]
    assert router.route("zh", "fr", text="").pair == ("zh-Hans", "fr")  # Chinese has two codes
    assert ModelRouter([general, other]).route("en", "de", text="").model is general
    with pytest.raises(UsageError, match="both translate de-en"):
        ModelRouter([general, german, german])
