"""The options of `nmt decode`, in groups."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_SEARCH, _DRAWS, _TOLD, _COMPUTING = "Search", "Draws in place of a search", "What is told", "Computing"

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
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the file that stands at -o.")]
PrefixOption = Annotated[
    Path | None,
    typer.Option("--prefix", metavar="FILE", help="What each line's translation begins with; blank: anything."),
]
StreamOption = Annotated[
    bool, typer.Option("--stream", help="Translate what has come at once, without a look at whether more does.")
]
BeamOption = Annotated[
    int | None,
    typer.Option(
        "--beam",
        "-b",
        metavar="N",
        help="Beam width, 1 for greedy search; else the model's own.",
        rich_help_panel=_SEARCH,
    ),
]
NbestOption = Annotated[
    int,
    typer.Option(
        "--nbest",
        "-n",
        metavar="N",
        help="Translations of a line, at most the beam; with tsv or jsonl.",
        rich_help_panel=_SEARCH,
    ),
]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(
        metavar="A",
        help="alpha: more favours longer translations, 0 is off; else the model's own.",
        rich_help_panel=_SEARCH,
    ),
]
LengthPenaltyFormOption = Annotated[
    str | None,
    typer.Option(
        metavar="gnmt|length|none",
        help="Divide by ((5 + n) / 6)^alpha, by n^alpha, or not; else the model's own.",
        rich_help_panel=_SEARCH,
    ),
]
MaxExtraTokensOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Target pieces beyond those of the source; else the model's own.", rich_help_panel=_SEARCH
    ),
]
MinTokensOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Target pieces before a translation may end; else the model's own.", rich_help_panel=_SEARCH
    ),
]
NextWordsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="At most N translations, each with another word after the line's --prefix; with tsv or jsonl.",
        rich_help_panel=_SEARCH,
    ),
]
MbrOption = Annotated[
    str | None,
    typer.Option(
        "--mbr",
        metavar="chrf|bleu",
        help="Of the beam or the draws, the one most like the others (minimum Bayes risk).",
        rich_help_panel=_SEARCH,
    ),
]
SamplesOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Draw N translations of a line from the model.", rich_help_panel=_DRAWS),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(metavar="T", help="Above 1 evens probabilities out, below 1 sharpens.", rich_help_panel=_DRAWS),
]
TopKOption = Annotated[
    int | None, typer.Option(metavar="K", help="Only the K most probable pieces.", rich_help_panel=_DRAWS)
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        metavar="P", help="Only the fewest most probable pieces that together have P.", rich_help_panel=_DRAWS
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Other draws; a line's hang on it and its number.", rich_help_panel=_DRAWS),
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="text|tsv|jsonl",
        help="text: a line each. tsv: line, rank, score, ln P, text. jsonl: an object each, with alternatives.",
        rich_help_panel=_TOLD,
    ),
]
WordScoresOption = Annotated[
    bool,
    typer.Option("--word-scores", help="ln P of each word and of the end; with tsv or jsonl.", rich_help_panel=_TOLD),
]
AlignmentsOption = Annotated[
    bool,
    typer.Option(
        "--alignments",
        help="Pairs of source and target words as in Pharaoh, 0-0 1-2; with tsv or jsonl.",
        rich_help_panel=_TOLD,
    ),
]
StatsOption = Annotated[
    bool,
    typer.Option(
        "--stats", help="Sentences and tokens a second, engine and precision, on stderr.", rich_help_panel=_TOLD
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        metavar="torch|ctranslate2|auto",
        help="What computes; auto: ctranslate2 for int8, where it can. ctranslate2 keeps its copy beside the model.",
        rich_help_panel=_COMPUTING,
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        metavar="auto|fp32|bf16|int8",
        help="Of matrix products; auto: fp32 on a CPU, bf16 on a GPU. bf16 is torch's, int8 for CPUs.",
        rich_help_panel=_COMPUTING,
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(metavar="auto|cpu|cuda|cuda:N", help="auto: a GPU where there is one.", rich_help_panel=_COMPUTING),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="CPUs to use; else all that the process may.", rich_help_panel=_COMPUTING),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Processes, each with the model and its share of the CPUs; needs -i. Else one for each GPU, on a CPU one.",
        rich_help_panel=_COMPUTING,
    ),
]
BatchTokensOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Source pieces times beam searched at once; else the model's own.", rich_help_panel=_COMPUTING
    ),
]
