"""Two ranks on a CPU: `nmt` as it starts them where it sees two GPUs, and faults put into them.

`python -m tests.training.two_ranks train ...` is `nmt train ...` on a machine with two GPUs, but trained on its CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.training.ranks.launcher import open_store, rank_environment
from tests.forks import Forked
from tests.source_modules import ROOT
from tests.training.tiny import arguments_of
from tests.waiting import children

LAUNCHED = ("-m", "tests.training.two_ranks")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "nmt_cli")


def start(
    launcher: Sequence[str], data: PreparedData, folder: Path, *settings: str, fault: str = ""
) -> subprocess.Popen[str]:
    """Start the training of FOLDER/run on two ranks; `fault` is Python that each runs first, with RANK in its hands."""
    (folder / "sitecustomize.py").write_text(f"import os\nRANK = os.environ.get('RANK')\n{fault}\n", encoding="utf-8")
    return Forked(
        [sys.executable, *launcher, *arguments_of(data, folder, *settings)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}:{ROOT}:{ROOT}/src"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_module(module: str, *arguments: object, num_ranks: int = 2) -> None:
    """Run a module of the tests as `num_ranks` ranks, joined by gloo; all have to end well."""
    store = open_store()
    processes = [
        Forked[bytes](
            [sys.executable, "-m", module, *map(str, arguments)],
            env=os.environ | rank_environment(rank, num_ranks=num_ranks, port=store.port),
            cwd=ROOT,
        )
        for rank in range(num_ranks)
    ]
    assert [process.wait() for process in processes] == [0] * num_ranks


def in_update(number: int, statement: str, *, rank: int) -> str:
    """A fault: a statement that a rank executes before it takes an update."""
    return f"""
import time
def install():
    from nmt_cli.training.update import Updater
    original = Updater.launch
    def launch(self, *arguments, number, **options):
        if RANK == "{rank}" and number == {number}:
            {statement}
        return original(self, *arguments, number=number, **options)
    Updater.launch = launch
if RANK is not None:
    install()
"""


def rank_processes(launcher: int) -> dict[str, int]:
    """The processes of the ranks that a launcher has started so far, by name."""
    found: dict[str, int] = {}
    for process in children(launcher):
        try:
            environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        found |= {f"rank {entry[5:].decode()}": int(process) for entry in environment if entry.startswith(b"RANK=")}
    return found


def main() -> None:
    """Run `nmt` where there seem to be two GPUs; options may stand before the command `train`."""
    from nmt_cli.cli import app
    from nmt_cli.training import start

    start.num_gpus = lambda device: 2
    command = sys.argv.index("train")
    sys.argv[1:] = [*sys.argv[command:], *sys.argv[1:command]]
    app.main()


if __name__ == "__main__":
    main()
