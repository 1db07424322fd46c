"""Forced decoding against the beam search's own probabilities and against the model step by step, and its command."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from nmt_cli.api import Translator
from nmt_cli.artifacts import model_directory
from nmt_cli.artifacts.model_directory import LoadedModel
from nmt_cli.errors import DataError, DeviceError, ModelError, UsageError
from nmt_cli.model.packing import pack
from nmt_cli.model.teacher_forcing import forced_log_probs
from nmt_cli.scoring.forced_decoding import ForcedDecoder, ForcedScore, PerplexitySums
from nmt_cli.tokenization.tokenizer import BOS, EOS
from tests.artifacts.builders import EN_DE
from tests.decoding.reference import search_in_batches
from tests.scoring.shell import columns, nmt, refuse, run
from tests.training.tiny import parallel_text, prepare_tiny, train

CPU = torch.device("cpu")
# Float32 in batches of other shapes: sums in another order.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, with a bias of its output, after some updates: far from uniform, far from certain."""
    folder = tmp_path_factory.mktemp("forced")
    assert train(prepare_tiny(folder), folder / "runs/tiny", "training.updates=60", "model.output_bias=true") == 0
    return folder / "runs" / "tiny" / "model"


@pytest.fixture(scope="module")
def loaded(model: Path) -> LoadedModel:
    return model_directory.load_model(model, device=CPU, dtype=torch.float32)


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    """Pairs of sentences of the kind that the model has learnt."""
    return parallel_text(450, seed=3)[420:]


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs: list[tuple[str, str]]) -> Path:
    """A working folder with the files src and ref."""
    monkeypatch.chdir(tmp_path)
    for name, side in (("src", 0), ("ref", 1)):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return tmp_path


def scores_of(model: Path, pairs: list[tuple[str, str]], *, max_tokens: int | None = None) -> list[ForcedScore]:
    forced = ForcedDecoder(model, direction=EN_DE, device="cpu", precision="fp32", max_tokens=max_tokens)
    return list(forced.scores([src for src, _ in pairs], [tgt for _, tgt in pairs]))


@pytest.mark.parametrize("beam", [1, 4])
def test_forced_log_probs_are_those_of_the_search(loaded: LoadedModel, pairs: list[tuple[str, str]], beam: int) -> None:
    rows = loaded.source.encode([src for src, _ in pairs])
    config = loaded.config.recipe.decoding.model_copy(update={"beam": beam, "max_extra_tokens": 2})
    found = search_in_batches(loaded.model, rows, config=config, nbest=beam)
    sources, targets, expected = [], [], []
    num_cut = 0
    for row, hypotheses in zip(rows, found, strict=True):
        for hypothesis in hypotheses:
            # One that was cut at the limit takes part without EOS, in the search and here.
            is_cut = len(hypothesis.ids) == len(row) + 2
            num_cut += is_cut
            sources.append([*row, EOS])
            targets.append(hypothesis.ids if is_cut else [*hypothesis.ids, EOS])
            expected.append(hypothesis.log_prob)
    assert 0 < num_cut < len(sources)
    forced = forced_log_probs(loaded.model, sources, targets, bos=BOS, device=CPU)
    assert [math.fsum(values) for values in forced] == pytest.approx(expected, abs=TOLERANCE)


def test_it_is_the_sum_over_single_steps_of_the_model(loaded: LoadedModel, pairs: list[tuple[str, str]]) -> None:
    (source,), (target,) = loaded.source.encode([pairs[0][0]]), loaded.target.encode([pairs[0][1]])
    expected = []
    with torch.inference_mode():
        packed = pack([[*source, EOS]], device=CPU)
        cache = loaded.model.new_cache(loaded.model.encode(packed), packed)
        for before, gold in zip([BOS, *target], [*target, EOS], strict=True):
            logits = loaded.model.logits(loaded.model.step(torch.tensor([before]), cache))[0].double()
            expected.append((logits[gold] - logits.exp().sum().log()).item())
    (found,) = forced_log_probs(loaded.model, [[*source, EOS]], [[*target, EOS]], bos=BOS, device=CPU)
    assert found == pytest.approx(expected, abs=TOLERANCE)


