"""Loads Beam without the warning that it logs wherever its Google Cloud extra is missing."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_beam_import() -> Iterator[None]:
    """Drops Beam's warning that "apitools" was not found while the block imports a job.

    A job needs no Google Cloud, and its user can do nothing about the warning. All other records
    pass, and after the block the root logger is as it was.
    """
    root = logging.getLogger()
    root.addFilter(_passes)
    try:
        yield
    finally:
        root.removeFilter(_passes)


def _passes(record: logging.LogRecord) -> bool:
    return "apitools not found" not in record.getMessage()
