"""The model card: front matter that a hub can read, and the facts of the run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nmt_cli.artifacts.model_card import render_card
from nmt_cli.artifacts.run import open_run
from tests.artifacts.builders import SIGNATURE, tiny_recipe, write_run

TRAIN = ["nmt", "train", "tiny.yaml", "--set", "description=two words"]


def card(
    path: Path,
    *,
    updates: list[int],
    summary: dict[str, Any] | None = None,
    num_checkpoints: int = 4,
    **sections: Any,
) -> str:
    recipe = tiny_recipe(description="A try.", **sections)
    write_run(path, updates=num_checkpoints, finished="2026-01-02T04:00:00+00:00", recipe=recipe)
    if summary is not None:
        record = json.loads((path / "run.json").read_text())
        (path / "run.json").write_text(json.dumps(record | {"data_summary": summary}))
    run = open_run(path)
    return render_card(run, config=run.saved_config_of(updates), num_parameters=65_073_152, commands=[TRAIN])


def front_matter(text: str) -> dict[str, Any]:
    empty, yaml_text, _ = text.split("---\n", 2)
    assert empty == ""
    values: dict[str, Any] = yaml.safe_load(yaml_text)
    return values


def test_the_front_matter_is_what_a_hub_reads(tmp_path: Path) -> None:
    values = front_matter(card(tmp_path / "x", updates=[300]))
    assert values["language"] == ["en", "de"]
    assert values["pipeline_tag"] == "translation"
    assert values["library_name"] == "nmt-cli"
    assert "datasets" not in values
    assert "license" not in values


OTHER_DROPOUTS = "| dropout of attention, feed-forward, words of source and target | 0.1, 0.0, 0.0 and 0.2 |\n"


@pytest.mark.parametrize(
    ("sections", "row"),
    [
        ({}, ""),
        ({"model": {"attention_dropout": 0.1, "word_dropout": {"target": 0.2}}}, OTHER_DROPOUTS),
        ({"tokenizer": {"dropout": 0.1}}, "| sampled pieces | BPE-dropout of 0.1 |\n"),
    ],
)
def test_regularisers_have_a_row_if_the_recipe_has_them(sections: dict[str, Any], row: str, tmp_path: Path) -> None:
    text = card(tmp_path / "x", updates=[400], **sections)
    assert f"| dropout, label smoothing | 0.1, 0.1 |\n{row}| tokens per update |" in text


def test_an_average_claims_no_score_of_its_checkpoints(tmp_path: Path) -> None:
    text = card(tmp_path / "x", updates=[300, 400])
    assert "the average of 2 checkpoints, after updates 300, 400" in text
    assert "BLEU on the validation set, of the checkpoints that were averaged: 14.00 to 40.00." in text
    assert "BLEU of the average itself was not measured." in " ".join(text.split())


def test_the_facts_of_the_run_are_there(tmp_path: Path) -> None:
    text = card(tmp_path / "x", updates=[400])
    for fact in (
        "# tiny: en to de",
        "65.1 million parameters",
        "99 % of the source lines in its training have at most 1,030 pieces. Expect worse translations of longer",
        "A try.",
        "$ nmt train tiny.yaml --set 'description=two words'",
        "The weights are those after update 400. Training began 2026-01-02T03:04:05+00:00 and ended 2026-01-02T04:00",
        "| train | 1,234 | 22,222 | 23,333 |",
        "| train | `mini.en` | `abababababababab` |",
        "Two sentences about a house.",
        "SentencePiece, 300 pieces for both languages",
        "BLEU on the validation set: 14.00.",
        f"`{SIGNATURE}`",
        "Licence of the data: not stated.",
        "| tokens per update | 25,000 |",
    ):
        assert fact in text


def test_a_corpus_of_many_files_has_a_short_table_that_no_name_breaks(tmp_path: Path) -> None:
    inputs = [{"split": "train", "name": f"part|{number}", "sha256": "ab" * 32} for number in range(1025)]
    text = card(tmp_path / "x", updates=[400], summary={"inputs": inputs})
    rows = re.findall(r"^\| train \|.*$", text, flags=re.MULTILINE)
    assert (len(rows), rows[3]) == (20, "| train | `part\\|3` | `abababababababab` |")
    assert "|\n\nAnd 1,005 more, which the manifest of the prepared data lists.\n\n## Scores" in text


def test_a_licence_and_hub_data_sets_are_passed_on(tmp_path: Path) -> None:
    local = {"kind": "hub", "repository": "./copy", "split": "train"}
    hub = {"kind": "hub", "repository": "wmt/wmt14", "split": "train"}
    summary = {"corpus": {"licence": "CC BY 4.0", "train": [hub, local], "valid": [hub], "test": None}}
    text = card(tmp_path / "x", updates=[400], summary=summary)
    assert front_matter(text)["datasets"] == ["wmt/wmt14"]
    assert "Licence of the data: CC BY 4.0." in text


def test_a_run_without_summary_or_validation_has_a_card(tmp_path: Path) -> None:
    text = card(tmp_path / "x", updates=[100], summary={}, num_checkpoints=0)
    assert "No BLEU was measured in training." in text
