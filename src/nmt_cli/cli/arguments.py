"""Arguments of all commands: help pages, the models that a command names, and wrong arguments.

Newer typer carries a click of its own, older typer depends on click: neither is imported here by name.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from nmt_cli.cli.decoding_options import with_decoding_options
from nmt_cli.cli.spellings import check_options, command_for, command_name
from nmt_cli.errors import UsageError, nearest_word

logger = logging.getLogger(__name__)

# click's UsageError: the class of every error about arguments.
Refusal: type[Exception] = typer.BadParameter.__mro__[1]


class Command(TyperCommand):
    """A command whose help has the names of values alone: `--beam N`, `--overwrite`, `RECIPE`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of the command and --help."""
        return [_without_shown_type(parameter) for parameter in super().get_params(ctx)]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line after `nmt NAME`."""
        arguments = [parameter for parameter in self.params if isinstance(parameter, TyperArgument)]
        return ["[OPTIONS]", *map(_argument_usage, arguments)]


class Commands(TyperGroup):
    """The group of commands; an unknown one is answered with the nearest."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options before the command and --help."""
        return [_without_shown_type(parameter) for parameter in super().get_params(ctx)]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name, with the options that are made from the schema.

        UsageError, with what to type instead, for options that it does not have.
        """
        name, found, rest = super().resolve_command(ctx, args)
        command = with_decoding_options(cast("TyperCommand", found))
        if not ctx.resilient_parsing:  # a shell asks how the line may go on
            check_options(str(name), rest, _options_of(command))
        return name, command, rest

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; UsageError, with the nearest name, if there is none."""
        if cmd_name not in self.commands:
            ours, near = command_for(cmd_name), nearest_word(cmd_name, self.commands)
            hint = f"here it is nmt {ours}; " if ours else f"did you mean nmt {near}? " if near else ""
            raise UsageError(
                f"there is no command {cmd_name!r}", where=f"nmt {cmd_name}", hint=f"{hint}nmt --help lists them all"
            )
        return super().get_command(ctx, cmd_name)


def models_of(given: Sequence[Path] | None) -> list[Path]:
    """The model directories given, the models of the runs given or of names on the hub, or the newest model.

    What the user did not name is logged. Raises ModelError for anything else, before torch is imported.
    """
    from nmt_cli.artifacts.directory_kinds import check_is_model
    from nmt_cli.artifacts.run import model_of_latest_run
    from nmt_cli.console import show_progress
    from nmt_cli.interchange.hub_models import find_model

    if not given:
        models = [model_of_latest_run(Path("runs"))]
        logger.info("model: %s", models[0])
        return models
    models = [find_model(path, show_progress=show_progress) for path in given]
    for model, path in zip(models, given, strict=True):
        if path != model and path.exists():
            logger.info("model: %s", model)
        check_is_model(model)
    return models


def complete_models(incomplete: str) -> list[str]:
    """The runs and models here, and the cached models of the hub, whose names begin so, for the shell."""
    from nmt_cli.artifacts.directory_kinds import kind_of
    from nmt_cli.cache import cache_folder

    cached, typed = cache_folder() / "models", Path(f"{incomplete}x").parent
    here = {path for folder in ("runs", "models", typed) for path in Path(folder).glob("*")}
    names = [str(path) for path in here if kind_of(path) in ("run", "model")]
    names += [path.relative_to(cached).as_posix() for path in cached.glob("*/*") if kind_of(path) == "model"]
    return sorted(name for name in names if name.startswith(incomplete))


def with_plain_path(argument: str) -> str:
    """The argument with ./OWNER/NAME as an absolute path if it could be taken for a name on the hub.

    A `Path` drops the dot, by which the user says that a path is meant.
    """
    match = re.match(r"(?P<option>--[a-z-]+=)?(?P<path>\./+(?P<owner>[^/]+)/+[^/]+/*)$", argument)
    if match is None or os.path.exists(match["owner"]):
        return argument
    return (match["option"] or "") + os.path.abspath(match["path"])


