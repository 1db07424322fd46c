from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from nmt_cli import devices
from nmt_cli.cli.prepare import _next_lines, prepare
from nmt_cli.errors import RecipeError, UsageError
from nmt_cli.preparing.vocabulary import find_vocabulary
from nmt_cli.recipe.loading import load_recipe
from tests.forks import run_forked
from tests.preparing.corpus_files import contents, corpus_of, invented_pairs, small_corpus

OWN = ["--train", "train", "--valid", "valid", "--languages", "en-de", "-o", "out/mine", "--workers", "1"]
OWN += ["--set", "tokenizer.vocab_size=400"]


def nmt(arguments: Sequence[str], *, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_forked([sys.executable, "-m", "nmt_cli", *arguments], cwd=folder)


def test_own_files_are_prepared_and_found_again(tmp_path: Path) -> None:
    small_corpus(tmp_path)
    done = nmt(["prepare", *OWN, "--test", "test", "--limit", "550"], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "cleaned: 550 of 550 training pairs kept" in done.stderr
    assert "mine: en to de, 400 shared pieces" in done.stderr
    *_, data, warning, fine_tuning, train = done.stderr.splitlines()
    assert data == "data:   out/mine (report.html tells more)"
    assert warning.startswith("warning: 550 training pairs are too few to learn a language from random weights")
    model = "--set tokenizer.taken_from=Helsinki-NLP/opus-mt-en-de -o data/mine-tuned"
    assert fine_tuning == f"nmt prepare {shlex.join(OWN)} --test test --limit 550 {model}"
    assert train == "next:   nmt train small --data out/mine"
    assert "550 training pairs are too few" in (tmp_path / "out/mine/report.html").read_text()
    again = nmt(["--quiet", "prepare", *OWN, "--test", "test", "--limit", "550"], folder=tmp_path)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_one_command_makes_data_of_a_translation_memory(tmp_path: Path) -> None:
    variants = '<tuv xml:lang="en-US"><seg>{}</seg></tuv><tuv xml:lang="de"><seg>{}</seg></tuv>'
    units = "".join(f"<tu>{variants.format(*pair)}</tu>\n" for pair in invented_pairs(400, seed=1))
    (tmp_path / "company.tmx").write_text(f'<tmx version="1.4"><body>{units}</body></tmx>')
    command = ["prepare", "--train", "company.tmx", "-l", "en-de", "--workers", "1"]
    command += ["--set", "cleaning.max_length_ratio=null"]
    done = nmt(command, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "company.tmx: en is en-US\n" in done.stderr
    assert "set aside: 40 clean pairs as validation text\n" in done.stderr
    assert "cleaned: 360 of 360 training pairs kept\n" in done.stderr
    assert "--data data/company\n" in done.stderr
    again = nmt(command, folder=tmp_path)
    assert "data/company is already prepared from these inputs and settings\n" in again.stderr
    both = [*command, "--train", "company.tmx", "--valid-size", "300", "-o", "data/both"]
    refused = nmt(both, folder=tmp_path)
    assert refused.returncode == 4
    assert refused.stderr.endswith(
        "error: valid_size 300 is more than half of the 400 clean training pairs\n"
        "at:    train\n"
        "fix:   --valid-size 40, or text in files of its own: --valid FILE\n"
    )


def test_copies_by_weight_are_no_more_pairs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    small_corpus(tmp_path)
    corpus_of(tmp_path, "{kind: text, prefix: train, weight: 200}")
    prepare(str(tmp_path / "c.yaml"), output=tmp_path / "data", workers=1)
    assert "600 training pairs are too few" in caplog.text
    assert "nmt train small" in caplog.text


def test_an_error_is_three_lines_and_the_code_of_its_family(tmp_path: Path) -> None:
    small_corpus(tmp_path)
    (tmp_path / "train.de").write_text("nur\nzwei\n")
    failed = nmt(["prepare", *OWN], folder=tmp_path)
    assert failed.returncode == 4
    assert failed.stdout == ""
    assert failed.stderr == (
        "error: train.en has 600 lines, train.de has 2\n"
        "at:    train.en, train.de\n"
        "fix:   align the files line by line, then run nmt prepare again\n"
    )
    assert not (tmp_path / "out" / "mine").exists()


def test_a_dry_run_prints_a_corpus_file_and_writes_nothing(tmp_path: Path) -> None:
    small_corpus(tmp_path)
    before = contents(tmp_path)
    planned = nmt(["prepare", *OWN, "--dry-run", "--set", "cleaning.max_words=90"], folder=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert contents(tmp_path) == before
    printed = yaml.safe_load(planned.stdout)
    assert (printed["cleaning"]["max_words"], printed["tokenizer"]["symbols"]) == (90, [])
    assert printed["train"][0].keys() >= {"alignments", "languages", "tags", "synthetic"}
    assert f"input:  train: train.en, {(tmp_path / 'train.en').stat().st_size:,} bytes\n" in planned.stderr
    assert planned.stderr.endswith("output: out/mine\nto do:  cleaned, selected, tokenizer, encoded, report\n")
    (tmp_path / "again.yaml").write_text(planned.stdout)
    done = nmt(["-q", "prepare", "again.yaml", "-o", "out/mine", "--workers", "1"], folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("languages", "fixes"),
    [
        *(("en-jp", ["write ja"]), ("en-cn", ["write zh"]), ("gr_GR-cz", ["write el", "write cs"])),
        *(("english-Deutsch", ["write en", "write de"]), ("xx-e1", ["check it", "check it"])),
        *(("eng_Latn-pt_BR", []), ("nb-sr_Latn", []), ("zho_Hans-hbs", []), ("es_XX-qaa", [])),
    ],
)
def test_a_code_of_no_language_is_told_with_the_likely_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, languages: str, fixes: list[str]
) -> None:
    (tmp_path / "my.tsv").write_text("one\teins\n")
    prepare(train=[str(tmp_path / "my.tsv")], languages=[languages], output=tmp_path / "data", dry_run=True)
    assert len(caplog.messages) == len(fixes)
    assert all(fix in warning for fix, warning in zip(fixes, caplog.messages, strict=True))


@pytest.mark.parametrize(
    ("name", "pairs", "has_gpu", "recipe"),
    [
        ("demo", 3000, False, "demo"),
        ("wmt14-en-de", 4_500_000, True, "base"),
        ("wmt14-en-fr", 36_000_000, True, "base-en-fr"),
        ("mine", 3000, False, "small"),
        ("mine", 100_000, True, "small"),
        ("mine", 100_001, True, "medium"),
        ("mine", 300_000, False, "medium"),
        ("mine", 1_000_001, True, "base"),
        ("mine", 4_500_000, False, "base"),
    ],
)
def test_the_next_command_has_a_recipe_that_fits_the_data_and_can_be_pasted(
    monkeypatch: pytest.MonkeyPatch, name: str, pairs: int, has_gpu: bool, recipe: str
) -> None:
    monkeypatch.setattr(devices, "has_gpu_driver", lambda: has_gpu)
    report = {"name": name, "unique_pairs": pairs, "vocabulary": {"shared": True}}
    first, *others = _next_lines(report, Path("two words") / name, model=None)
    assert first == f"next:   nmt train {recipe} --data 'two words/{name}'"
    assert load_recipe(recipe).name == recipe
    if pairs > 100_000 and not has_gpu:
        (line,) = others
        assert f"{recipe} takes a GPU, and none is seen here: on a CPU it takes weeks." in line
        assert line.endswith("To try the data here: nmt train small --data 'two words/mine'")
    else:
        assert others == []


@pytest.mark.parametrize(("mark", "is_told"), [("run.json", True), ("config.yaml", True), ("train.bin", False)])
def test_data_with_the_vocabulary_of_a_model_can_go_on_from_its_weights(
    tmp_path: Path, mark: str, is_told: bool
) -> None:
    (tmp_path / "m").mkdir()
    for name in (mark, "source.spm", "target.spm"):
        (tmp_path / "m" / name).touch()
    located = small_corpus(tmp_path, f"tokenizer.taken_from={tmp_path}/m")
    report = {"name": "mine", "unique_pairs": 10, "vocabulary": {"shared": False}}
    (line,) = _next_lines(report, Path("d"), model=find_vocabulary(located).model)
    anew = "nmt train small --data d --set model.tying=target"
    tuning = f"nmt train small --data d --init-from {tmp_path}/m --set training.schedule="
    assert line.startswith(f"next:   {tuning}'{{name: inverse_sqrt, peak: 1e-4" if is_told else f"next:   {anew}")
    assert find_vocabulary(small_corpus(tmp_path)).model is None


def test_overlap_is_told_and_control_characters_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    small_corpus(tmp_path)
    text = (tmp_path / "train.en").read_text().splitlines()
    (tmp_path / "train.en").write_text("".join(f"\x1b[31m{line}\n" for line in text))
    for code in ("en", "de"):
        with (tmp_path / f"valid.{code}").open("a") as file:
            file.write((tmp_path / f"train.{code}").read_text().splitlines(keepends=True)[0])
    caplog.set_level("INFO")
    settings = ["tokenizer.vocab_size=400", "cleaning.control_characters=false"]
    train, valid = (str(tmp_path / split) for split in ("train", "valid"))
    prepare(train=[train], valid=[valid], languages=["en-de"], output=tmp_path / "data", overrides=settings, workers=1)
    assert "\x1b" not in caplog.text + capsys.readouterr().err
    assert "en: ▁\\x1b" in caplog.text.replace(" ", "").replace("en:", "en: ")
    (found,) = [record for record in caplog.records if record.message.startswith("overlap: ")]
    assert "of 21 validation lines, training contains 1 as pairs, 1 as sources, 1 as targets: scores" in found.message


@pytest.mark.parametrize("name", ["x.tsv", "x.tsv.gz", "x.csv", "x.tmx", "x.xlf", "x.po", "x.jsonl", "x.parquet"])
def test_text_given_as_a_corpus_is_answered_with_the_command_that_prepares_it(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(b'"one\t\xff')
    with pytest.raises(RecipeError) as caught:
        prepare(str(file), output=tmp_path / "data")
    assert caught.value.message == f"{name} is text, not a corpus file"
    assert caught.value.hint == f"nmt prepare --train {file} -l en-de"


def test_arguments_that_name_no_corpus_or_two_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        prepare()
    assert caught.value.message == "no corpus is given"
    assert caught.value.hint.startswith("nmt prepare NAME, or nmt prepare --train FILE")
    with pytest.raises(UsageError) as caught:
        prepare(train=["a"], output=Path("b"))
    assert caught.value.message == "the languages are missing"
    assert caught.value.hint == "add the languages, source first: -l en-de"
    with pytest.raises(UsageError) as caught:
        prepare(languages=["en-de"], output=Path("b"))
    assert (caught.value.message, caught.value.hint) == ("the training text is missing", "add --train FILE")
    with pytest.raises(UsageError) as caught:
        prepare("demo", train=["a"])
    assert caught.value.message == "--train does not go with the corpus demo"
    assert caught.value.exit_code == 2


def test_a_mistake_in_a_number_names_its_setting() -> None:
    with pytest.raises(RecipeError, match="valid names text as well") as caught:
        prepare("demo", valid_size=10, dry_run=True)
    assert caught.value.where == "--set valid_size=10"


def test_the_current_folder_is_not_an_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="names no folder") as caught:
        prepare(train=["a"], valid=["b"], languages=["en-de"], output=Path("."))
    assert caught.value.hint == "for example -o data/mine"
    with pytest.raises(UsageError, match="/proc is a mount point"):
        prepare(train=["a"], valid=["b"], languages=["en-de"], output=Path("/proc"))
