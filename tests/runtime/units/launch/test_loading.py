"""Beam is loaded without the warning that no user of a job can do anything about."""

import importlib
import logging
import subprocess
import sys

import pytest
from tests.factories import NO_MODELS

from vlmill.runtime.units.launch.loading import quiet_beam_import

APITOOLS = "apitools not found, and bigquery client libraries are not available"


def test_other_warnings_pass_and_the_logger_is_left_as_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    filters = list(logging.getLogger().filters)
    with quiet_beam_import():
        logging.warning(APITOOLS)
        logging.warning("the disk is nearly full")
    logging.warning(APITOOLS)
    assert [record.getMessage() for record in caplog.records] == [
        "the disk is nearly full",
        APITOOLS,
    ]
    assert logging.getLogger().filters == filters


def test_the_filter_goes_when_an_import_fails() -> None:
    filters = list(logging.getLogger().filters)
    with pytest.raises(ModuleNotFoundError), quiet_beam_import():
        importlib.import_module("vlmill.pipelines.no_such_job")
    assert logging.getLogger().filters == filters


def test_a_job_says_nothing_of_apitools() -> None:
    """In a process of its own, as Beam warns at its first import only."""
    flags = ["--warc", "none*", "--output", "out", *NO_MODELS]
    command = f"from vlmill.pipelines.web_pairs.__main__ import main; main({flags})"
    finished = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert "none*: no file matches" in finished.stderr
    assert "apitools" not in finished.stderr
