"""A name on the hub where a model is taken: what is downloaded, what is kept, and what is refused."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt_cli.hub import HubName, hub_name
from tests.hub import COMMIT, Hub, serve
from tests.interchange.builders import edit_json, english, write_marian
from tests.interchange.hub_models import NAME, NLLB, Machine, write_hub
from tests.interchange.test_importing import Malicious
from tests.serving.servers import Server
from tests.training.tiny import parallel_text

pytest.importorskip("transformers")
LINES = "".join(f"{line}\n" for line in english(8))


@pytest.fixture(scope="module")
def opus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    write_hub(folder)
    return folder


@pytest.fixture
def hub(opus: Path, tmp_path: Path) -> Iterator[Hub]:
    shutil.copytree(opus, tmp_path / "hub")
    with serve(tmp_path / "hub") as served:
        yield served


@pytest.fixture
def machine(hub: Hub, tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine", hub)


@pytest.fixture(scope="module")
def ready(opus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine that has the model in its cache, and no hub any more."""
    with serve(opus) as served:
        machine = Machine(tmp_path_factory.mktemp("ready"), served)
        assert machine.nmt("decode", "-m", NAME, text="a\n").returncode == 0
        served.is_down = True
        served.requests.clear()
        yield machine
        assert served.requests == []


def their_translations(folder: Path, lines: list[str]) -> list[str]:
    """What transformers writes by greedy search."""
    import transformers

    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    model: Any = transformers.MarianMTModel.from_pretrained(folder)
    inputs = tokenizer(lines, return_tensors="pt", padding=True)
    with torch.inference_mode():
        rows = model.generate(**inputs, num_beams=1, do_sample=False, max_new_tokens=40, forced_eos_token_id=None)
    return [str(text) for text in tokenizer.batch_decode(rows, skip_special_tokens=True)]


def test_a_name_on_the_hub_translates_as_transformers_does_and_is_downloaded_once(machine: Machine, hub: Hub) -> None:
    first = machine.nmt("decode", "-m", NAME, "--beam", "1", text=LINES)
    assert first.returncode == 0, first.stderr
    theirs = their_translations(hub.folder / NAME, LINES.splitlines())
    assert len(set(theirs)) > 1
    # A search of ours may end later: there, translations are compared as far as both go.
    assert all(ours[:40] == their[:40] for ours, their in zip(first.stdout.splitlines(), theirs, strict=True))
    told = first.stderr.splitlines()
    assert told[0] == f"{NAME}: downloading pytorch_model.bin from {hub.endpoint}"
    assert told[1].startswith("comparing with transformers on ")
    assert told[2] == f"{NAME}: imported, and kept in {machine.models / NAME}"
    fetched = {path.rpartition("/")[2] for path in hub.requests if path.startswith("GET") and "/resolve/" in path}
    small = {"config.json", "vocab.json", "source.spm", "target.spm", "tokenizer_config.json", "README.md"}
    assert fetched == small | {"pytorch_model.bin"}
    hub.requests.clear()
    hub.is_down = True
    again = machine.nmt("decode", "-m", NAME, "--beam", "1", text=LINES, HF_HUB_OFFLINE="1")
    assert (again.returncode, again.stdout, again.stderr) == (0, first.stdout, "")
    assert hub.requests == []


def test_info_tells_where_a_model_of_the_hub_lies_its_commit_and_its_licence(ready: Machine) -> None:
    told = ready.nmt("info", NAME).stdout
    for line in (
        "model        opus-mt-en-de, en to de",
        f"directory    {ready.models / NAME}, ",
        f"hub          {NAME}@{COMMIT}",
        "licence      cc-by-4.0",
        "search       beam 6, length penalty 1.0",
        f"use          nmt decode -m {NAME} < input.txt > output.txt",
    ):
        assert f"\n{line}" in f"\n{told}"
    described = json.loads(ready.nmt("info", NAME, "--json").stdout)
    assert (described["imported_from"], described["license"]) == (f"{NAME}@{COMMIT}", "cc-by-4.0")
    card = (ready.models / NAME / "README.md").read_text(encoding="utf-8")
    assert f"base_model: {NAME}\n" in card
    error, _, fix = ready.refusal("info", "Helsinki-NLP/opus-mt-en-fr")
    assert error.startswith("there is no Helsinki-NLP/opus-mt-en-fr here, and no model of that name of the hub")
    assert fix == "check the path; nmt decode -m Helsinki-NLP/opus-mt-en-fr downloads a model of the hub"


