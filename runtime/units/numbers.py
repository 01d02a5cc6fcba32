"""Shows the counts of a running job's units: on the screen, or in Beam."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.units.funnel import IN, OUT, Tally

Numbers = Counter[str]
"""``pages``, ``pictures``, ``pairs``, ``bytes``, ``rejects``, each ``rejects_REASON``, and its
``milliseconds``.
"""

BYTES, MILLISECONDS, REJECTS = "bytes", "milliseconds", "rejects"
SHOWN_REASONS = 3  # of rejects, on the screen: the most frequent ones


def count_tallies(tallies: Mapping[Tally, int]) -> Numbers:
    """Returns the counts of items that the stages of a unit dropped."""
    reasons = Counter[str]()
    for (_, what), count in tallies.items():
        if what not in (IN, OUT):
            reasons[what] += count
    return count_rejects(reasons)


def count_rejects(reasons: Mapping[str, int]) -> Numbers:
    """Returns the counts of rejects by reason."""
    numbers = Numbers({f"{REJECTS}_{reason}": count for reason, count in reasons.items()})
    numbers[REJECTS] = sum(reasons.values())
    return +numbers


@contextmanager
def timed(numbers: Numbers) -> Iterator[None]:
    """Adds the milliseconds of the block."""
    start = time.monotonic()
    yield
    numbers[MILLISECONDS] += round(1000 * (time.monotonic() - start))


class UnitProgress:
    """Shows how many units of a step are done, and the sums of their numbers."""

    def __init__(self, *, total: int, label: str) -> None:
        self._progress = Progress(total=total, unit="unit", label=label, visible=total > 1)
        self._total, self._label, self._before = total, label, 0
        self._sums = Numbers()
        self._start = time.monotonic()

    def add(self, numbers: Numbers | None) -> None:
        """Counts one more unit; None is a unit that was finished before."""
        if numbers is None:
            self._before += 1
            self._progress.advance(1)
            return
        self._sums += numbers
        seconds = time.monotonic() - self._start
        self._progress.advance(1, rejects=numbers[REJECTS], **format_notes(self._sums, seconds))

    def idle(self) -> None:
        """Shows that the work continues, if nothing was shown for a long time."""
        self._progress.advance(0)

    def __enter__(self) -> "UnitProgress":
        self._progress.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.__exit__()
        if self._before:
            units = f"{self._before} of {self._total} unit{'s' * (self._total > 1)}"
            print_status(f"continuing: {self._label}, {units} finished before")


def format_notes(sums: Numbers, seconds: float) -> dict[str, str]:
    """Returns the line about a step's sums after ``seconds``."""
    reasons = Numbers({k: v for k, v in sums.items() if k.startswith(f"{REJECTS}_")})
    hidden = {BYTES, MILLISECONDS, REJECTS, *reasons}
    notes = {name: f"{count:,}" for name, count in sorted(sums.items()) if name not in hidden}
    if sums[BYTES]:
        rate = f" ({sums[BYTES] / 1e6 / seconds:,.3g}/s)" if seconds > 0 else ""
        notes["MB"] = f"{sums[BYTES] / 1e6:,.1f}{rate}"
    for name, count in reasons.most_common(SHOWN_REASONS):
        notes[name.removeprefix(f"{REJECTS}_")] = f"{count:,}"
    return notes
