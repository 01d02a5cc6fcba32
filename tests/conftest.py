"""Settings that precede the first import of torch, options, and the cost of a run."""

import gc
import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.hub_server import Hub, hub_server

# The suite's tensors are tiny: with more threads, and other work on the machine, most of its time
# is spent waiting for threads (measured: 8.5 s against 0.14 s in one test of 28 forward passes).
os.environ.setdefault("OMP_NUM_THREADS", "1")

GOLDEN = Path(__file__).parent / "golden"
REPORT = pytest.StashKey[dict[str, Any]]()  # of parity: status, reason and deviations by set
WORKERS_CPU_S = pytest.StashKey[list[float]]()  # of each worker process of pytest-xdist that ended
UNASKED = ("long", "nightly", "flink")  # marks of tests that run only with the flag of their name
PARTS = ("detector", "detector-training", "models", "training", "finetuning", "evaluation")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of tests/parity; here, because pytest asks for them before it looks into folders."""
    kills = "moments at which each job is killed (default: %(default)s)"
    parser.getgroup("vlmill").addoption("--kills", type=int, default=2, metavar="N", help=kills)
    many = "mutated inputs of each kind (default: %(default)s)"
    parser.getgroup("vlmill").addoption(
        "--mutations", type=int, default=100, metavar="N", help=many
    )
    rest = "also the tests marked long, which try more of what the others have tried"
    parser.getgroup("vlmill").addoption("--long", action="store_true", help=rest)
    nightly = "also the tests marked nightly, which make test-nightly runs once"
    parser.getgroup("vlmill").addoption("--nightly", action="store_true", help=nightly)
    flink = "also the tests marked flink, on a cluster of this machine (make test-flink)"
    parser.getgroup("vlmill").addoption("--flink", action="store_true", help=flink)
    group = parser.getgroup("parity", "recordings of the published systems (tests/parity)")
    group.addoption("--golden", type=Path, metavar="DIR", help=f"recordings (default: {GOLDEN})")
    about = "of the recordings; several add up (default: every part built)"
    group.addoption("--part", choices=PARTS, action="append", help=about)
    group.addoption("--report", type=Path, metavar="FILE", help="write each deviation as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Begins a report of parity, empty."""
    config.stash[REPORT] = {}
    config.stash[WORKERS_CPU_S] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests with a mark of ``UNASKED``, without the flag of its name."""
    unasked = [mark for mark in UNASKED if not config.getoption(f"--{mark}")]
    left_out = [item for item in items if any(item.get_closest_marker(m) for m in unasked)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Exempts all that is imported from garbage collection.

    These are millions of objects: a full collection takes a second with them, and training, pytest
    and Python itself ask for hundreds.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Lets the interpreter free what it can as it ends: some libraries complain otherwise."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _number_of_threads() -> Iterator[None]:
    """Fails a test that leaves PyTorch with another number of threads: sums of later tests differ
    by it in their last bits, and what is compared bit for bit then fails far from its cause.
    """
    before = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None
    yield
    if before is not None:
        assert sys.modules["torch"].get_num_threads() == before


@pytest.fixture(autouse=True)
def _written_log() -> Iterator[None]:
    """Writes a service's log before the next test: a thread does it a moment later."""
    yield
    if (logs := sys.modules.get("vlmill.runtime.service.logs")) is not None:
        logs.flush_log()


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, str]]:
    """The variables of an S3 server on this machine, which runs while tests ask for it."""
    from tests.object_stores import s3_server

    with s3_server() as variables:
        yield variables


@pytest.fixture
def bucket(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The URL of an empty bucket, with the variables set by which it is found."""
    from tests.object_stores import forget_stores, new_bucket

    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("VLMILL_CACHE", str(tmp_path_factory.mktemp("cache")))
    forget_stores()  # a test before may have asked another one
    return new_bucket()


@pytest.fixture
def gs_bucket(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of an empty bucket in an emulator of Cloud Storage."""
    from tests.object_stores import forget_stores, gs_server, new_gs_bucket

    with gs_server() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("VLMILL_CACHE", str(tmp_path_factory.mktemp("cache")))
        forget_stores()
        yield new_gs_bucket()
        forget_stores()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Takes what a worker process of pytest-xdist compared; a crashed one has said nothing."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[REPORT].update(output.get("parity", {}))
    node.config.stash[WORKERS_CPU_S].append(output.get("cpu_s", 0.0))


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children: those that ended and those that live."""
    seconds = _used(resource.RUSAGE_SELF) + _used(resource.RUSAGE_CHILDREN)
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended just now
            seconds += sum(child.cpu_times()[:4])  # its own, and of its children that ended
    return seconds


def _used(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Reports the CPU seconds of the run, how many blocks of the pages were run, and what the
    others need.
    """
    workers = config.stash[WORKERS_CPU_S]
    seconds = sum(workers) + _used(resource.RUSAGE_SELF) if workers else cpu_seconds()
    terminalreporter.write_line(f"CPU seconds of this run, child processes included: {seconds:.0f}")
    ran = [r for r in terminalreporter.getreports("passed") if "test_a_block_runs[" in r.nodeid]
    left_out = Counter(
        report.longrepr[2].removeprefix("Skipped: a block of the pages ")
        for report in terminalreporter.getreports("skipped")
        if "test_a_block_runs[" in report.nodeid
    )
    if ran or left_out:
        reasons = "; ".join(f"{count} {reason}" for reason, count in left_out.most_common())
        terminalreporter.write_line(
            f"blocks of the pages: {len(ran)} run, {left_out.total()} not: {reasons}"
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the report, also when sets failed; a worker sends its part to who started it."""
    config, results = session.config, session.config.stash[REPORT]
    if hasattr(config, "workeroutput"):
        config.workeroutput["parity"] = results
        config.workeroutput["cpu_s"] = cpu_seconds()
        return
    path = config.getoption("--report")
    if path is not None and not config.option.collectonly:
        path.parent.mkdir(parents=True, exist_ok=True)
        ordered = dict(sorted(results.items()))
        path.write_text(json.dumps(ordered, indent=1, allow_nan=False) + "\n")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub on this machine, with an empty cache."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setenv("HF_TOKEN", "token")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
