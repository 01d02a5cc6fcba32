"""A call costs no more than it may, and no call ends what calls it."""

import os
import signal
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
from tests.runtime import calls

from vlmill.runtime.bounded_calls import BoundedPool, CallLimits
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, Rejected

LIMITS = CallLimits(cpu_seconds=1, wall_seconds=600, more_bytes=1 << 28)
Pool = BoundedPool[str, object]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with BoundedPool[str, object](1, calls.start, "a", limits=LIMITS) as opened:
        yield opened


def test_results_come_from_one_process(pool: Pool) -> None:
    assert pool.call("echo b") == "a b"
    assert {pool.call("id") for _ in range(5)} == {pool.process_ids[0]}


def test_results_belong_to_their_calls() -> None:
    with BoundedPool[str, object](3, calls.start, "a") as three:
        futures = [three.submit(f"echo {number}") for number in range(50)]
        assert [future.result() for future in futures] == [f"a {number}" for number in range(50)]
        assert len(set(three.process_ids)) <= 3  # the last one starts only if it is needed


@pytest.mark.parametrize(
    ("call", "detail"),
    [
        ("spin", "took more than 1 seconds of a processor"),
        ("take 1000000000", "needs too much memory"),
        ("kill", "ended its process with signal 9, 2 times"),
    ],
)
def test_costly_call_is_rejected_and_the_next_one_is_not(
    pool: Pool, call: str, detail: str
) -> None:
    costly, following = pool.submit(call), pool.submit("echo c")
    with pytest.raises(Rejected, match=detail) as raised:
        costly.result()
    assert raised.value.reason is Reason.TOO_EXPENSIVE
    assert following.result() == "a c"


def test_call_that_waits_for_ever_is_rejected() -> None:
    limits = CallLimits(wall_seconds=0.2)
    with (
        BoundedPool[str, object](1, calls.start, "a", limits=limits) as impatient,
        pytest.raises(Rejected, match=r"gave no result in 0\.2 seconds"),
    ):
        impatient.call("sleep")


def test_memory_within_the_limit_is_given(pool: Pool) -> None:
    assert pool.call("take 100000000") == 100_000_000


def test_process_that_was_killed_from_outside_costs_no_call(pool: Pool, tmp_path: Path) -> None:
    assert pool.call(f"kill_once {tmp_path / 'there'}") == "done"
    first = pool.call("id")
    assert isinstance(first, int)
    os.kill(first, signal.SIGKILL)
    assert pool.call("id") != first


def test_errors_are_raised_as_they_are(pool: Pool) -> None:
    with pytest.raises(InputError, match="no such row"):
        pool.call("raise no such row")
    with pytest.raises(KeyError):
        pool.call("nothing")


def test_process_that_cannot_start_is_no_fault_of_a_call() -> None:
    with (
        BoundedPool[str, object](1, calls.fail_to_start) as unstartable,
        pytest.raises(InputError, match="no such model"),
    ):
        unstartable.call("id")
    with (
        BoundedPool[str, object](1, calls.end_at_start) as ending,
        pytest.raises(ChildProcessError, match="status 3 before it was ready"),
    ):
        ending.call("id")


def test_closing_ends_what_is_computed() -> None:
    closing = BoundedPool[str, object](1, calls.start, "a")
    closing.call("echo b")
    futures = [closing.submit("sleep") for _ in range(3)]
    (process_id,) = closing.process_ids
    closing.close()
    assert isinstance(futures[0].exception(), OSError | Rejected)
    assert futures[2].cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)


def test_no_call_waits_for_processes_that_were_killed_together() -> None:
    """The server that forks them among them: a call has a result, or an error, never neither."""
    with BoundedPool[str, object](1, calls.start, "a") as one:
        assert one.call("echo b") == "a b"
        server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        for process in (server, *one.process_ids):
            os.kill(process, signal.SIGKILL)
        try:
            assert one.submit("echo c").result(timeout=120) == "a c"
        except OSError as error:
            assert "processes" in str(error) or error.errno is not None


def test_error_of_starting_a_process_is_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(worker: object) -> None:
        raise RuntimeError("no process today")

    monkeypatch.setattr("vlmill.runtime.bounded_calls._Worker._launch", fail)
    one = BoundedPool[str, object](1, calls.start, "a")
    with pytest.raises(RuntimeError, match="no process today"):
        one.submit("echo b").result(timeout=120)
    one.close()
