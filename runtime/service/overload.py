"""How long what waits will take: a request that would wait in vain is refused immediately."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

BATCHES = 16  # whose mean is a worker's pace
# A request is refused where the expected time, times this, is over what is left of its deadline:
# images differ, and one that waits in vain costs its sender more than one that is refused.
CAUTION = 1.25
LONGEST_RETRY = 60  # seconds


class Pace:
    """Measures the seconds that a worker takes for a unit of weight, over its latest batches.

    The first batch, which warms the device up, counts only until there is a second one.
    """

    def __init__(self) -> None:
        self._batches: deque[tuple[float, float]] = deque(maxlen=BATCHES)
        self._is_warm = False
        self.seconds_per_weight = 0.0  # 0: nothing is known

    def add(self, weight: float, seconds: float) -> None:
        """Takes a batch into account."""
        if len(self._batches) == 1 and not self._is_warm:
            self._batches.clear()
            self._is_warm = True
        self._batches.append((weight, seconds))
        total = sum(weight for weight, _ in self._batches)
        self.seconds_per_weight = sum(seconds for _, seconds in self._batches) / total


@dataclass(frozen=True, kw_only=True)
class WorkerLoad:
    """What a worker has to do: its pace, the weight it was given, and since when it computes."""

    seconds_per_weight: float = 0.0
    weights: Sequence[float] = ()  # of its batches; it computes the first
    elapsed: float = 0.0  # seconds since it began the first

    @property
    def pace(self) -> float:
        """Seconds for a unit of weight; the running batch takes at least what it has taken."""
        running = self.elapsed / self.weights[0] if self.weights else 0.0
        return max(self.seconds_per_weight, running)

    @property
    def busy_seconds(self) -> float:
        """Seconds until the worker has computed what it was given."""
        return max(0.0, self.pace * sum(self.weights) - self.elapsed)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """When workers come to what waits: after ``base`` seconds, and ``each`` for a unit of weight
    that waits before it.
    """

    base: float = 0.0
    each: float = 0.0

    def seconds(self, weight_before: float) -> float:
        """Returns in how many seconds something is begun that ``weight_before`` waits before."""
        return self.base + self.each * weight_before

    def is_in_time(self, weight_before: float, seconds_left: float) -> bool:
        """Returns whether what has ``seconds_left`` will be begun with enough of them left."""
        return CAUTION * self.seconds(weight_before) <= seconds_left

    def retry_after(self, weight_before: float, seconds: float) -> int:
        """Returns in how many seconds a request that has ``seconds`` may be in time."""
        return retry_seconds(CAUTION * self.seconds(weight_before) - seconds)


def make_forecast(loads: Sequence[WorkerLoad]) -> Forecast:
    """Returns the forecast of workers that share a queue; nothing takes time where no pace is
    known yet.
    """
    paces = [load.pace for load in loads if load.pace > 0]
    if not paces:
        return Forecast()
    rate = sum(1 / pace for pace in paces) * len(loads) / len(paces)
    base = sum(load.busy_seconds for load in loads) / len(loads)
    return Forecast(base=base, each=1 / rate)


def retry_seconds(seconds: float) -> int:
    """Returns a whole number of seconds for Retry-After."""
    return max(1, min(LONGEST_RETRY, math.ceil(seconds)))
