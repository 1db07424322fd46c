"""Clients that generators make of /openapi.json: in Python and in TypeScript, with a call of each API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nmt_cli.api import Translator
from tests.registries import npm_install, pip_install
from tests.serving.servers import Server

pytestmark = pytest.mark.slow
TEXT = "the old sea"

PYTHON = """
import json, pkgutil, sys
from importlib import import_module
import nmt_client
from nmt_client import Client, models
from nmt_client.api.deep_l import deepl_translate
from nmt_client.api.libre_translate import libretranslate_translate
from nmt_client.api.nmt import models as served, next_words, translate

for module in pkgutil.walk_packages(nmt_client.__path__, "nmt_client."):
    import_module(module.name)
url, text = sys.argv[1:]
client = Client(base_url=url)
ours = translate.sync(client=client, body=models.TranslateRequest(text=text, source="en", nbest=2))
asked = models.LibreTranslateRequest(q=text, source="en", target="de")
libre = libretranslate_translate.sync(client=client, body=asked)
deepl = deepl_translate.sync(client=client, body=models.DeepLTranslateRequest(text=[text], target_lang="DE"))
refused = translate.sync(client=client, body=models.TranslateRequest(text=text, source="xx"))
print(json.dumps({
    "texts": [ours.translations[0].text, libre.translated_text, deepl.translations[0].text],
    "alternatives": len(ours.translations[0].alternatives),
    "words": len(next_words.sync(client=client, body=models.NextWordsRequest(text=text, source="en")).words) > 1,
    "models": len(served.sync(client=client).models),
    "refusal": refused.error.code,
}))
"""

TOLD = """
console.log(JSON.stringify({
  texts: [ours.data!.translations[0].text, libre.data!.translatedText, deepl.data!.translations[0].text],
  alternatives: ours.data!.translations[0].alternatives.length,
  words: words.data!.words.length > 1,
  models: served.data!.models.length,
  refusal: refused.error!.error.code,
}));
"""
# `paths` are openapi-typescript's types, for openapi-fetch. `./hey` is what @hey-api/openapi-ts writes.
TYPESCRIPT = (
    """
import createClient from "openapi-fetch";
import type { paths } from "./paths";
const [url, text] = process.argv.slice(2);
const client = createClient<paths, "application/json">({ baseUrl: url });
const ours = await client.POST("/v1/translate", { body: { text, source: "en", nbest: 2 } });
const libre = await client.POST("/translate", { body: { q: text, source: "en", target: "de" } });
const deepl = await client.POST("/v2/translate", { body: { text: [text], target_lang: "DE" } });
const words = await client.POST("/v1/words", { body: { text, source: "en" } });
const served = await client.GET("/v1/models");
const refused = await client.POST("/v1/translate", { body: { text, source: "xx" } });
""",
    """
import { client } from "./hey/client.gen";
import { deeplTranslate, libretranslateTranslate, models, nextWords, translate } from "./hey";
const [url, text] = process.argv.slice(2);
client.setConfig({ baseUrl: url });
const ours = await translate({ body: { text, source: "en", nbest: 2 } });
const libre = await libretranslateTranslate({ body: { q: text, source: "en", target: "de" } });
const deepl = await deeplTranslate({ body: { text: [text], target_lang: "DE" } });
const words = await nextWords({ body: { text, source: "en" } });
const served = await models();
const refused = await translate({ body: { text, source: "xx" } });
""",
)


def run(command: Sequence[str | Path], folder: Path, **environment: str) -> str:
    """The output of a command, which succeeds."""
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(answers: str, translator: Translator) -> None:
    assert json.loads(answers) == {
        "texts": [translator.translate([TEXT])[0].text] * 3,
        "alternatives": 1,
        "words": True,
        "models": 2,
        "refusal": "invalid_request",
    }


@pytest.fixture
def document(server: Server, tmp_path: Path) -> Path:
    """The OpenAPI document of the server, in the folder of the test."""
    file = tmp_path / "openapi.json"
    file.write_bytes(server.get("/openapi.json").body)
    return file


def test_a_client_of_openapi_python_client_translates(document: Path, server: Server, translator: Translator) -> None:
    folder = document.parent
    packages = folder / "installed"
    pip_install(packages, "openapi-python-client==0.29.1")
    installed = {"PYTHONPATH": str(packages), "PATH": f"{packages / 'bin'}:{os.environ['PATH']}"}
    generate = [sys.executable, "-m", "openapi_python_client", "generate", "--fail-on-warning", "--meta", "none"]
    run([*generate, "--path", document, "--output-path", folder / "nmt_client"], folder, **installed)
    (folder / "ask.py").write_text(PYTHON)
    check(run([sys.executable, "ask.py", server.url, TEXT], folder, **installed), translator)


def test_clients_of_typescripts_generators_translate(document: Path, server: Server, translator: Translator) -> None:
    folder = document.parent
    generators = ["openapi-typescript@7.13.0", "@hey-api/openapi-ts@0.99.0"]
    npm_install(folder, *generators, "openapi-fetch@0.17.0", "typescript@5.9.3", "@types/node@20", "esbuild@0.27.0")
    binaries = folder / "node_modules" / ".bin"
    run([binaries / "openapi-typescript", document, "-o", "paths.ts"], folder)
    run([binaries / "openapi-ts", "-i", document, "-o", "hey"], folder)
    options = "--noEmit --strict --skipLibCheck --target es2022 --module esnext --moduleResolution bundler --types node"
    bundle = ["--bundle", "--platform=node", "--format=esm", "--log-level=warning"]
    for number, program in enumerate(TYPESCRIPT):
        source, bundled = folder / f"ask{number}.ts", folder / f"ask{number}.mjs"
        source.write_text(program + TOLD)
        run([binaries / "tsc", *options.split(), source], folder)
        run([binaries / "esbuild", source, *bundle, f"--outfile={bundled}"], folder)
        check(run(["node", bundled, server.url, TEXT], folder), translator)
