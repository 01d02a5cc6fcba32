"""A request that would wait in vain is refused immediately, and one that will not is not."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from vlmill.runtime.service.guard import DEADLINE
from vlmill.runtime.service.overload import CAUTION, Forecast, Pace, WorkerLoad, make_forecast
from vlmill.runtime.service.queue import Item
from vlmill.runtime.service.refusals import RequestRefused
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.runtime.service.shell import Shell


def test_a_pace_is_the_mean_of_the_latest_batches_but_the_first() -> None:
    pace = Pace()
    assert pace.seconds_per_weight == 0
    pace.add(1, 9.0)  # warms up
    assert pace.seconds_per_weight == 9
    pace.add(2, 1.0)
    assert pace.seconds_per_weight == 0.5
    pace.add(8, 1.0)
    assert pace.seconds_per_weight == 0.2
    for _ in range(16):
        pace.add(1, 3.0)
    assert pace.seconds_per_weight == 3


def test_a_forecast_counts_what_workers_have_and_what_waits() -> None:
    assert make_forecast([]) == make_forecast([WorkerLoad()]) == Forecast()
    one = make_forecast([WorkerLoad(seconds_per_weight=2.0, weights=[1, 3], elapsed=1.5)])
    assert one == Forecast(base=6.5, each=2.0) and one.seconds(4) == 14.5
    two = make_forecast(
        [WorkerLoad(seconds_per_weight=2.0, weights=[1]), WorkerLoad(seconds_per_weight=2.0)]
    )
    assert two == Forecast(base=1.0, each=1.0)
    # One that is new is taken for as fast as the others.
    assert make_forecast([WorkerLoad(seconds_per_weight=2.0), WorkerLoad()]).each == 1.0


def test_a_batch_that_runs_is_as_slow_as_it_has_been() -> None:
    assert make_forecast([WorkerLoad(weights=[2], elapsed=8.0)]) == Forecast(base=0.0, each=4.0)
    late = make_forecast([WorkerLoad(seconds_per_weight=1.0, weights=[2, 2], elapsed=8.0)])
    assert late == Forecast(base=8.0, each=4.0)


def test_when_to_come_again() -> None:
    forecast = Forecast(base=10.0, each=2.0)
    assert forecast.is_in_time(15, CAUTION * 40) and not forecast.is_in_time(15, 40)
    assert forecast.retry_after(15, 40.0) == 10
    assert forecast.retry_after(0, 60.0) == 1 and forecast.retry_after(10_000, 60.0) == 60


def shell_of(load: WorkerLoad) -> Shell:
    shell = Shell(settings=ServiceSettings())
    worker: Any = SimpleNamespace(load=load, is_ready=True, plan=SimpleNamespace(name="a"))
    shell.workers.append(worker)
    return shell


def request(seconds: float) -> Any:
    return SimpleNamespace(scope={DEADLINE: time.monotonic() + seconds})


def test_a_request_that_would_wait_in_vain_is_refused() -> None:
    shell = shell_of(WorkerLoad(seconds_per_weight=100.0))
    shell.require_time(request(1.0))  # nothing waits
    assert shell.queue.put([Item(payload=0)])
    with pytest.raises(RequestRefused) as refused:
        shell.require_time(request(60.0))
    assert (refused.value.status, refused.value.reason) == (429, "busy")
    assert refused.value.retry_after == 60
    shell.require_time(request(1_000.0))
    (item,) = shell.queue.drain()
    item.future.cancel()
    shell.queue.put([item])  # given up: it takes no time
    shell.require_time(request(60.0))


def test_a_cold_service_sheds_what_waits_when_it_knows_its_pace() -> None:
    """Of what came before anything was known; later ones keep their places."""
    shell = shell_of(WorkerLoad())
    now = time.monotonic()
    items = [Item(payload=number, deadline=now + 1_000.0) for number in range(10)]
    items.append(Item(payload="patient", deadline=now + 100_000.0))
    assert shell.queue.put(items)
    items[1].future.cancel()
    shell.workers[0].load = WorkerLoad(seconds_per_weight=150.0)  # type: ignore[misc]
    shell._batch_computed(1, 150.0)
    assert [item.payload for item in shell.queue.drain()] == [0, 2, 3, 4, 5, 6, "patient"]
    for item in items[7:10]:
        refusal = item.future.exception(timeout=0)
        assert isinstance(refusal, RequestRefused) and refusal.status == 429
        assert refusal.retry_after is not None
    assert shell.metrics.registry.get_sample_value("vlmill_items_total") == 1
