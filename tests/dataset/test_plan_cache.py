"""Plans on disk: built once, by one process, found again, mended where they are damaged, removed when they are old."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import pytest

from nmt_cli.dataset import plan_cache
from nmt_cli.dataset.plan_cache import PLANS, PlanCache
from nmt_cli.dataset.plan_computation import compute_plan
from nmt_cli.dataset.plan_files import FORMAT, DamagedPlan, EpochInvariants, EpochPlan, PlanKey, write_plan
from nmt_cli.dataset.prepared_data import PreparedData, open_prepared
from nmt_cli.errors import DataError
from tests.dataset.synthetic import key_of, write_prepared
from tests.forks import Forked


@pytest.fixture
def data(tmp_path: Path) -> PreparedData:
    return write_prepared(tmp_path / "data")


def opened(
    data: PreparedData, *, anew: bool = False, epoch: int = 0, seed: int = 1, batch_tokens: int = 500
) -> EpochPlan:
    key = key_of(data, epoch=epoch, seed=seed, batch_tokens=batch_tokens)
    return PlanCache(data, fallback=data.directory.with_name("run"), beat=lambda: None).open(key, anew=anew)


def pairs_of(plan: EpochPlan) -> list[list[int]]:
    return [plan.rows(index)["pair"].tolist() for index in range(len(plan))]


def plans_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The epochs that this process has planned."""
    planned: list[int] = []

    def noted(*arguments: Any, key: PlanKey, invariants: EpochInvariants | None) -> object:
        planned.append(key.epoch)
        return compute_plan(*arguments, key=key, invariants=invariants)

    monkeypatch.setattr(plan_cache, "compute_plan", noted)
    return planned


def test_the_name_of_a_plan_follows_from_the_format_and_the_fields_without_defaults(data: PreparedData) -> None:
    key = key_of(data)
    values = key.model_dump()
    assert values.pop("alpha") is None
    assert key.directory_name == f"{digest_of(values, FORMAT)}-epoch-00000"


def digest_of(key: dict[str, Any], plan_format: int) -> str:
    return sha256(f"{plan_format} {json.dumps(key, separators=(',', ':'))}".encode()).hexdigest()[:12]


def write_as_format_2(plan: Path) -> None:
    """Change the manifest of a plan to that of the earlier format."""
    manifest = json.loads((plan / "manifest.json").read_text())
    facts = manifest.pop("invariants")
    del facts["max_tokens_in_sentence"]
    facts["num_left_out"] = facts.pop("num_pairs_left_out")
    manifest |= {"format": 2, "facts": facts, "num_rows": manifest["key"]["num_pairs"]}
    (plan / "manifest.json").write_text(json.dumps(manifest))


