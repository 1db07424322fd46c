"""Options made from the fields of `DecodingConfig`: `--beam`, `--length-penalty`, and all others.

The schema needs pydantic, which is slow to import. So a command gets these options when it is called, and `nmt --help`
does without them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from typer.core import TyperCommand

SEARCH, SAMPLING, OUTPUT, COMPUTING = "Search", "Sampling in place of a search", "Output", "Computing"

_SHORT_FLAGS = {"beam": "-b"}
_PANELS = {"batch_tokens": COMPUTING} | dict.fromkeys(("samples", "temperature", "top_k", "top_p", "seed"), SAMPLING)
_METAVARS = {"length_penalty": "A", "temperature": "T", "top_k": "K", "top_p": "P"}


def takes_decoding_options(**flags: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take an option for each of these fields, or for all if none is named, by their flags.

    The command gets the values that were given as one mapping, `overrides`.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(*arguments: object, **options: object) -> None:
            values = {name: options.pop(name, None) for name in _flags(flags)}
            command(
                *arguments, overrides={name: value for name, value in values.items() if value is not None}, **options
            )

        signature = inspect.signature(command, eval_str=True)
        others = [parameter for name, parameter in signature.parameters.items() if name != "overrides"]
        vars(run).update(__signature__=signature.replace(parameters=others), decoding_flags=flags)
        return run

    return decorated


def with_decoding_options(command: TyperCommand) -> TyperCommand:
    """The command with the options of its fields, in the panels of its help page; itself if it takes none."""
    callback: Any = command.callback
    made = list(decoding_parameters(callback))
    if not made:
        return command

    @functools.wraps(callback)
    def run(**options: object) -> None:
        callback.__wrapped__(**options)

    signature = inspect.signature(callback)
    declared = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in signature.parameters.values()]
    panels = (None, SEARCH, SAMPLING, OUTPUT, COMPUTING)
    parameters = sorted([*made, *declared], key=lambda one: panels.index(_panel(one)))
    vars(run)["__signature__"] = signature.replace(parameters=parameters)
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    single.command(command.name, cls=type(command))(run)
    complete: Any = typer.main.get_command(single)
    return complete  # type: ignore[no-any-return]  # a Typer with one command is that command


def decoding_parameters(command: Callable[..., None]) -> Iterator[inspect.Parameter]:
    """The parameters that the schema adds to a command."""
    flags: Mapping[str, str] | None = vars(command).get("decoding_flags")
    if flags is None:
        return
    from nmt_cli.recipe.schema import DecodingConfig

    for name, flag in _flags(flags).items():
        field = DecodingConfig.model_fields[name]
        option = typer.Option(
            flag,
            *([_SHORT_FLAGS[name]] if name in _SHORT_FLAGS else []),
            metavar=_METAVARS.get(name, "|".join(_choices(field)) or "N"),
            help=f"{(field.description or '')[:1].upper()}{(field.description or '')[1:]}; else the model's own.",
            rich_help_panel=None if flags else _PANELS.get(name, SEARCH),
            min=1 if flags else None,  # the others are checked beside the model's own values
        )
        kind: Any = Annotated[_type(field) | None, option]
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _flags(flags: Mapping[str, str]) -> Mapping[str, str]:
    from nmt_cli.recipe.schema import DecodingConfig

    return flags or {name: f"--{name.replace('_', '-')}" for name in DecodingConfig.model_fields}


def _panel(parameter: inspect.Parameter) -> str | None:
    panel = getattr(parameter.annotation.__metadata__[0], "rich_help_panel", None)
    return panel if isinstance(panel, str) else None


def _choices(field: FieldInfo) -> tuple[str, ...]:
    return get_args(field.annotation) if get_origin(field.annotation) is Literal else ()


def _type(field: FieldInfo) -> Any:
    """The type of an option's value: a whole number, a number, or a word."""
    if _choices(field):
        return str
    return float if field.annotation is float else int
