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
from typing import Any, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from nmt_cli.errors import UsageError, nearest_word
from nmt_cli.recipe.foreign_names import answer_to_argument

logger = logging.getLogger(__name__)

# click's UsageError, the class of all errors about arguments.
ArgumentError: type[Exception] = typer.BadParameter.__mro__[1]


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

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; UsageError, with the nearest name, if there is none."""
        if cmd_name not in self.commands:
            near = nearest_word(cmd_name, self.commands)
            hint = f"did you mean nmt {near}? nmt --help lists them all" if near else "nmt --help lists them all"
            hint = answer_to_argument(cmd_name) or hint
            raise UsageError(f"there is no command {cmd_name!r}", where=f"nmt {cmd_name}", hint=hint)
        return super().get_command(ctx, cmd_name)


def find_models(paths: Sequence[Path] | None) -> list[Path]:
    """The model directories that the paths name, themselves or by a run or a name on the hub; else the newest model.

    A directory that the user did not name is logged. ModelError if there is no such model, before torch is imported.
    """
    from nmt_cli.artifacts.directory_kinds import check_is_model
    from nmt_cli.artifacts.run import model_of_latest_run
    from nmt_cli.console import show_progress
    from nmt_cli.interchange.hub_models import find_model

    if not paths:
        models = [model_of_latest_run(Path("runs"))]
        logger.info("model: %s", models[0])
        return models
    models = [find_model(path, show_progress=show_progress) for path in paths]
    for model, path in zip(models, paths, strict=True):
        if path != model and path.exists():
            logger.info("model: %s", model)
        check_is_model(model)
    return models


def complete_models(incomplete: str) -> list[str]:
    """The runs and models here, and the cached models of the hub, whose names begin so, for the shell."""
    from nmt_cli.artifacts.directory_kinds import kind_of
    from nmt_cli.cache import cache_folder

    typed_folder = Path(f"{incomplete}x").parent
    local_paths = {path for folder in ("runs", "models", typed_folder) for path in Path(folder).glob("*")}
    names = [str(path) for path in local_paths if kind_of(path) in ("run", "model")]
    cache = cache_folder() / "models"
    names += [path.relative_to(cache).as_posix() for path in cache.glob("*/*") if kind_of(path) == "model"]
    return sorted(name for name in names if name.startswith(incomplete))


def with_absolute_path(argument: str) -> str:
    """The argument; ./OWNER/NAME, which could be taken for a name on the hub, becomes an absolute path.

    The user means a path by the dot, and a `Path` would drop the dot.
    """
    match = re.match(r"(?P<option>--[a-z-]+=)?(?P<path>\./+(?P<owner>[^/]+)/+[^/]+/*)$", argument)
    if match is None or os.path.exists(match["owner"]):
        return argument
    return (match["option"] or "") + os.path.abspath(match["path"])


def parse_choice(word: str, choices: Any, *, flag: str, message: str) -> Any:
    """The word, if it is one of the Literal `choices`; otherwise UsageError with the message."""
    allowed: tuple[str, ...] = get_args(choices)
    if word not in allowed:
        near = nearest_word(word, allowed)
        start = f"did you mean {near}? " if near else ""
        raise UsageError(message, where=flag, hint=f"{start}take one of: {', '.join(allowed)}")
    return word


def usage_error_from(argument_error: Exception, *, arguments: Sequence[str]) -> UsageError:
    """The error of three lines for arguments that typer refused: what is wrong, where, and what to type."""
    error: Any = argument_error
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    command = context.command_path if context is not None else f"nmt {_command_name(arguments)}".rstrip()
    if parameter is not None and hasattr(error, "param_type"):
        return _missing_parameter_error(parameter, command=command, arguments=arguments)
    if parameter is not None:
        name = max(parameter.opts, key=len)
        hint = f"{command} {name} {parameter.metavar}; see {command} --help"
        return UsageError(_wrong_value_message(error, name), where=name, hint=hint)
    option: Any = getattr(error, "option_name", None)
    if hasattr(error, "possibilities"):  # there is no such option
        options = [name for known in error.ctx.command.params for name in known.opts]
        near = nearest_word(option, options)
        hint = f"did you mean {near}? {command} --help lists them all" if near else f"{command} --help lists them all"
        hint = answer_to_argument(option, options=options) or hint
        return UsageError(f"{command} has no option {option}", where=option, hint=hint)
    message = str(error.format_message()).removesuffix(".").replace("(s)", "s")
    hint = f"see {command} --help"
    options = [name for known in (context.command.params if context else []) for name in known.opts]
    if "extra argument" in message and "--input" in options:
        hint = f"for a file, {command} -i FILE; {hint}"
    return UsageError(message[:1].lower() + message[1:], where=option or command, hint=hint)


def _missing_parameter_error(parameter: Any, *, command: str, arguments: Sequence[str]) -> UsageError:
    if isinstance(parameter, TyperArgument):
        missing, right_command = parameter.metavar, f"{command} {_argument_usage(parameter)}"
    else:
        missing = parameter.opts[0]
        right_command = f"nmt {shlex.join(arguments)} {missing} {parameter.metavar}"
    return UsageError(f"{missing} is missing", where=command, hint=f"{right_command}; see {command} --help")


def _command_name(arguments: Sequence[str]) -> str:
    """The command among the arguments of `nmt`, or an empty string. No option before the command takes a value."""
    return next((argument for argument in arguments if not argument.startswith("-")), "")


def _without_shown_type(parameter: Any) -> Any:
    """The parameter without the type that typer's help would show beside its name; the shell completes its values."""
    if words := [word for word in (parameter.metavar or "").split("|") if word.islower()]:  # auto and cpu, not cuda:N
        vars(parameter)["_custom_shell_complete"] = lambda *typed: [word for word in words if word.startswith(typed[2])]
    if isinstance(parameter, TyperOption) and parameter.is_flag and parameter.metavar is None:
        parameter.metavar = ""
    elif isinstance(parameter, TyperArgument):
        vars(parameter)["display_type_rich"] = lambda ctx: None
    return parameter


def _argument_usage(argument: TyperArgument) -> str:
    """The argument as a usage line has it: FILE, [FILE] or FILE..."""
    name = argument.metavar or argument.name or ""
    return (name if argument.required else f"[{name}]") + ("..." if argument.nargs != 1 else "")


def _wrong_value_message(error: Any, name: str) -> str:
    """The value and the allowed values if typer checked it with pydantic; otherwise typer's own words."""
    cause = error.__cause__
    if cause is not None and hasattr(cause, "errors"):
        from nmt_cli.recipe.mistakes import describe

        return describe(cause.errors()[0], (name,))
    return f"{name}: {error.message.removesuffix('.')}"