def test_nllb_comes_in_several_files_with_its_licence(machine: Machine, hub: Hub) -> None:
    done = machine.nmt("import", NLLB, "-o", "nllb")
    assert done.returncode == 0, done.stderr
    shards = [file.name for file in (hub.folder / NLLB).glob("*.safetensors")]
    assert len(shards) > 1
    assert all(f"{NLLB}: downloading {name} from {hub.endpoint}\n" in done.stderr for name in shards)
    assert "warning: licence cc-by-nc-4.0: for non-commercial use only\n" in done.stderr
    told = machine.nmt("info", "nllb").stdout
    assert "targets      deu_Latn, eng_Latn, fra_Latn, zho_Hans, zho_Hant\n" in told
    assert "licence      cc-by-nc-4.0: for non-commercial use only\n" in told
    done = machine.nmt("decode", "-m", "nllb", "--to", "zh-TW", "--from", "en", text="a\n")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done.stderr


def test_every_command_takes_a_name_on_the_hub(ready: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    (ready.folder / "src").write_text("a small house\n", encoding="utf-8")
    (ready.folder / "ref").write_text("ein kleines haus\n", encoding="utf-8")
    for arguments in (
        ["score", "--model", NAME, "-s", "src", "ref"],
        ["attention", "-m", NAME, "a small house", "-o", "picture.svg"],
        ["export", NAME, "--to", "ctranslate2"],
    ):
        done = ready.nmt(*arguments)
        assert done.returncode == 0, done.stderr
    assert (ready.folder / "opus-mt-en-de-ctranslate2" / "model.bin").is_file()
    for name, value in ready.environment.items():
        monkeypatch.setenv(name, value)
    server = Server(ready.folder / "serve.log", "-m", NAME).wait()
    try:
        answer = server.post("/translate", {"q": "a small house", "source": "en", "target": "de"})
    finally:
        server.stop()
    assert answer.status == 200
    assert answer.json["translatedText"]


def test_a_hub_name_is_imported_by_the_command_that_the_error_names(machine: Machine, hub: Hub) -> None:
    done = machine.nmt("import", NAME, "-o", "x")
    assert done.returncode == 0, done.stderr
    assert "x: en-de, 0.0 million parameters" in done.stderr
    assert machine.nmt("decode", "-m", "x", text="a\n").returncode == 0
    # A folder of that name is taken, as it is.
    shutil.copytree(machine.folder / "x", machine.folder / NAME)
    hub.is_down = True
    assert machine.nmt("decode", "-m", NAME, text="a\n").returncode == 0
    assert not (machine.models / NAME).exists()


def test_a_model_is_imported_from_the_hubs_own_cache_without_a_network(machine: Machine, hub: Hub) -> None:
    """As after `hf download` on a machine that has a network."""
    assert machine.nmt("import", NAME, "-o", "x").returncode == 0
    hub.is_down = True
    for number, offline in enumerate(("0", "1")):
        environment = {"HF_HUB_OFFLINE": offline, "HF_ENDPOINT": "http://127.0.0.1:9"}
        done = machine.nmt("import", NAME, "-o", f"again{number}", **environment)
        assert done.returncode == 0, done.stderr
    weights = next((machine.folder / "home" / "huggingface").rglob("pytorch_model.bin"))
    weights.unlink()
    error, _, _ = machine.refusal("decode", "-m", NAME, HF_HUB_OFFLINE="1")
    assert error.startswith(f"cannot download {NAME}: ")
    assert "HF_HUB_OFFLINE" in error


@pytest.mark.slow
def test_two_processes_at_once_import_once_and_a_kill_leaves_nothing_half(machine: Machine, hub: Hub) -> None:
    hub.seconds_per_block = 0.3
    with machine.start("decode", "-m", NAME) as killed:
        while not any(path.startswith("GET") and path.endswith(".bin") for path in hub.requests):
            assert killed.poll() is None
            time.sleep(0.02)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
    assert not (machine.models / NAME).exists()
    hub.seconds_per_block = 0.0
    hub.cut = {"pytorch_model.bin": 70_000}
    hub.requests.clear()
    processes = [machine.start("decode", "-m", NAME) for _ in range(2)]
    outputs = [process.communicate("a small house\n", timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0] != ""
    told = "".join(error for _, error in outputs)
    assert told.count(": imported, and kept in") == 1
    assert told.count("waiting for another process that writes opus-mt-en-de") == 1
    assert hub.cut == {}
    assert sorted(path.name for path in (machine.models / "Helsinki-NLP").iterdir()) == [
        ".opus-mt-en-de.lock",
        "opus-mt-en-de",
    ]


def test_a_damaged_model_in_the_cache_is_imported_again(machine: Machine) -> None:
    assert machine.nmt("decode", "-m", NAME, text="a\n").returncode == 0
    weights = machine.models / NAME / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    told = machine.nmt("info", NAME)  # which imports nothing
    assert (told.returncode, told.stderr) == (0, "")
    assert "\ndamage       model.safetensors is cut short" in told.stdout
    again = machine.nmt("decode", "-m", NAME, text="a\n")
    assert again.returncode == 0
    assert (
        f"warning: {NAME} in the cache is damaged, and is imported again: model.safetensors is cut short"
        in again.stderr
    )
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    message, where, hint = machine.refusal("decode", "-m", NAME)
    assert message.startswith("model.safetensors was changed")
    assert where == str(weights)
    assert hint.startswith("remove the directory, and copy or import it again")
    shutil.rmtree(machine.models / NAME)
    assert machine.nmt("decode", "-m", NAME, text="a\n").returncode == 0


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        (
            "google/bert",
            "google/bert on the hub is a model of type 'bert', and nmt reads Marian, M2M-100 and dense NLLB-200 models",
            "take one of Helsinki-NLP (OPUS-MT), facebook/m2m100_418M or facebook/nllb-200-distilled-600M",
        ),
        (
            "no/such",
            "there is no folder no/such here, and no model of that name on the hub, or it is private",
            "check the path or the name; if it is private, export HF_TOKEN=hf_...",
        ),
        (
            f"{NAME}@v2",
            f"{NAME}@v2 has no such revision on the hub",
            f"take a commit, a tag or a branch of HUB/{NAME}, or leave it out for the newest",
        ),
        (
            "opus-mt-en-de",
            "there is no model directory opus-mt-en-de",
            "check the path; a model on the hub is named OWNER/NAME, such as Helsinki-NLP/opus-mt-en-de",
        ),
    ],
)
def test_names_that_stand_for_no_model_are_refused(machine: Machine, name: str, message: str, hint: str) -> None:
    error, _, fix = machine.refusal("decode", "-m", name)
    assert (error, fix) == (message, hint.replace("HUB", machine.hub.endpoint))


