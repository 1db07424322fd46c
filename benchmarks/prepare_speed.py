"""Speed, memory and disk of `nmt prepare` beside SentencePiece alone, in turn; prints one JSON object.

python benchmarks/prepare_speed.py --train mix/train --valid newstest2013 --languages en-fr --workers 2

SentencePiece alone encodes the lines of both files, from memory to lists of ids, with as many threads and the model
that was just trained. Private memory is the sampled sum of Private_Clean and Private_Dirty of all processes, and is
kept apart while the tokenizer is trained. With --kills N, one more preparation is killed N times at random moments, all
processes at once, and continued; its files must be the same.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from measuring import NMT, Figures, argument_parser, circumstances, lines_of, private_megabytes, processes_of, run

_SAMPLES_A_SECOND = 5
_LINES_A_CALL = 100_000


@dataclass
class Preparation:
    """One run of `nmt prepare`: seconds by stage, and the peaks of memory and disk in megabytes."""

    pairs: int = 0
    wall: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    private: dict[str, float] = field(default_factory=lambda: {"without tokenizer": 0.0, "tokenizer": 0.0})
    work: float = 0.0
    output: float = 0.0

    @property
    def rate(self) -> float:
        """Training pairs per second, without the time of training the tokenizer."""
        return self.pairs / (self.wall - self.stages["tokenizer"])


def main() -> None:
    """Alternate both sides and print the figures."""
    arguments = _arguments()
    if arguments.encode:
        print(_encode_alone(arguments))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        output = Path(temporary) / "data"
        ours, alone = [], []
        for _ in range(arguments.rounds):
            shutil.rmtree(output, ignore_errors=True)
            ours.append(_prepare(arguments, output))
            encoding = [sys.executable, __file__, "--encode", str(output), *sys.argv[1:]]
            alone.append(ours[-1].pairs / float(run(encoding)))
        result = _result(arguments, ours, alone)
        if arguments.kills:
            result["kills"] = _killed(arguments, output, Path(temporary) / "killed" / "data", seconds=ours[-1].wall)
    print(json.dumps(result, indent=2))


def _result(arguments: argparse.Namespace, ours: list[Preparation], alone: list[float]) -> Figures:
    rate, encoded = statistics.median(one.rate for one in ours), statistics.median(alone)
    stages = {stage: statistics.median(one.stages[stage] for one in ours) for stage in ours[0].stages}
    return {
        "benchmark": "preparation, training pairs a second",
        **circumstances("cpu", commit=arguments.commit),
        "pairs": ours[0].pairs,
        "workers": arguments.workers,
        "rounds": arguments.rounds,
        "prepare_without_tokenizer": {"median": round(rate), "all": [round(one.rate) for one in ours]},
        "sentencepiece_alone": {"median": round(encoded), "all": [round(one) for one in alone]},
        "ratio": round(rate / encoded, 2),
        "seconds": stages,
        "pairs_a_second": {stage: round(ours[0].pairs / max(seconds, 0.1)) for stage, seconds in stages.items()},
        "peak_private_megabytes": {when: round(max(one.private[when] for one in ours)) for when in ours[0].private},
        "peak_work_megabytes": round(max(one.work for one in ours)),
        "output_megabytes": round(ours[0].output),
    }


def _command(arguments: argparse.Namespace, output: Path) -> list[str]:
    prefixes = ["--train", arguments.train, "--valid", arguments.valid, "--languages", arguments.languages]
    settings = ["--set", f"tokenizer.vocab_size={arguments.vocab_size}", "--workers", str(arguments.workers)]
    return [*NMT, "prepare", *prefixes, *settings, "-o", str(output)]


def _prepare(arguments: argparse.Namespace, output: Path) -> Preparation:
    """Run a preparation to its end and watch it."""
    taken = Preparation()
    begin = time.perf_counter()
    with subprocess.Popen(_command(arguments, output), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines: list[str] = []
        reader = Thread(target=lines.extend, args=(process.stderr,))
        reader.start()
        while process.poll() is None:
            _sample(process.pid, lines, output, taken)
            time.sleep(1 / _SAMPLES_A_SECOND)
        taken.wall = time.perf_counter() - begin
        reader.join()
    log = "".join(lines)
    if process.returncode:
        sys.exit(log)
    found = re.search(r"^cleaned: [\d,]+ of ([\d,]+) training pairs kept$", log, re.MULTILINE)
    seconds = re.search(r"^seconds: (.+)$", log, re.MULTILINE)
    assert found is not None
    assert seconds is not None
    taken.pairs = int(found[1].replace(",", ""))
    taken.stages = {stage: float(number) for stage, number in re.findall(r"(\w+) ([\d.]+)", seconds[1])}
    taken.output = _megabytes_in(output)
    return taken


def _sample(root: int, lines: list[str], output: Path, taken: Preparation) -> None:
    private = sum(map(private_megabytes, processes_of(root)))
    begun = sum(line.startswith("tokenizer: training on ") for line in list(lines))
    ended = sum(line.startswith("tokenizer: ") and line.endswith(" pieces\n") for line in list(lines))
    when = "tokenizer" if begun > ended else "without tokenizer"
    taken.private[when] = max(taken.private[when], private)
    taken.work = max(taken.work, _megabytes_in(output.with_name(f"{output.name}.partial")))


def _megabytes_in(folder: Path) -> float:
    """Megabytes of the files of a folder; a file with several names counts once."""
    sizes = {}
    for path in folder.rglob("*"):
        try:
            facts = path.lstat()
        except OSError:
            continue
        sizes[facts.st_ino] = facts.st_size if path.is_file() else 0
    return sum(sizes.values()) / 1e6


def _killed(arguments: argparse.Namespace, expected: Path, output: Path, *, seconds: float) -> Figures:
    """Prepare with kills at random moments, and compare the files."""
    draw = random.Random(arguments.seed)
    moments: list[float] = []
    code = None
    while code is None:
        is_last = len(moments) == arguments.kills
        process = subprocess.Popen(_command(arguments, output), stderr=subprocess.DEVNULL, start_new_session=True)
        moment = draw.uniform(0.5, 1.5 * seconds / (arguments.kills + 1))
        try:
            code = process.wait(timeout=None if is_last else moment)
        except subprocess.TimeoutExpired:
            moments.append(round(moment, 1))
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    names = sorted(path.name for path in expected.iterdir())
    same, other, missing = filecmp.cmpfiles(expected, output, names, shallow=False)
    is_same = code == 0 and same == names and sorted(path.name for path in output.iterdir()) == names
    return {"seconds_until_each": moments, "exit_code": code, "same_files": is_same, "differ": other + missing}


def _encode_alone(arguments: argparse.Namespace) -> float:
    """Seconds of SentencePiece for the lines of both files, read beforehand."""
    import sentencepiece

    total = 0.0
    for side, language in zip(("source", "target"), arguments.languages.split("-"), strict=True):
        file = next(path for ending in ("", ".gz") if (path := Path(f"{arguments.train}.{language}{ending}")).exists())
        lines = lines_of(file)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(Path(arguments.encode) / f"{side}.spm"))
        begin = time.perf_counter()
        for start in range(0, len(lines), _LINES_A_CALL):
            processor.encode(lines[start : start + _LINES_A_CALL], num_threads=arguments.workers)
        total += time.perf_counter() - begin
    return total


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--train", required=True, metavar="PREFIX", help="training text, plain or .gz")
    parser.add_argument("--valid", required=True, metavar="PREFIX")
    parser.add_argument("--languages", required=True, metavar="SOURCE-TARGET")
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=0, help="kill one more preparation so many times")
    parser.add_argument("--seed", type=int, default=1, help="seed for the moments of the kills")
    parser.add_argument("--folder", help="where the data is written; default: the system's temporary folder")
    parser.add_argument("--encode", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