def test_a_plan_of_an_earlier_format_has_another_name_and_the_rows_stay(
    data: PreparedData, builds: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    plan = opened(data)
    expected = [plan.rows(index).tobytes() for index in range(len(plan))]
    plan.close()
    write_as_format_2(plan.directory)
    values = key_of(data).model_dump(exclude_defaults=True)
    earlier = plan.directory.rename(plan.directory.with_name(f"{digest_of(values, 2)}-epoch-00000"))
    again = opened(data)
    assert [again.rows(index).tobytes() for index in range(len(again))] == expected
    assert builds == [0, 0]
    assert plans_in(data.directory / PLANS) == sorted([earlier.name, plan.directory.name])
    assert caplog.messages == []


def test_a_plan_on_disk_has_the_rows_of_the_one_in_memory(data: PreparedData) -> None:
    plan = opened(data, epoch=3)
    expected = compute_plan(data.split("train"), key=key_of(data, epoch=3), invariants=None)
    assert len(plan) == len(expected) > 10
    for index in range(len(plan)):
        np.testing.assert_array_equal(plan.rows(index), expected.rows(expected.pairs_of_update(index)))
    np.testing.assert_array_equal(plan.longest_rows, expected.rows(expected.longest_pairs))
    # The narrowest numbers that do: 500 pairs, 10,000 tokens, 40 pieces.
    assert plan.rows(0).itemsize == 10
    assert (plan.directory / "rows").stat().st_size == 500 * 10


def test_a_plan_is_built_once_and_found_again(data: PreparedData, builds: list[int]) -> None:
    first, second = opened(data), opened(data)
    assert builds == [0]
    assert first.directory == second.directory
    assert first.directory.parent == data.directory / "plans"
    assert pairs_of(first) == pairs_of(second)
    opened(data, epoch=1)
    opened(data, seed=2)
    opened(data, batch_tokens=501)
    assert builds == [0, 1, 0, 0]


def test_plans_do_not_make_the_data_look_foreign(data: PreparedData) -> None:
    opened(data)
    assert open_prepared(data.directory).manifest == data.manifest


BUILDER = """
import sys, time
from pathlib import Path
from nmt_cli.dataset import plan_cache
from nmt_cli.dataset.prepared_data import open_prepared
from tests.dataset.synthetic import key_of

original, built = plan_cache.compute_plan, []

def slowly(*arguments, **options):
    built.append(1)
    time.sleep(0.3)
    return original(*arguments, **options)

plan_cache.compute_plan = slowly
data = open_prepared(Path(sys.argv[1]))
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
cache = plan_cache.PlanCache(data, fallback=Path("unused"), beat=lambda: None)
plan = cache.open(key_of(data), anew=False)
print(len(built), sum(int(plan.rows(index)["pair"].sum()) for index in range(len(plan))))
"""


def test_of_several_processes_one_builds_and_all_read(data: PreparedData, repository: Path) -> None:
    command = [sys.executable, "-c", BUILDER, str(data.directory)]
    processes = [Forked(command, stdin=PIPE, stdout=PIPE, text=True, cwd=repository) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=300)[0].split() for process in processes]
    assert sorted(int(built) for built, _ in outputs) == [0, 0, 1]
    assert {int(total) for _, total in outputs} == {500 * 499 // 2}


def test_what_a_killed_builder_left_is_cleared(data: PreparedData, builds: list[int]) -> None:
    opened(data).close()
    (name,) = plans_in(data.directory / PLANS)
    (data.directory / PLANS / name).rename(data.directory / PLANS / f".{name}.partial")
    opened(data)
    assert plans_in(data.directory / PLANS) == [name]
    assert builds == [0, 0]


def cut_rows(plan: Path) -> None:
    os.truncate(plan / "rows", 100)


def flip(name: str) -> Callable[[Path], None]:
    def change(plan: Path) -> None:
        content = bytearray((plan / name).read_bytes())
        content[len(content) // 2] ^= 1
        (plan / name).write_bytes(content)

    return change


def give_rows_a_type_that_numpy_does_not_know(plan: Path) -> None:
    manifest = plan / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"<u2"', '"xx"'))


def give_another_key(plan: Path) -> None:
    manifest = json.loads((plan / "manifest.json").read_text())
    manifest["key"]["seed"] = 7
    (plan / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "damage",
    [
        cut_rows,
        flip("updates"),
        flip("longest"),
        give_another_key,
        write_as_format_2,
        lambda plan: (plan / "rows").unlink(),
        lambda plan: (plan / "manifest.json").unlink(),
        lambda plan: (plan / "manifest.json").write_text("{"),
        give_rows_a_type_that_numpy_does_not_know,
    ],
)
def test_a_damaged_plan_is_built_anew(
    data: PreparedData, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    plan = opened(data)
    expected = pairs_of(plan)
    plan.close()
    damage(plan.directory)
    assert pairs_of(opened(data)) == expected
    (warning,) = {record.getMessage() for record in caplog.records if record.levelname == "WARNING"}
    assert warning.startswith(f"the plan {plan.directory.name}: ")
    assert warning.endswith(": it is built anew")
    caplog.clear()
    opened(data)
    assert caplog.messages == []


def test_rows_that_are_not_those_that_were_written_are_refused(data: PreparedData) -> None:
    plan = opened(data)
    flip("rows")(plan.directory)
    with pytest.raises(DamagedPlan, match=f"^{plan.directory.name}: the rows of update [0-9]+ have changed"):
        pairs_of(plan)
    assert len(pairs_of(opened(data, anew=True))) == len(plan)


def test_where_the_data_cannot_be_written_the_plan_goes_to_the_run(
    data: PreparedData, caplog: pytest.LogCaptureFixture, builds: list[int]
) -> None:
    caplog.set_level("INFO")
    (data.directory / "plans").write_text("in the way")
    beside, run = data.directory / "plans", data.directory.with_name("run") / "plans"
    assert opened(data).directory.parent == run
    message = f"the plan of the epoch goes to {run}, since {beside} cannot be written: File exists"
    assert caplog.messages == [message]
    caplog.clear()
    assert opened(data).directory.parent == run
    assert (caplog.messages, builds) == ([], [0])


def test_a_plan_of_somebody_else_beside_the_data_is_read(data: PreparedData, builds: list[int]) -> None:
    opened(data).close()
    (data.directory / "plans/.lock").unlink()
    (data.directory / "plans/.lock").mkdir()  # as where one may read and not write
    assert opened(data).directory.parent == data.directory / "plans"
    assert builds == [0]


def test_a_plan_that_can_be_written_nowhere_is_an_error_with_a_hint(data: PreparedData) -> None:
    beside, run = data.directory / "plans", data.directory.with_name("run") / "plans"
    for path in (beside, run):
        path.parent.mkdir(exist_ok=True)
        path.write_text("in the way")
    with pytest.raises(DataError) as caught:
        opened(data)
    message = f"the plan of the epoch can be written neither to {beside} nor to {run}: File exists"
    assert caught.value.message == message
    assert caught.value.hint == "free some space there, or choose another folder with -o"


@pytest.mark.parametrize("is_full_everywhere", [True, False])
def test_if_the_disk_of_the_data_is_full_the_plan_goes_to_the_run(
    data: PreparedData, is_full_everywhere: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def full_disk(directory: Path, *arguments: Any, **options: Any) -> None:
        if is_full_everywhere or data.directory in directory.parents:
            raise OSError(28, "No space left on device")
        write_plan(directory, *arguments, **options)

    monkeypatch.setattr(plan_cache, "write_plan", full_disk)
    if is_full_everywhere:
        with pytest.raises(DataError, match="the disk is full") as caught:
            opened(data)
        assert "free some space" in caught.value.hint
    else:
        plan = opened(data)
        assert plan.directory.parent == data.directory.with_name("run") / "plans"
        assert len(pairs_of(plan)) > 10
    assert caplog.messages[0].endswith("the disk is full")
    assert plans_in(data.directory / "plans") == []


def test_plans_that_somebody_keeps_to_himself_are_none(data: PreparedData, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(data).close()
    stat, beside = Path.stat, data.directory / "plans"

    def refused(self: Path, **options: bool) -> os.stat_result:  # tests may run as root, to whom nothing is refused
        if beside in self.parents:
            raise PermissionError(13, "Permission denied")
        return stat(self, **options)

    def refused_too(path: str, *arguments: int) -> int:
        if beside in Path(path).parents:
            raise PermissionError(13, "Permission denied")
        return open_file(path, *arguments)

    open_file = os.open
    monkeypatch.setattr(Path, "stat", refused)
    monkeypatch.setattr(os, "open", refused_too)
    assert opened(data).directory.parent == data.directory.with_name("run") / "plans"


def test_a_system_without_advice_and_huge_pages_plans_and_reads_all_the_same(
    data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = pairs_of(opened(data))
    monkeypatch.delattr("os.posix_fadvise")
    monkeypatch.delattr("mmap.MADV_HUGEPAGE")
    assert pairs_of(opened(data, anew=True)) == expected


def test_earlier_epochs_go_when_the_next_one_is_there_but_not_under_a_reader(data: PreparedData) -> None:
    folder = data.directory / "plans"
    first, second = opened(data, epoch=0), opened(data, epoch=1)
    expected = pairs_of(first)
    assert plans_in(folder) == [first.directory.name, second.directory.name]
    first.close()
    second.close()
    third = opened(data, epoch=2)
    assert plans_in(folder) == [third.directory.name]
    # A later one of a run that was further on stays.
    back = opened(data, epoch=0)
    assert plans_in(folder) == [back.directory.name, third.directory.name]
    assert pairs_of(back) == expected


def test_of_other_trainings_the_newest_three_stay(data: PreparedData) -> None:
    plans = [opened(data, seed=seed) for seed in range(6)]
    for number, plan in enumerate(plans):
        plan.close()
        os.utime(plan.directory, (1000 + number, 1000 + number))
    latest = opened(data, seed=6)
    assert plans_in(data.directory / "plans") == sorted(plan.directory.name for plan in [*plans[3:], latest])


def test_a_reader_outlives_the_removal_of_its_plan(data: PreparedData) -> None:
    plan = opened(data)
    expected = pairs_of(plan)
    shutil.rmtree(data.directory / "plans")  # as nmt prepare --overwrite does
    assert pairs_of(plan) == expected
    assert pairs_of(opened(data)) == expected