@pytest.mark.parametrize(
    ("status", "message", "hint"),
    [
        (
            (403, "GatedRepo"),
            f"{NAME} is gated: the hub wants to know who takes it",
            f"accept its terms at HUB/{NAME}, then export HF_TOKEN=hf_...",
        ),
        (
            (503, ""),
            f"cannot download {NAME}: Server error '503 Service Unavailable' for url ",
            "check the network, or name a mirror of the hub: export HF_ENDPOINT=https://HOST",
        ),
    ],
)
def test_a_hub_that_refuses_is_answered(machine: Machine, status: tuple[int, str], message: str, hint: str) -> None:
    machine.hub.status = {NAME: status}
    error, where, fix = machine.refusal("decode", "-m", NAME)
    assert error.startswith(message)
    assert where == f"{machine.hub.endpoint}/{NAME}"
    assert hint.replace("HUB", machine.hub.endpoint) in fix


def test_no_network_is_told_with_what_to_set(machine: Machine) -> None:
    error, _, fix = machine.refusal("decode", "-m", NAME, HF_ENDPOINT="http://127.0.0.1:9")
    assert error == f"cannot download {NAME}: [Errno 111] Connection refused"
    assert fix == "check the network, or name a mirror of the hub: export HF_ENDPOINT=https://HOST"


