"""What the command line looks like: help pages without Python's words for types, and three lines for a wrong argument.

Newer typer carries a click of its own, older typer depends on click: neither is imported here by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from nmt_cli.errors import UsageError

# click's UsageError: what every refusal of an argument is.
Refusal: type[Exception] = typer.BadParameter.__mro__[1]


class Command(TyperCommand):
    """A command whose help has the names of values alone: `--beam N`, `--overwrite`, `RECIPE`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of the command and --help."""
        return [_without_type(parameter) for parameter in super().get_params(ctx)]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What follows `nmt NAME` in the usage line."""
        arguments = [parameter for parameter in self.params if isinstance(parameter, TyperArgument)]
        return ["[OPTIONS]", *map(_usage, arguments)]


class Commands(TyperGroup):
    """The group of commands; an unknown one is answered with the nearest."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options before the command and --help."""
        return [_without_type(parameter) for parameter in super().get_params(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; UsageError where there is none."""
        if cmd_name not in self.commands:
            near = difflib.get_close_matches(cmd_name, self.commands, n=1)
            hint = f"did you mean nmt {near[0]}? " if near else ""
            raise UsageError(
                f"there is no command {cmd_name!r}", where=f"nmt {cmd_name}", hint=f"{hint}nmt --help lists them all"
            )
        return super().get_command(ctx, cmd_name)


def command_name(arguments: Sequence[str]) -> str:
    """The command among the arguments of `nmt`; empty where there is none. No option before it takes a value."""
    return next((argument for argument in arguments if not argument.startswith("-")), "")


def as_usage_error(refusal: Exception, *, arguments: Sequence[str]) -> UsageError:
    """The error of three lines for what typer refused: what is wrong, where, and what to type."""
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
    """The value and what is allowed, where typer checked it with pydantic; else typer's own words."""
    cause = problem.__cause__
    if cause is not None and hasattr(cause, "errors"):
        from nmt_cli.recipe.mistakes import describe

        return describe(cause.errors()[0], (name,))
    return f"{name}: {problem.message.removesuffix('.')}"
