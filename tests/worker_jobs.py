"""Jobs for worker processes, which import them by name."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from nmt_cli.errors import DataError


@dataclass(frozen=True)
class Squares:
    """Squares a number, after a time that differs from task to task."""

    def start(self) -> Callable[[int], tuple[int, int]]:
        return self._square

    def _square(self, number: int) -> tuple[int, int]:
        time.sleep(0.002 * (number * 7 % 5))
        return number * number, os.getpid()


@dataclass(frozen=True)
class Named:
    """Says which one of several jobs did the task."""

    name: str

    def start(self) -> Callable[[int], tuple[str, int]]:
        return self._say

    def _say(self, task: int) -> tuple[str, int]:
        time.sleep(0.1)
        return self.name, task


@dataclass(frozen=True)
class Trouble:
    """Fails in the way that the task names."""

    def start(self) -> Callable[[str], str]:
        return self._fail

    def _fail(self, how: str) -> str:
        if how == "refused":
            raise DataError("line 7 is odd", hint="make it even", where="train.en:7")
        if how == "bug":
            raise KeyError("not there")
        if how == "too large":
            resource.setrlimit(resource.RLIMIT_AS, (1 << 31, resource.RLIM_INFINITY))
            bytearray(1 << 32)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "slow":
            time.sleep(60)
        return how


@dataclass(frozen=True)
class Unstartable:
    """A job whose beginning fails."""

    def start(self) -> Callable[[int], int]:
        raise DataError("no model", hint="install it")