def test_batches_and_neighbours_change_nothing(model: Path, pairs: list[tuple[str, str]]) -> None:
    together = scores_of(model, pairs)
    alone = scores_of(model, pairs, max_tokens=1)
    backwards = scores_of(model, pairs[::-1])[::-1]
    for others in (alone, backwards):
        assert [score.pieces for score in others] == [score.pieces for score in together]
        for one, other in zip(together, others, strict=True):
            assert one.log_prob == pytest.approx(other.log_prob, abs=TOLERANCE)
            assert one.piece_log_probs == pytest.approx(other.piece_log_probs, abs=TOLERANCE)


def test_pairs_that_exhaust_the_memory_together_are_scored_in_smaller_batches(
    model: Path, pairs: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = scores_of(model, pairs)

    def with_little_memory(model: Any, sources: Sequence[Any], *arguments: Any, **options: Any) -> list[list[float]]:
        if len(sources) > 4:
            raise MemoryError
        return forced_log_probs(model, sources, *arguments, **options)

    monkeypatch.setattr("nmt_cli.scoring.forced_decoding.forced_log_probs", with_little_memory)
    found = scores_of(model, pairs)
    assert [score.log_prob for score in found] == pytest.approx([score.log_prob for score in expected], abs=TOLERANCE)


def test_blank_lines_are_scored_as_decoding_does(model: Path) -> None:
    both, no_target, no_source = scores_of(model, [("", " "), ("The dog sees a house.", ""), ("", "Ein Haus.")])
    assert (both.log_prob, both.pieces) == (0, [])
    assert no_target.pieces == ["</s>"]
    assert no_target.log_prob is not None
    assert no_target.log_prob < -1
    assert no_source.log_prob is not None
    assert no_source.num_words == 2


def test_a_pair_too_long_for_the_model_has_no_score_and_is_named(
    model: Path, pairs: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    long = "the red ball " * 100
    scores = scores_of(model, [pairs[0], (long, "Ball"), (pairs[1][0], long), pairs[2]])
    assert [score.log_prob is None for score in scores] == [False, True, True, False]
    assert len(scores[2].pieces) > 128
    assert caplog.messages == [
        "2 of 4 pairs have no score, the first of them in line 2: this model takes 127 pieces per side"
    ]
    perplexity = PerplexitySums()
    for score in scores:
        perplexity.add(score)
    assert perplexity.num_left_out == 2
    assert perplexity.num_pieces == len(scores[0].pieces) + len(scores[3].pieces)


def test_the_longest_pair_that_fits_is_scored(model: Path, loaded: LoadedModel) -> None:
    words = "a " * 127
    (row,) = loaded.target.encode([words.strip()])
    text = loaded.target.decode([row[:127]])[0]
    assert len(loaded.target.encode([text])[0]) == 127
    (score,) = scores_of(model, [(text, text)])
    assert score.log_prob is not None
    assert len(score.pieces) == 128


def test_a_row_a_line_and_the_perplexities_in_the_log(model: Path, texts: Path, pairs: list[tuple[str, str]]) -> None:
    process = nmt("--model", str(model), "-s", "src", "ref", "--device", "cpu")
    header, *rows = columns(process.stdout)
    expected = scores_of(model, pairs)
    assert header == ["line", "log_prob", "tokens"]
    assert [row[0] for row in rows] == [str(number) for number in range(1, len(pairs) + 1)]
    assert [float(row[1]) for row in rows] == pytest.approx([score.log_prob for score in expected], abs=TOLERANCE)
    assert [int(row[2]) for row in rows] == [len(score.pieces) for score in expected]
    total = math.fsum(score.log_prob or 0 for score in expected)
    pieces = sum(len(score.pieces) for score in expected)
    words = sum(len(tgt.split()) + 1 for _, tgt in pairs)
    assert process.stderr == (
        f"perplexity: {math.exp(-total / pieces):.3f} per subword ({pieces:,}), "
        f"{math.exp(-total / words):,.3f} per word ({words:,}), the end of each line counted as one of both\n"
    )


def test_the_command_agrees_with_decode_on_its_own_translations(model: Path, texts: Path) -> None:
    lines = (texts / "src").read_text(encoding="utf-8").splitlines()
    translations = Translator.from_pretrained(model, device="cpu").translate(lines, beam=4, max_extra_tokens=20)
    (texts / "hyp").write_text("".join(f"{one.text}\n" for one in translations), encoding="utf-8")
    rows = columns(run("--model", str(model), "-s", "src", "hyp", "--device", "cpu"))[1:]
    pieces = [int(row[2]) - 1 for row in rows]
    # Text that was found in other pieces than those it is split into has another probability.
    same = [place for place, one in enumerate(translations) if one.num_pieces == pieces[place]]
    assert len(same) > len(lines) / 2
    for place in same:
        assert float(rows[place][1]) == pytest.approx(translations[place].log_prob, abs=TOLERANCE)


def test_alignments_are_those_of_decode_on_its_own_translations(model: Path, texts: Path) -> None:
    lines = (texts / "src").read_text(encoding="utf-8").splitlines()
    lines[3] = ""
    translations = Translator.from_pretrained(model, device="cpu").translate(lines, beam=1, alignments=True)
    (texts / "src").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (texts / "hyp").write_text("".join(f"{one.text}\n" for one in translations), encoding="utf-8")
    found = run("--model", str(model), "-s", "src", "hyp", "--device", "cpu", "--alignments").splitlines()
    expected = [" ".join(f"{source}-{target}" for source, target in one.alignment or []) for one in translations]
    assert found[3] == expected[3] == ""
    # Text that was found in other pieces than those it is split into may be aligned otherwise.
    same = [place for place, line in enumerate(found) if line == expected[place]]
    assert len(same) > len(lines) / 2


def test_a_pair_too_long_for_the_model_has_no_alignment_and_is_named(
    model: Path, texts: Path, pairs: list[tuple[str, str]]
) -> None:
    (texts / "ref").write_text((texts / "ref").read_text(encoding="utf-8").replace("Haus", "Haus " * 200, 1), "utf-8")
    process = nmt("--model", str(model), "-s", "src", "ref", "--device", "cpu", "--alignments")
    assert process.stdout.splitlines().count("") == 1
    assert f"1 of {len(pairs)} pairs have no alignment" in process.stderr


def test_tokens_have_a_row_each(model: Path, texts: Path, pairs: list[tuple[str, str]]) -> None:
    header, *rows = columns(run("--model", str(model), "-s", "src", "ref", "--device", "cpu", "--tokens"))
    assert header == ["line", "token", "log_prob"]
    first = scores_of(model, pairs)[0]
    assert [row[1] for row in rows if row[0] == "1"] == first.pieces
    assert first.pieces[-1] == "</s>"
    assert math.fsum(float(row[2]) for row in rows if row[0] == "1") == pytest.approx(first.log_prob, abs=TOLERANCE)


def test_json_has_everything_with_the_hashes(model: Path, texts: Path, pairs: list[tuple[str, str]]) -> None:
    (texts / "ref").write_text((texts / "ref").read_text(encoding="utf-8").replace("Haus", "Haus " * 200, 1), "utf-8")
    result = json.loads(run("--model", str(model), "-s", "src", "ref", "--device", "cpu", "--tokens", "--json"))
    assert result["left_out"] == 1
    assert len(result["sentences"]) == len(pairs)
    log_probs = [sentence["log_prob"] for sentence in result["sentences"]]
    assert log_probs.count(None) == 1
    assert result["log_prob"] == pytest.approx(math.fsum(value for value in log_probs if value is not None))
    assert result["perplexity"]["per_subword"] == pytest.approx(math.exp(-result["log_prob"] / result["subwords"]))
    assert result["perplexity"]["per_word"] == pytest.approx(math.exp(-result["log_prob"] / result["words"]))
    manifest = json.loads((model / "manifest.json").read_text(encoding="utf-8"))
    assert result["model"]["sha256"] in json.dumps(manifest)
    assert {"lines", "references", "source"} <= result.keys()
    sentence = result["sentences"][0]
    assert math.fsum(value for _, value in sentence["token_log_probs"]) == pytest.approx(sentence["log_prob"])


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ("ref", "--model needs the source text", "add the source with -s SRC, or name a test set with -t"),
        ("ref ref -s src", "--model takes one REF, not 2", "run it once for each of them"),
        (
            "ref -s src -i src",
            "-i does not go with --model",
            "leave -i out",
        ),
        (
            "ref -s src --fail-under BLEU=3",
            "--fail-under does not go with --model",
            "leave --fail-under out",
        ),
        (
            "ref -s src --alignments --tokens",
            "--tokens does not go with --alignments",
            "leave --tokens out",
        ),
        (
            "ref -s src --precision fp16",
            "there is no precision called 'fp16'",
            "take one of: auto, bf16, fp32",
        ),
    ],
)
def test_options_that_do_not_go_with_a_model_are_refused(
    model: Path, texts: Path, arguments: str, message: str, hint: str
) -> None:
    error = refuse(UsageError, "--model", str(model), *arguments.split())
    assert (error.message, error.hint) == (message, hint)


