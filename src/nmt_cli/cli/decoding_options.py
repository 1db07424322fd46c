"""Options of a command that are made from the fields of `DecodingConfig`, when the command is called.

The schema needs pydantic, which is slow to import, and `nmt --help` does without it. So a command goes three steps:

1. `takes_decoding_options` marks the function `decode(..., overrides)`, and hides `overrides` from typer.
2. `with_decoding_options`, for the one command that the user types, makes a new command with an option per field.
3. That command calls the marked function with all options, and the function collects the ones given as `overrides`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import typer
from typer.core import TyperCommand

# The panels of a help page.
SEARCH, SAMPLING, OUTPUT, COMPUTING = "Search", "Sampling", "Output", "Computing"
_SHORT_FLAGS = {"beam": ("-b",)}
_PANELS = {"batch_tokens": COMPUTING} | dict.fromkeys(("samples", "temperature", "top_k", "top_p", "seed"), SAMPLING)
_METAVARS = {"length_penalty": "A", "temperature": "T", "top_k": "K", "top_p": "P"}
_PANEL_ORDER = (None, SEARCH, SAMPLING, OUTPUT, COMPUTING)


def takes_decoding_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take an option for each field of `DecodingConfig`; it gets the given values as `overrides`."""
    signature = inspect.signature(command, eval_str=True)
    own_parameters = {name: parameter for name, parameter in signature.parameters.items() if name != "overrides"}

    @functools.wraps(command)
    def collect_overrides(*arguments: object, **options: object) -> None:
        own_options = {name: value for name, value in options.items() if name in own_parameters}
        decoding_options = {name: value for name, value in options.items() if name not in own_parameters}
        overrides = {name: value for name, value in decoding_options.items() if value is not None}
        command(*arguments, overrides=overrides, **own_options)

    # typer reads __signature__, so `nmt --help` sees the command without `overrides`.
    own_signature = signature.replace(parameters=list(own_parameters.values()))
    vars(collect_overrides).update(__signature__=own_signature, takes_decoding_options=True)
    return collect_overrides


def with_decoding_options(command: TyperCommand) -> TyperCommand:
    """The command with an option for each field of `DecodingConfig`, or unchanged if it takes none."""
    callback: Any = command.callback  # typer's wrapper of the marked function, which is its __wrapped__
    if not hasattr(callback, "takes_decoding_options"):
        return command

    @functools.wraps(callback)
    def command_with_all_options(**options: object) -> None:
        callback.__wrapped__(**options)

    signature = inspect.signature(callback)
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in signature.parameters.values()]
    parameters = sorted([*_decoding_parameters(), *own], key=_panel_index)
    vars(command_with_all_options)["__signature__"] = signature.replace(parameters=parameters)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    app.command(command.name, cls=type(command))(command_with_all_options)
    return cast("TyperCommand", typer.main.get_command(app))


def _panel_index(parameter: inspect.Parameter) -> int:
    """The index of a parameter's panel on the help page; arguments and options of no panel come first."""
    declaration = parameter.annotation.__metadata__[0]  # typer.Option(...) in Annotated[TYPE, typer.Option(...)]
    return _PANEL_ORDER.index(getattr(declaration, "rich_help_panel", None))


def _decoding_parameters() -> Iterator[inspect.Parameter]:
    """A parameter of the command for each field of `DecodingConfig`; its default is None."""
    from nmt_cli.recipe.schema import DecodingConfig

    for name, field in DecodingConfig.model_fields.items():
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        kind: Any = str if choices else float if field.annotation is float else int
        meaning = (field.description or "").partition("; null: ")[0]  # an option cannot be null
        option = typer.Option(
            f"--{name.replace('_', '-')}",
            *_SHORT_FLAGS.get(name, ()),
            metavar=_METAVARS.get(name, "|".join(choices) or "N"),
            help=f"{meaning[:1].upper()}{meaning[1:]}; else the model's own.",
            rich_help_panel=_PANELS.get(name, SEARCH),
        )
        annotation: Any = Annotated[kind | None, option]
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
