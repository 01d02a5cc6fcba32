"""Estimates when the workers will reach a request, so that late ones are refused immediately."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

BATCHES = 16  # number of batches in the mean of a worker's pace
# A request is refused if the expected time, multiplied by this, exceeds the time to its deadline.
# Images differ, and a client that waits in vain loses more than one that is refused.
CAUTION = 1.25
LONGEST_RETRY = 60  # seconds


class Pace:
    """Measures the seconds that a worker takes for a unit of weight, over its latest batches.

    The first batch includes the warm-up of the device: it is dropped when there is a second one.
    """

    def __init__(self) -> None:
        self._batches: deque[tuple[float, float]] = deque(maxlen=BATCHES)
        self._is_warm = False
        self.seconds_per_weight = 0.0  # 0 before the first batch

    def add(self, weight: float, seconds: float) -> None:
        """Adds a finished batch."""
        if len(self._batches) == 1 and not self._is_warm:
            self._batches.clear()
            self._is_warm = True
        self._batches.append((weight, seconds))
        total = sum(weight for weight, _ in self._batches)
        self.seconds_per_weight = sum(seconds for _, seconds in self._batches) / total


@dataclass(frozen=True, kw_only=True)
class WorkerLoad:
    """Describes a worker's pace, the weights of its batches, and how long it has computed."""

    seconds_per_weight: float = 0.0
    weights: Sequence[float] = ()  # of its batches; it is computing the first
    elapsed: float = 0.0  # seconds since it started the first

    @property
    def pace(self) -> float:
        """Returns the seconds per unit of weight, at least the time of the running batch so far."""
        running = self.elapsed / self.weights[0] if self.weights else 0.0
        return max(self.seconds_per_weight, running)

    @property
    def busy_seconds(self) -> float:
        """Returns the seconds until the worker has computed its batches."""
        return max(0.0, self.pace * sum(self.weights) - self.elapsed)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Forecasts when the workers will reach an item of the queue.

    That takes ``base`` seconds, and ``each`` seconds for a unit of weight ahead of the item.
    """

    base: float = 0.0
    each: float = 0.0

    def seconds(self, weight_before: float) -> float:
        """Returns the seconds until an item with ``weight_before`` ahead of it is started."""
        return self.base + self.each * weight_before

    def is_in_time(self, weight_before: float, seconds_left: float) -> bool:
        """Returns whether an item will probably be started before its deadline."""
        return CAUTION * self.seconds(weight_before) <= seconds_left

    def retry_after(self, weight_before: float, seconds: float) -> int:
        """Returns the seconds after which a request with a deadline of ``seconds`` can be sent."""
        left = CAUTION * self.seconds(weight_before) - seconds
        return max(1, min(LONGEST_RETRY, math.ceil(left)))


def make_forecast(loads: Sequence[WorkerLoad]) -> Forecast:
    """Returns the forecast for workers that share a queue.

    The forecast is 0 seconds for everything until the pace of at least one worker is known.
    """
    paces = [load.pace for load in loads if load.pace > 0]
    if not paces:
        return Forecast()
    rate = sum(1 / pace for pace in paces) * len(loads) / len(paces)
    base = sum(load.busy_seconds for load in loads) / len(loads)
    return Forecast(base=base, each=1 / rate)
