"""Beam jobs over pure functions: ``python -m vlmill.pipelines.JOB --help``."""

import logging


def _matters(record: logging.LogRecord) -> bool:
    """False for what Beam logs on import wherever its Google Cloud extra is not installed."""
    return "apitools not found" not in record.getMessage()


logging.getLogger().addFilter(_matters)
