"""Arguments of all commands: common options, the models that a command names, and wrong arguments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from nmt_cli.console import configure_logging, show_progress
from nmt_cli.errors import UsageError, nearest_word
from nmt_cli.recipe.foreign_names import answer_to_argument

if TYPE_CHECKING:
    from nmt_cli.recipe.loading import Kind

logger = logging.getLogger(__name__)


def _be_quiet(quiet: bool) -> bool:
    if quiet:
        configure_logging(quiet=True)
    return quiet


# The option of a command that takes models.
model_option = partial(typer.Option, "--model", "-m", metavar="DIR")
# The languages of a model of several.
ToOption = Annotated[
    str | None, typer.Option("--to", metavar="CODE", help="Language to translate into, if the model has several.")
]
FromOption = Annotated[
    str | None, typer.Option("--from", metavar="CODE", help="Language of the text, if the model has to know it.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
# Each command has both, so they may stand before or after its name.
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", callback=_be_quiet, help="Only warnings and errors on stderr.")
]
# `cli/app.py` looks for --debug in the arguments, so it also works for errors in the arguments.
DebugOption = Annotated[bool, typer.Option("--debug", help="A traceback with each error.")]


def complete_packaged(kind: Kind) -> Callable[[str], list[str]]:
    """A completion for the shell: the packaged recipes or corpora whose names begin with what was typed."""

    def complete(incomplete: str) -> list[str]:
        from nmt_cli.recipe.loading import packaged_names

        return [name for name in packaged_names(kind=kind) if name.startswith(incomplete)]

    return complete


class Command(TyperCommand):
    """A command whose help has the names of values alone: `--beam N`, `--overwrite`, `RECIPE`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of the command and --help."""
        return [_without_shown_type(parameter) for parameter in super().get_params(ctx)]


class Commands(TyperGroup):
    """The group of commands; an unknown one is answered with the nearest."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options before the command and --help."""
        return [_without_shown_type(parameter) for parameter in super().get_params(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; UsageError, with the nearest name, if there is none."""
        if cmd_name not in self.commands and not ctx.resilient_parsing:  # not for completions
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
    from nmt_cli.interchange.find_model import find_model

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


def usage_error_from(error: Any) -> UsageError:
    """The error of three lines for arguments that typer refused: what is wrong, where, and what to type."""
    context, parameter = error.ctx, getattr(error, "param", None)
    command = context.command_path if context else "nmt"
    help_page = f"{command} --help" if context else "the command's --help"
    options = [name for known in (context.command.params if context else []) for name in known.opts]
    if parameter is not None:
        name: Any = parameter.metavar if isinstance(parameter, TyperArgument) else max(parameter.opts, key=len)
        typed = name if isinstance(parameter, TyperArgument) else f"{name} {parameter.metavar}"
        hint = f"{command} {typed}; see {help_page}"
        if hasattr(error, "param_type"):
            return UsageError(f"{name} is missing", where=command, hint=hint)
        return UsageError(_wrong_value_message(error, name), where=name, hint=hint)
    option: Any = getattr(error, "option_name", None)
    if hasattr(error, "possibilities"):  # there is no such option
        near = nearest_word(option, options)
        hint = f"did you mean {near}? {help_page} lists them all" if near else f"{help_page} lists them all"
        hint = answer_to_argument(option, options=options) or hint
        return UsageError(f"{command} has no option {option}", where=option, hint=hint)
    message = error.format_message().removesuffix(".").replace("(s)", "s")
    hint = f"see {help_page}"
    if "extra argument" in message and "--input" in options:
        hint = f"for a file, {command} -i FILE; {hint}"
    return UsageError(message[:1].lower() + message[1:], where=option or command, hint=hint)


def _without_shown_type(parameter: Any) -> Any:
    """The parameter without the Python type that typer's help would show beside its name, such as <list[Path]>."""
    if isinstance(parameter, TyperArgument):
        parameter.display_type_rich = lambda ctx: None  # type: ignore[method-assign]  # typer has no option for it
    elif parameter.is_flag:
        parameter.metavar = ""
    return parameter


def _wrong_value_message(error: Any, name: str) -> str:
    """The value and what is allowed, in the words of a recipe's errors if pydantic itself found it; else in typer's."""
    (found,) = error.__cause__.errors() if hasattr(error.__cause__, "errors") else [None]
    if found is not None and found["type"] != "value_error":
        from nmt_cli.recipe.mistakes import describe

        return describe(found, (name,))
    message = error.message if found is None else str(found["ctx"]["error"])  # of typer's own validators
    return f"{name}: {message.removesuffix('.')}"