def test_a_cache_of_the_hub_that_cannot_be_written_is_told(machine: Machine) -> None:
    error, _, fix = machine.refusal("decode", "-m", NAME, HF_HOME="/sys/hub")
    assert error == "cannot write hub: no permission to write there"
    assert fix == "move the hub's cache: export HF_HOME=FOLDER"


def test_weights_with_code_in_them_are_refused_and_not_run(machine: Machine, hub: Hub) -> None:
    torch.save({"final_logits_bias": Malicious()}, hub.folder / NAME / "pytorch_model.bin")
    error, where, fix = machine.refusal("decode", "-m", NAME)
    assert error == "pytorch_model.bin cannot be read: Weights only load failed"
    assert where == f"{NAME}/pytorch_model.bin"
    own = machine.folder / "home" / "huggingface" / "hub" / "models--Helsinki-NLP--opus-mt-en-de"
    assert fix == f"download it again: rm -r {own}, then the same command; or take another model"


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("source.spm", f"{NAME} on the hub has no source.spm"),
        (
            "config.json",
            f"{NAME} on the hub is no model of transformers: no config.json names its type, and nmt reads Marian",
        ),
        (
            "pytorch_model.bin",
            f"{NAME} on the hub has no weights that nmt reads: neither model.safetensors nor pytorch_",
        ),
    ],
)
def test_a_repository_that_lacks_a_file_is_named_before_the_weights_come(
    machine: Machine, hub: Hub, missing: str, message: str
) -> None:
    (hub.folder / NAME / missing).unlink()
    error, where, _ = machine.refusal("decode", "-m", NAME)
    assert error.startswith(message)
    assert where == f"{hub.endpoint}/{NAME}"
    assert not any(path.startswith("GET") and path.endswith(".bin") for path in hub.requests)


def test_unsupported_settings_and_unknown_languages_name_the_model(machine: Machine, hub: Hub) -> None:
    write_marian(hub.folder / "own" / "translator")
    edit_json(hub.folder / "own" / "translator" / "tokenizer_config.json", source_lang=None)
    error, _, fix = machine.refusal("decode", "-m", "own/translator")
    assert error == "the languages of own/translator are not known: its tokenizer_config.json does not say them"
    assert fix == "nmt import own/translator -o MODEL --languages en-de, with its languages, and then -m MODEL"
    assert machine.nmt("import", "own/translator", "-o", "MODEL", "--languages", "en-de").returncode == 0
    edit_json(hub.folder / NAME / "config.json", activation_function="tanh")
    error, where, _ = machine.refusal("decode", "-m", NAME)
    assert error == f"{NAME} has activation_function 'tanh', which nmt's model does not support"
    assert where == f"{NAME}/config.json"


def test_what_is_a_name_on_the_hub_and_what_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for path in ("folder", "folder/other", "../x/y", "./x/y", "/x/y", "x", "runs/x", "models/x", "x/.y", "x/y z"):
        assert hub_name(path) is None, path
    assert hub_name(Path(NAME)) == HubName(NAME, None)
    assert hub_name(f"{NAME}@b199e40") == HubName(NAME, "b199e40")
    for address in (f"https://huggingface.co/{NAME}", f"huggingface.co/{NAME}", f"https://www.huggingface.co/{NAME}"):
        assert hub_name(Path(address)) == HubName(NAME, None)
    assert hub_name("myhf.co/a/b") is None
    assert hub_name(f"https://huggingface.co/{NAME}/") == HubName(NAME, None)


