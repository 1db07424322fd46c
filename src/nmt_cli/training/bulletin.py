"""What the processes of one training tell each other beside their collectives: signs of life, and the first failure."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented there, and not declared
from torch.distributed.distributed_c10d import PrefixStore, Store

_TIMEOUT = timedelta(seconds=5)
_CAUSE_SECONDS = 3.0
_BEATS, _CLAIMS, _FAILURE = "beats", "claims", "failure"


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure that ends a training: its exit code, and whether it is that no rank made progress."""

    exit_code: int
    is_stall: bool


class Bulletin:
    """A board that all ranks, and their launcher, write on and read from; RuntimeError where it cannot be reached."""

    def __init__(self, store: Store) -> None:
        # The attempt is counted by torchrun, whose store outlives one.
        self._store = PrefixStore(f"nmt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def beat(self) -> None:
        """Tell that a rank has made progress."""
        self._store.add(_BEATS, 1)

    def beats(self) -> int:
        """How often ranks have told of progress."""
        return self._store.add(_BEATS, 0)

    def claim(self, failure: Failure) -> Failure | None:
        """Put up a failure; None where it is the first one, whose message is to be shown, else the one that was."""
        if self._store.add(_CLAIMS, 1) == 1:
            self._store.set(_FAILURE, json.dumps(asdict(failure)))
            return None
        return self._read()

    def failure(self) -> Failure | None:
        """The first failure; None so far."""
        return self._read() if self._store.check([_FAILURE]) else None

    def _read(self) -> Failure:
        return Failure(**json.loads(self._store.get(_FAILURE)))  # waits for whoever is about to put it up


def find_bulletin() -> Bulletin | None:
    """The board of the launcher, or of the first rank, that this process's environment names; None if out of reach."""
    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return Bulletin(TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=_TIMEOUT))
    except (KeyError, ValueError, RuntimeError):
        return None


def failure_before(exit_code: int, *, is_consequence: bool) -> Failure | None:
    """Put up this rank's failure; None where it is the first, else the one that was, whose message is enough.

    The consequence of another's failure is put up only if that one has not been, for a while.
    """
    bulletin = find_bulletin()
    if bulletin is None:
        return None
    try:
        deadline = time.monotonic() + (_CAUSE_SECONDS if is_consequence else 0.0)
        while (first := bulletin.failure()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return first or bulletin.claim(Failure(exit_code, is_stall=False))
    except RuntimeError:
        return None
