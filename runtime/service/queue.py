"""Defines a bounded queue that forms workers' batches across requests."""

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True, eq=False)
class Item:
    """Holds one input to compute, and the destination of its result.

    ``weight`` is its part of a batch, ``deadline`` the time of ``time.monotonic`` at which its
    result is useless.
    """

    payload: Any
    weight: int = 1
    deadline: float = math.inf
    future: "Future[Any]" = field(default_factory=Future)


class BatchQueue:
    """Holds up to ``limit`` items in the order of arrival. Thread-safe.

    An item whose future was cancelled is dropped when its turn comes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[Item] = deque()
        self._idle: set[object] = set()  # waiting takers that compute nothing
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def weight(self) -> int:
        """Returns the total weight of the waiting items."""
        return sum(item.weight for item in list(self._items) if not item.future.cancelled())

    def put(self, items: Sequence[Item]) -> bool:
        """Adds all items, or none and returns False if there is no space for all."""
        with self._changed:
            if len(self._items) + len(items) > self._limit:
                self._drop_cancelled()
            if len(self._items) + len(items) > self._limit:
                return False
            self._items.extend(items)
            self._changed.notify_all()
            return True

    def take(
        self, max_weight: int, wait: float, *, ahead: Callable[[], bool], ended: Callable[[], bool]
    ) -> list[Item]:
        """Waits for an item, then up to ``wait`` seconds for a weight of ``max_weight``, and takes
        the items.

        A heavier item is a batch of its own. A taker that already computes, as ``ahead()`` reports,
        gets only a full batch of ``max_weight``, and only items that idle takers leave. Returns
        nothing once ``ended()``. :meth:`wake` makes both be evaluated again.
        """
        waiting = object()

        def has_turn() -> bool:
            if ended():
                return True
            if ahead():
                self._idle.discard(waiting)
                return self.weight >= max_weight * (1 + len(self._idle))
            self._idle.add(waiting)
            return bool(self._items)

        with self._changed:
            try:
                while True:
                    self._changed.wait_for(has_turn)
                    self._changed.wait_for(lambda: ended() or self.weight >= max_weight, wait)
                    if ended():
                        return []
                    if batch := self._take_batch(max_weight):
                        return batch
            finally:
                self._idle.discard(waiting)

    def _take_batch(self, max_weight: int) -> list[Item]:
        batch: list[Item] = []
        capacity = max_weight
        while self._items and (not batch or self._items[0].weight <= capacity):
            item = self._items.popleft()
            if item.future.set_running_or_notify_cancel():
                batch.append(item)
                capacity -= item.weight
        return batch

    def shed(self, is_in_time: Callable[[Item, int], bool]) -> list[Item]:
        """Removes the items that will not be computed in time, and returns them.

        ``is_in_time`` receives an item and the weight ahead of it in the queue.
        """
        with self._changed:
            self._drop_cancelled()
            items, self._items = self._items, deque()
            late, weight = list[Item](), 0
            for item in items:
                if is_in_time(item, weight):
                    self._items.append(item)
                    weight += item.weight
                elif item.future.set_running_or_notify_cancel():
                    late.append(item)
            return late

    def wake(self) -> None:
        """Makes waiting takers check the queue again."""
        with self._changed:
            self._changed.notify_all()

    def drain(self) -> list[Item]:
        """Removes and returns all waiting items."""
        with self._changed:
            items, self._items = list(self._items), deque()
            return items

    def _drop_cancelled(self) -> None:
        self._items = deque(item for item in self._items if not item.future.cancelled())
