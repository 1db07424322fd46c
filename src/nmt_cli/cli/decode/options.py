"""The options of `nmt decode` that are no settings of the search: files, output, and computing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nmt_cli.cli.decoding_options import COMPUTING, OUTPUT, SEARCH

ModelOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="DIR",
        help="Model, or a run for its model; else the newest under runs/. Given again: models that translate together.",
    ),
]
InputOption = Annotated[
    Path, typer.Option("--input", "-i", metavar="FILE", help="Text to translate, .gz and .zst too; - is stdin.")
]
OutputOption = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="File to write; - is stdout. With -i FILE, an interrupted command continues where it was.",
    ),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the file at -o.")]
PrefixOption = Annotated[
    Path | None,
    typer.Option(
        "--prefix", metavar="FILE", help="The beginning of each line's translation; a blank line leaves it free."
    ),
]
StreamOption = Annotated[
    bool, typer.Option("--stream", help="Translate lines as soon as they come, without waiting for more.")
]
NbestOption = Annotated[
    int,
    typer.Option(
        "--nbest",
        "-n",
        metavar="N",
        help="Translations of a line, at most the beam; with tsv or jsonl.",
        rich_help_panel=SEARCH,
    ),
]
MbrOption = Annotated[
    str | None,
    typer.Option(
        "--mbr",
        metavar="chrf|bleu",
        help="Choose the translation most like the others in the beam or the samples (minimum Bayes risk).",
        rich_help_panel=SEARCH,
    ),
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="text|tsv|jsonl",
        help="text: one line each. tsv: line, rank, score, log-probability, text. jsonl: objects with alternatives.",
        rich_help_panel=OUTPUT,
    ),
]
WordScoresOption = Annotated[
    bool,
    typer.Option(
        "--word-scores", help="Log-probability of each word and of the end; with tsv or jsonl.", rich_help_panel=OUTPUT
    ),
]
AlignmentsOption = Annotated[
    bool,
    typer.Option(
        "--alignments",
        help="Pairs of source and target words as in Pharaoh, 0-0 1-2; with tsv or jsonl.",
        rich_help_panel=OUTPUT,
    ),
]
StatsOption = Annotated[
    bool,
    typer.Option(
        "--stats", help="Sentences and tokens per second, engine and precision, on stderr.", rich_help_panel=OUTPUT
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        metavar="torch|ctranslate2|auto",
        help="auto: ctranslate2 for int8 if it can, else torch. ctranslate2 keeps its copy beside the model.",
        rich_help_panel=COMPUTING,
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        metavar="auto|fp32|bf16|int8",
        help="Of matrix products; auto: fp32 on a CPU, bf16 on a GPU. bf16 is torch's, int8 for CPUs.",
        rich_help_panel=COMPUTING,
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(metavar="auto|cpu|cuda|cuda:N", help="auto: a GPU if there is one.", rich_help_panel=COMPUTING),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="CPUs to use; else all that the process may.", rich_help_panel=COMPUTING),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Processes, each with the model and its share of the CPUs; needs -i. Else one for each GPU, on a CPU one.",
        rich_help_panel=COMPUTING,
    ),
]
