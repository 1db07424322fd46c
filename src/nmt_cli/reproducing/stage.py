"""A stage of a reproduction: its command, what it needs, whether it is finished, and what it has measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path

from nmt_cli.errors import DataError, ModelError
from nmt_cli.reproducing.experiments import Expected, FigureName
from nmt_cli.reproducing.machine import Machine
from nmt_cli.reproducing.needs import Needs
from nmt_cli.reproducing.plan import Plan
from nmt_cli.reproducing.records import Identities, Record, read_record, write_record
from nmt_cli.reproducing.verdicts import Figure


class Stage(ABC):
    """`name` is what people read, and, without blanks, names the record.

    `expected` is of the experiment, `rehearsed` what a rehearsal is judged by in place of it: counts that its settings
    fix. Its other figures are told and not judged.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        name: str,
        expected: Mapping[FigureName, Expected],
        rehearsed: Mapping[FigureName, Expected],
    ) -> None:
        self.plan, self.name = plan, name
        self._judged = rehearsed if plan.rehearsal else expected
        self._expected = {**expected, **self._judged}

    @property
    def key(self) -> str:
        """The name without blanks."""
        return self.name.replace(" ", "-")

    @property
    def expected(self) -> Mapping[FigureName, Expected]:
        """By what the stage is judged."""
        return self._judged

    def figure(self, name: FigureName, measured: float, *, detail: str = "") -> Figure:
        """A measured figure beside what is expected of it."""
        is_rehearsed = self.plan.rehearsal is not None and name not in self._judged
        return Figure(name, self._expected.get(name), measured, is_rehearsed=is_rehearsed, detail=detail)

    @property
    @abstractmethod
    def arguments(self) -> list[str]:
        """What `nmt` is given."""

    @property
    def stdout(self) -> Path | None:
        """The file that keeps what the command prints; None where it prints no data."""
        return None

    @abstractmethod
    def made_from(self) -> Identities:
        """What the stage reads, as it is now. Here and below: OSError or NmtError where that is missing or damaged."""

    @abstractmethod
    def made(self) -> Identities:
        """What the stage has written, as it is now."""

    def begin(self) -> None:  # noqa: B027  # most stages have nothing to write
        """Write what the command reads and no stage before has made."""

    @abstractmethod
    def needs(self, machine: Machine) -> Needs:
        """What the stage needs to run, or to go on."""

    @abstractmethod
    def figures(self) -> Iterator[Figure]:
        """What the finished stage has measured."""

    @property
    def record_file(self) -> Path:
        """Where the record of the stage is kept."""
        return self.plan.folder / f"{self.key}.json"

    def is_finished(self) -> bool:
        """True where the stage has ended well, and neither what it read nor what it wrote has changed since."""
        record = read_record(self.record_file)
        if record is None or list(record.command) != self.arguments:
            return False
        try:
            return record.made_from == self.made_from() and record.made == self.made()
        except (OSError, DataError, ModelError):
            return False

    def note_end(self, *, seconds: float) -> None:
        """Keep the record of the stage, which has just ended well."""
        write_record(self.record_file, Record(self.arguments, self.made_from(), self.made(), seconds))
