"""Beam's options and errors as jobs show them."""

import errno
import logging
import sys
from functools import partial
from types import ModuleType

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser

from vlmill.runtime.console.command import Parser
from vlmill.runtime.units.launch import options
from vlmill.runtime.units.launch.loading import flags_of_beam, parse_job
from vlmill.runtime.units.launch.options import WorkerOptions, beam_options, run_pipeline
from vlmill.schemas.errors import InputError


def test_the_local_runner_is_the_default() -> None:
    assert beam_options([]).get_all_options()["runner"] == "FnApiRunner"
    assert beam_options(["--runner=DirectRunner"]).get_all_options()["runner"] == "DirectRunner"


def test_a_flag_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InputError, match="--runer=x: neither this job nor Apache Beam"):
        beam_options(["--runer=x"])


def fail_on_disk(element: int) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_stays_an_os_error_and_nothing_else_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        pytest.raises(OSError, match="No space left") as caught,
        run_pipeline(beam_options([])) as pipeline,
    ):
        _ = pipeline | beam.Create([1]) | beam.Map(fail_on_disk)
    assert caught.value.errno == errno.ENOSPC
    assert not caplog.records


def test_a_bug_stays_what_it_is_and_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with (
        pytest.raises(ZeroDivisionError, match="while running"),
        run_pipeline(beam_options([])) as pipeline,
    ):
        _ = pipeline | beam.Create([0]) | beam.Map(lambda element: 1 // element)
    assert any(record.exc_info for record in caplog.records)
    assert not logging.getLogger("apache_beam.runners.common").filters


@pytest.mark.parametrize("flags", [["--nonsense"], ["--nonsense=3"], ["3", "--nonsense", "4"]])
def test_a_flag_that_nobody_knows_is_refused_without_beam_too(flags: list[str]) -> None:
    with pytest.raises(
        InputError, match="--nonsense: neither this job nor Apache Beam has this flag"
    ):
        parse_job(Parser(allow_abbrev=False), flags)


def test_a_flag_spelled_like_ours_is_told_so() -> None:
    parser = Parser(allow_abbrev=False)
    parser.add_argument("--shards")
    with pytest.raises(InputError, match=r"--shardz: .*; did you mean --shards\?"):
        parse_job(parser, ["--shardz=3"])
    assert parse_job(parser, ["--runner=FlinkRunner"])[1] == ["--runner=FlinkRunner"]


def test_every_flag_that_beam_takes_is_known_without_it() -> None:
    parser = _BeamArgumentParser(add_help=False)
    for group in set(PipelineOptions.__subclasses__()) - {WorkerOptions}:
        group._add_argparse_args(parser)
    taken = {flag for flag in parser._option_string_actions if flag.startswith("--")}
    assert len(taken) > 100 and taken <= flags_of_beam()


def test_beams_flags_are_known_without_its_own_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a private class of Beam's."""
    make = partial(options._PlainParser, add_help=False, allow_abbrev=False)
    monkeypatch.setattr(options, "make_parser", make)
    given = beam_options(["--runner=FlinkRunner", "--flink_master=a:1"]).get_all_options()
    assert (given["runner"], given["flink_master"]) == ("FlinkRunner", "a:1")
    with pytest.raises(InputError, match="--nonsense"):
        beam_options(["--nonsense"])


def test_a_plain_parser_takes_the_place_of_one_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not isinstance(options.make_parser(), options._PlainParser)
    name = "apache_beam.options.pipeline_options"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert isinstance(options.make_parser(), options._PlainParser)
