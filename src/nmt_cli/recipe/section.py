"""Sections of documents in YAML: their base class, ranges of numbers, and errors of validators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Section(BaseModel):
    """A part of a recipe: frozen, with unknown keys refused and no silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class SettingError(ValueError):
    """The error of a validator: the problem, the fix, and the settings at fault by their whole keys.

    `settings` is empty if the value that is validated is at fault as a whole.
    """

    def __init__(self, problem: str, fix: str, *, settings: Sequence[str] = ()) -> None:
        super().__init__(problem)
        self.fix = fix
        self.settings = settings
