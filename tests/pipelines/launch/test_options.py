"""Beam's options and errors as jobs show them."""

import errno

import apache_beam as beam
import pytest

from vlmill.pipelines.launch.options import beam_options, run_pipeline
from vlmill.schemas.errors import InputError


def test_the_local_runner_is_the_default() -> None:
    assert beam_options([]).get_all_options()["runner"] == "FnApiRunner"
    assert beam_options(["--runner=DirectRunner"]).get_all_options()["runner"] == "DirectRunner"


def test_a_flag_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InputError, match="--runer=x: neither this job nor Apache Beam"):
        beam_options(["--runer=x"])


def fail_on_disk(element: int) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_stays_an_os_error() -> None:
    with (
        pytest.raises(OSError, match="No space left") as caught,
        run_pipeline(beam_options([])) as pipeline,
    ):
        _ = pipeline | beam.Create([1]) | beam.Map(fail_on_disk)
    assert caught.value.errno == errno.ENOSPC


def test_a_bug_stays_what_it_is() -> None:
    with (
        pytest.raises(ZeroDivisionError, match="while running"),
        run_pipeline(beam_options([])) as pipeline,
    ):
        _ = pipeline | beam.Create([0]) | beam.Map(lambda element: 1 // element)
