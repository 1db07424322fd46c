"""What all tests share: one thread for each process, paths, a browser, and no GPU tests without a GPU."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.browser import CHROMIUM, Browser
from tests.source_modules import ROOT

# Read by torch when it is imported, here and in the commands that tests start: two test processes share two cores.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

# Read by Triton when it is imported: without a GPU, our kernels run in Triton's own interpreter, on tensors of the CPU.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"


# No test fails because the machine is slow, or because of what was drawn this time: each run has the same examples.
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


@pytest.fixture(autouse=True)
def package_log() -> Iterator[None]:
    """Restores the log of nmt_cli after each test: a command run within the process sends it to that test's stderr."""
    logger = logging.getLogger("nmt_cli")
    handlers, propagate, level = logger.handlers[:], logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Each test draws the same from torch's generator, whichever tests came before it."""
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(2017)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora beside the repository; the test is skipped where there is none."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the corpora in ../shared/data, beside the repository")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium with one page, for which example names are this machine; without it, the test is skipped."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium: make programs installs it on Debian, as root")
    browser = Browser(
        tmp_path_factory.mktemp("profile"), "--host-resolver-rules=MAP *.example 127.0.0.1,MAP *.example.org 127.0.0.1"
    )
    yield browser
    browser.close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
