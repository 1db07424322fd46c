"""What a request may ask for: the limits of the server, and the options of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from nmt_cli.recipe.schema import SplitSentences

MAX_FILE_BYTES = 10_000_000
"""The largest document."""


def _check_not_text(value: Any) -> Any:
    if isinstance(value, str | bool):
        raise PydanticCustomError("number_type", "Input should be a number")
    return value


# The last annotation of a field of numbers, around its bounds. pydantic alone would read a number from text, and its
# strict mode would refuse 3.0, which is an integer in JSON.
NUMBER = BeforeValidator(_check_not_text)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one request, with at most `characters` in a text; `concurrent_requests` are all that may be in work.

    `timeout_seconds` is the longest time from the last byte of a request to its answer.
    """

    characters: int
    texts: int
    sentences: int
    concurrent_requests: int
    timeout_seconds: float
    alternatives: int
    beam: int

    @property
    def request_characters(self) -> int:
        """The characters of all texts of a request: clients send 50 texts at once and more."""
        return 10 * self.characters

    @property
    def body_bytes(self) -> int:
        """The longest body: a file, or twelve bytes for each character, as if all were escaped; 1 MB for the rest."""
        return max(MAX_FILE_BYTES, 12 * self.request_characters) + 1_000_000


class SearchOptions(BaseModel):
    """How texts are split and searched; settings that are left out are the model's own."""

    nbest: Annotated[int, Field(ge=1, description="translations of each text and sentence; else 1"), NUMBER] = 1
    beam: Annotated[int | None, Field(ge=1, description="width of the search; 1 is greedy"), NUMBER] = None
    length_penalty: Annotated[float | None, Field(ge=0, le=10, allow_inf_nan=False), NUMBER] = None
    max_extra_tokens: Annotated[int | None, Field(ge=0, description="at most the model's own"), NUMBER] = None
    prefix: Annotated[str, Field(description="what the translation of a single sentence begins with")] = ""
    split_sentences: Annotated[
        SplitSentences, Field(description="auto: as in nmt decode; never: a line is cut only if the model needs it")
    ] = "always"
    alignments: Annotated[bool, Field(strict=True, description="which source word each target word was made from")] = (
        False
    )
