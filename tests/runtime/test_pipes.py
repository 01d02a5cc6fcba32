"""The queues by which processes send their results."""

from multiprocessing import get_context

from vlmill.runtime.processes import widen


def test_a_queue_without_the_private_end_stays_as_it_is() -> None:
    queue = get_context().SimpleQueue()
    widen(queue)
    reader = queue.__dict__.pop("_reader")
    widen(queue)
    queue._reader = reader  # type: ignore[attr-defined]
    queue.put("result")
    assert queue.get() == "result"