def preparation(folder: Path, *, taken_from: str) -> list[str]:
    """The command that prepares a text, which is written into the folder, with the vocabulary of a model."""
    for name, pairs in (("mine", parallel_text(120, seed=4)), ("held", parallel_text(12, seed=9))):
        for side, language in enumerate(("en", "de")):
            lines = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{name}.{language}").write_text(lines, encoding="utf-8")
    setting = f"tokenizer.taken_from={taken_from}"
    return ["prepare", "--train", "mine", "--valid", "held", "-l", "en-de", "--workers", "1", "--set", setting]


def test_the_address_of_a_model_stands_for_its_name_as_the_origin_of_a_vocabulary(ready: Machine) -> None:
    prepare = preparation(ready.folder, taken_from=f"https://huggingface.co/{NAME}")
    prepared = ready.nmt(*prepare, "-o", "data/addressed")
    assert prepared.returncode == 0, prepared.stderr
    written = ready.folder / "data" / "addressed"
    assert (written / "source.spm").read_bytes() == (ready.models / NAME / "source.spm").read_bytes()
    assert f" --init-from {NAME} " in prepared.stderr
    # A folder with the name of the owner does not hide the model.
    (ready.folder / NAME).parent.mkdir()
    again = ready.nmt(*preparation(ready.folder, taken_from=NAME), "-o", "data/again")
    (ready.folder / NAME).parent.rmdir()
    assert again.returncode == 0, again.stderr
    prepare[-1] = f"tokenizer.taken_from={NAME}/source.spm"
    with_file = ready.nmt(*prepare, "-o", "data/model")
    assert with_file.returncode == 0, with_file.stderr
    prepare[-1] = f"tokenizer.taken_from=https://huggingface.co/{NAME}"
    again = ready.nmt(*prepare, "-o", "data/addressed", "--dry-run")
    assert again.returncode == 0, again.stderr
    assert again.stderr.endswith("to do:  nothing, it is prepared already\n")


def test_a_dry_run_and_a_refused_output_download_no_model_for_its_vocabulary(machine: Machine, hub: Hub) -> None:
    prepare = preparation(machine.folder, taken_from=NAME)
    planned = machine.nmt(*prepare, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "to do:  cleaned, selected, tokenizer, encoded, report" in planned.stderr
    refused = machine.nmt(*prepare, "-o", "..")
    assert refused.returncode == 2, refused.stderr
    assert hub.requests == []
    assert not machine.models.exists()


def test_a_model_of_the_hub_is_fine_tuned_by_its_name_alone(ready: Machine) -> None:
    """No --set model.* and no folder of the model."""
    folder = ready.folder
    prepare = preparation(folder, taken_from=NAME)
    prepared = ready.nmt(*prepare, "-o", "data/mine")
    assert prepared.returncode == 0, prepared.stderr
    model = ready.models / NAME
    assert (folder / "data/mine/source.spm").read_bytes() == (model / "source.spm").read_bytes()
    settings = ["--set", "training.updates=2", "--set", "training.batch_tokens=500", "--device", "cpu"]
    trained = ready.nmt("train", "demo", "--data", "data/mine", "--init-from", NAME, "-o", "runs/mine", *settings)
    assert trained.returncode == 0, trained.stderr
    assert f"architecture of {model}: " in trained.stderr
    averaged = ready.nmt("average", str(model), "runs/mine/model", "-o", "models/mixed")
    assert averaged.returncode == 0, averaged.stderr
    assert ready.nmt("decode", "-m", "models/mixed", "--beam", "1", text=LINES).stdout.count("\n") == 8
