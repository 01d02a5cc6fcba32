"""The processes of a run that trains."""

from datetime import timedelta

from vlmill.runtime.console.process_group import open_accelerator


def test_the_others_may_wait_longer_than_a_library_s_ten_minutes() -> None:
    """One process measures thousands of held-out images."""
    accelerator = open_accelerator("no")
    assert accelerator.num_processes == 1
    handler = accelerator.init_handler
    assert handler is not None and handler.timeout is not None
    assert handler.timeout >= timedelta(hours=1)
