"""Exactness: `nmt score` against the official figures of WMT22 and against Moses' own Perl scripts."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from nmt_cli.scoring.paper_bleu import PaperText
from tests.scoring.shell import nmt, run


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t"))


def lines_of(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").removesuffix("\n").split("\n")


@pytest.mark.parametrize(
    "system",
    [pytest.param("OpenNMT", marks=pytest.mark.slow), pytest.param("PROMT", marks=pytest.mark.slow), "Online-W"],
)
def test_every_official_score_of_wmt22_to_nine_digits(shared_data: Path, system: str) -> None:
    folder = shared_data / "wmt22-en-de"
    rows = rows_of(folder / "official-scores.tsv")
    official = {row["metric"]: float(row["score"]) for row in rows if row["system"] == system}
    assert len(official) == 6
    references = {"A": ["ref.A.de"], "B": ["ref.B.de"], "all": ["ref.A.de", "ref.B.de"]}
    found: dict[str, float] = {}
    for which, names in references.items():
        files = [str(folder / name) for name in names]
        scores = json.loads(run(*files, "-i", str(folder / f"hyp.{system}.de"), "-m", "bleu,chrf", "--json"))["scores"]
        found |= {f"bleu-{which}": scores["BLEU"]["score"], f"chrf-{which}": scores["chrF2"]["score"]}
        assert scores["BLEU"]["signature"].startswith(f"nrefs:{len(names)}|case:mixed|eff:no|tok:13a|smooth:exp|")
    assert found == pytest.approx(official, abs=1e-9)


@pytest.mark.parametrize(
    ("tokens", "text", "language"),
    [
        ("wmt22.hyp.OpenNMT.tok.de", "wmt22-en-de/hyp.OpenNMT.de", "de"),
        ("wmt22.hyp.PROMT.tok.de", "wmt22-en-de/hyp.PROMT.de", "de"),
        ("wmt22.ref.A.tok.de", "wmt22-en-de/ref.A.de", "de"),
        ("newstest2013.hyp.tok.fr", "moses-reference/newstest2013.hyp.fr", "fr"),
        ("newstest2013.ref.tok.fr", "newstest/newstest2013.fr", "fr"),
    ],
)
def test_tokens_are_those_of_moses_in_every_line(shared_data: Path, tokens: str, text: str, language: str) -> None:
    paper = PaperText(language)
    prepare = paper.hypothesis if ".hyp." in tokens else paper.reference
    raw, expected = lines_of(shared_data / text), lines_of(shared_data / "moses-reference" / tokens)
    assert len(raw) == len(expected)
    assert [prepare(line) for line in raw] == expected


@pytest.mark.parametrize("place", range(3))
def test_paper_bleu_is_what_multi_bleu_prints(shared_data: Path, place: int) -> None:
    row = rows_of(shared_data / "moses-reference" / "expected.tsv")[place]
    reference, hypothesis = (str(shared_data / row[side]) for side in ("reference", "hypothesis"))
    output = run(reference, "-i", hypothesis, "-l", row["pair"], "-m", "paper-bleu", "--json")
    scores = json.loads(output)["scores"]
    assert list(scores) == ["paper-BLEU", "BLEU"]
    paper = scores["paper-BLEU"]
    assert f"BLEU = {paper['score']:.2f}, {paper['details']}" == row["multi-bleu"]


def test_paper_bleu_says_with_which_figures_it_compares(shared_data: Path) -> None:
    folder = shared_data / "wmt22-en-de"
    process = nmt(str(folder / "ref.A.de"), "-i", str(folder / "hyp.PROMT.de"), "-m", "paper-bleu", "-l", "en-de")
    lines = [line.split("\t") for line in process.stdout.splitlines()]
    assert [line[:2] for line in lines] == [["paper-BLEU", "36.31"], ["BLEU", "36.12"]]
    assert lines[0][2].startswith("nrefs:1|case:mixed|eff:no|tok:moses-de|smooth:none|compounds:split|punct:ascii-hyp|")
    assert process.stderr == (
        "paper-BLEU compares with the paper's 27.3 (base) and 28.4 (big) on newstest2014 and other multi-bleu scores "
        "of such tokens; BLEU compares with other papers' sacreBLEU scores of the same signature; "
        "never one with the other\n"
    )