def test_a_run_stands_for_its_model(model: Path, texts: Path) -> None:
    process = nmt("--model", str(model.parent), "-s", "src", "ref", "--device", "cpu")
    assert process.stdout == nmt("--model", str(model), "-s", "src", "ref", "--device", "cpu").stdout
    assert process.stderr.startswith(f"model: {model}\n")


def test_what_is_no_model_or_does_not_fit_is_refused(model: Path, texts: Path) -> None:
    error = refuse(ModelError, "--model", str(texts), "-s", "src", "ref")
    assert error.message == f"{texts} is not a model directory: it has no config.yaml"
    assert refuse(DeviceError, "--model", str(model), "-s", "src", "ref", "--device", "tpu").setting == "device"
    (texts / "short").write_text("Ein Haus.\n", encoding="utf-8")
    error = refuse(DataError, "--model", str(model), "-s", "src", "short")
    assert error.message == "src has 30 lines, short has 1"


def test_the_direction_of_a_hint_is_one_that_the_option_takes(model: Path, texts: Path) -> None:
    brazilian = shutil.copytree(model, texts / "brazilian")
    config = yaml.safe_load((brazilian / "config.yaml").read_text(encoding="utf-8"))
    config["languages"]["target"] = "pt-BR"
    (brazilian / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    manifest = json.loads((brazilian / "manifest.json").read_text(encoding="utf-8"))
    written = (brazilian / "config.yaml").read_bytes()
    manifest["files"]["config.yaml"] = {"bytes": len(written), "sha256": hashlib.sha256(written).hexdigest()}
    (brazilian / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    arguments = ("--model", str(brazilian), "ref", "-s", "src", "--device", "cpu", "-l")
    error = refuse(UsageError, *arguments, "en-fr")
    assert error.hint == "give one of its directions: -l en-pt_BR"
    assert run(*arguments, "en-pt_BR") == run("--model", str(model), "ref", "-s", "src", "--device", "cpu")


def test_white_space_inside_a_line_is_scored_as_that_of_training_text(model: Path) -> None:
    tidy = scores_of(model, [("The dog sees a house.", "Der Hund sieht ein Haus.")])
    assert scores_of(model, [("The  dog sees\ta house.", "Der Hund   sieht ein Haus. ")]) == tidy
