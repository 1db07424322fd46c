"""The look of the command line: help pages without Python's words for types, and three lines for a wrong argument.

Newer typer carries a click of its own, older typer depends on click: neither is imported here by name.
"""

from __future__ import annotations

import difflib
import logging
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from nmt_cli.cli.decoding_options import with_decoding_options
from nmt_cli.errors import UsageError

logger = logging.getLogger(__name__)

# click's UsageError: the class of every error about arguments.
Refusal: type[Exception] = typer.BadParameter.__mro__[1]


class Command(TyperCommand):
    """A command whose help has the names of values alone: `--beam N`, `--overwrite`, `RECIPE`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of the command and --help."""
        return [_without_type(parameter) for parameter in super().get_params(ctx)]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line after `nmt NAME`."""
        arguments = [parameter for parameter in self.params if isinstance(parameter, TyperArgument)]
        return ["[OPTIONS]", *map(_usage, arguments)]


class Commands(TyperGroup):
    """The group of commands; an unknown one is answered with the nearest."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options before the command and --help."""
        return [_without_type(parameter) for parameter in super().get_params(ctx)]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name, with the options that are made from the schema."""
        name, command, rest = super().resolve_command(ctx, args)
        complete: Any = command
        return name, with_decoding_options(complete), rest

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; UsageError, with the nearest name, if there is none."""
        if cmd_name not in self.commands:
            near = difflib.get_close_matches(cmd_name, self.commands, n=1)
            hint = f"did you mean nmt {near[0]}? " if near else ""
            raise UsageError(
                f"there is no command {cmd_name!r}", where=f"nmt {cmd_name}", hint=f"{hint}nmt --help lists them all"
            )
        return super().get_command(ctx, cmd_name)


def models_of(given: Sequence[Path] | None) -> list[Path]:
    """The model directories given, the models of the runs given, or the newest model; the last two are logged."""
    from nmt_cli.artifacts.manifest import kind_of
    from nmt_cli.artifacts.model_directory import model_of_run, newest_model

    named = given or []
    models = [model_of_run(path) if kind_of(path) == "run" else path for path in named] or [newest_model(Path("runs"))]
    for model in models:
        if model not in named:
            logger.info("model: %s", model)
    return models


def is_terminal() -> bool:
    """True if stdout is a terminal that is not dumb."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str], styles: Sequence[str] = ()
) -> None:
    """Print a table on stdout: drawn on a terminal, with the columns `right` aligned there, else with tabs.

    `styles` are Rich's, one per row.
    """
    if not is_terminal():
        typer.echo("\n".join("\t".join(row) for row in (header, *rows)))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name == "name")
    for row, style in zip_longest(rows, styles):
        table.add_row(*row, style=style)
    Console(highlight=False, markup=False).print(table)


def command_name(arguments: Sequence[str]) -> str:
    """The command among the arguments of `nmt`, or an empty string. No option before the command takes a value."""
    return next((argument for argument in arguments if not argument.startswith("-")), "")


def as_usage_error(refusal: Exception, *, arguments: Sequence[str]) -> UsageError:
    """The error of three lines for arguments that typer refused: what is wrong, where, and what to type."""
    problem: Any = refusal
    context = getattr(problem, "ctx", None)
    command = context.command_path if context is not None else f"nmt {command_name(arguments)}".rstrip()
    more = f"{command} --help"
    parameter = getattr(problem, "param", None)
    option = getattr(problem, "option_name", None)
    if parameter is not None and hasattr(problem, "param_type"):
        is_argument = isinstance(parameter, TyperArgument)
        usage = _usage(parameter) if is_argument else f"{parameter.opts[0]} {parameter.metavar}"
        missing = parameter.metavar if is_argument else parameter.opts[0]
        return UsageError(f"{missing} is missing", where=command, hint=f"{command} {usage}; see {more}")
    if parameter is not None:
        name = max(parameter.opts, key=len)
        hint = f"{command} {name} {parameter.metavar}; see {more}"
        return UsageError(_wrong_value(problem, name), where=name, hint=hint)
    if hasattr(problem, "possibilities"):
        near = f"did you mean {problem.possibilities[0]}? " if problem.possibilities else ""
        return UsageError(f"{command} has no option {option}", where=option, hint=f"{near}{more} lists them all")
    text = str(problem.format_message()).removesuffix(".").replace("(s)", "s")
    input_option = f"for a file, {command} -i FILE; " if _reads_input(context) and "extra argument" in text else ""
    return UsageError(text[:1].lower() + text[1:], where=option or command, hint=f"{input_option}see {more}")


def _reads_input(context: Any) -> bool:
    """True for a command whose text comes from stdin or --input, not from an argument."""
    return context is not None and any("--input" in parameter.opts for parameter in context.command.params)


def _without_type(parameter: Any) -> Any:
    if isinstance(parameter, TyperOption) and parameter.is_flag and parameter.metavar is None:
        parameter.metavar = ""
    elif isinstance(parameter, TyperArgument):
        vars(parameter)["display_type_rich"] = lambda ctx: None
    return parameter


def _usage(argument: TyperArgument) -> str:
    name = argument.metavar or argument.name or ""
    return (name if argument.required else f"[{name}]") + ("..." if argument.nargs != 1 else "")


def _wrong_value(problem: Any, name: str) -> str:
    """The value and the allowed values if typer checked it with pydantic; otherwise typer's own words."""
    cause = problem.__cause__
    if cause is not None and hasattr(cause, "errors"):
        from nmt_cli.recipe.mistakes import describe

        return describe(cause.errors()[0], (name,))
    return f"{name}: {problem.message.removesuffix('.')}"