def one_of(given: str, words: Any, *, flag: str, refusal: str) -> Any:
    """The word given, if it is one of the Literal `words`; UsageError with the message `refusal` otherwise."""
    allowed: tuple[str, ...] = get_args(words)
    if given not in allowed:
        raise UsageError(refusal, where=flag, hint=f"take one of: {', '.join(allowed)}")
    return given


def as_usage_error(refusal: Exception, *, arguments: Sequence[str]) -> UsageError:
    """The error of three lines for arguments that typer refused: what is wrong, where, and what to type."""
    problem: Any = refusal
    context, parameter = getattr(problem, "ctx", None), getattr(problem, "param", None)
    command = context.command_path if context is not None else f"nmt {command_name(arguments)}".rstrip()
    more = f"{command} --help"
    if parameter is not None and hasattr(problem, "param_type"):
        return _missing_parameter_error(parameter, context, command=command, arguments=arguments)
    if parameter is not None:
        name = max(parameter.opts, key=len)
        hint = f"{command} {name} {parameter.metavar}; see {more}"
        return UsageError(_wrong_value_message(problem, name), where=name, hint=hint)
    option = getattr(problem, "option_name", None)
    if hasattr(problem, "possibilities"):  # no such option
        near = nearest_word(problem.option_name, [name for known in problem.ctx.command.params for name in known.opts])
        hint = f"did you mean {near}? " if near else ""
        return UsageError(f"{command} has no option {option}", where=option, hint=f"{hint}{more} lists them all")
    text = str(problem.format_message()).removesuffix(".").replace("(s)", "s")
    reads_input = context is not None and any("--input" in parameter.opts for parameter in context.command.params)
    input_option = f"for a file, {command} -i FILE; " if reads_input and "extra argument" in text else ""
    return UsageError(text[:1].lower() + text[1:], where=option or command, hint=f"{input_option}see {more}")


def _missing_parameter_error(parameter: Any, context: Any, *, command: str, arguments: Sequence[str]) -> UsageError:
    if isinstance(parameter, TyperArgument):
        missing, typed = parameter.metavar, f"{command} {_argument_usage(parameter)}"
    else:
        missing = parameter.opts[0]
        option = f"{missing} {parameter.metavar}"
        if missing == "--output" and context is not None and (named := context.params.get("directory")):  # nmt import
            option = f"-o models/{shlex.quote(Path(named).name.removesuffix('.npz'))}"
        typed = f"nmt {shlex.join(arguments)} {option}"
    return UsageError(f"{missing} is missing", where=command, hint=f"{typed}; see {command} --help")


def _options_of(command: TyperCommand) -> dict[str, str]:
    """The options of a command, each with the name of its value, or with an empty string if it takes none."""
    options = {"-h": "", "--help": ""}
    for parameter in command.params:
        if isinstance(parameter, TyperOption):
            value = "" if parameter.is_flag else parameter.metavar or "VALUE"
            options |= dict.fromkeys((*parameter.opts, *parameter.secondary_opts), value)
    return options


def _without_shown_type(parameter: Any) -> Any:
    """The parameter without the type that typer's help would show beside its name."""
    if isinstance(parameter, TyperOption) and parameter.is_flag and parameter.metavar is None:
        parameter.metavar = ""
    elif isinstance(parameter, TyperArgument):
        vars(parameter)["display_type_rich"] = lambda ctx: None
    return parameter


def _argument_usage(argument: TyperArgument) -> str:
    """The argument as a usage line has it: FILE, [FILE] or FILE..."""
    name = argument.metavar or argument.name or ""
    return (name if argument.required else f"[{name}]") + ("..." if argument.nargs != 1 else "")


def _wrong_value_message(problem: Any, name: str) -> str:
    """The value and the allowed values if typer checked it with pydantic; otherwise typer's own words."""
    cause = problem.__cause__
    if cause is not None and hasattr(cause, "errors"):
        from nmt_cli.recipe.mistakes import describe

        return describe(cause.errors()[0], (name,))
    return f"{name}: {problem.message.removesuffix('.')}"
