"""Files and locks that two processes use at once."""

from __future__ import annotations

import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from nmt_cli.errors import DataError
from nmt_cli.files import lock_path, write_file


def test_two_writers_of_one_file_both_write_it_whole(tmp_path: Path) -> None:
    texts = [letter * 100_000 for letter in "abcd"]
    with ThreadPoolExecutor(len(texts)) as threads:
        list(threads.map(partial(write_file, tmp_path / "x", error=DataError), texts * 20))
    assert (tmp_path / "x").read_text() in texts
    assert os.listdir(tmp_path) == ["x"]


def test_a_look_at_a_lock_does_not_refuse_it(tmp_path: Path) -> None:
    with (tmp_path / ".x.lock").open("w") as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        threading.Timer(0.1, fcntl.flock, [looked_at, fcntl.LOCK_UN]).start()
        with lock_path(tmp_path / "x", busy="busy", error=DataError):
            pass
