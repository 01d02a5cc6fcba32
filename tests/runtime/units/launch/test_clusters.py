"""A job is refused before it starts where a cluster's workers would find nothing."""

import pytest

from vlmill.pipelines.web_pairs import __main__ as command
from vlmill.runtime.units.launch.clusters import require_for_cluster
from vlmill.runtime.units.launch.options import beam_options
from vlmill.schemas.errors import InputError

CLOUD = {"--warc": "gs://bucket/*.warc.gz", "--output": "gs://bucket/pairs"}


@pytest.mark.parametrize("runner", ["DataflowRunner", "dataflowrunner"])
def test_workers_need_vlmill(runner: str) -> None:
    flags = [f"--runner={runner}"]
    with pytest.raises(InputError, match="do not have vlmill; give --sdk_container_image IMAGE"):
        require_for_cluster(beam_options(flags), CLOUD)
    for more in ("--sdk_container_image=image", "--setup_file=./setup.py"):
        require_for_cluster(beam_options([*flags, more]), CLOUD)


def test_workers_need_places_that_they_see() -> None:
    options = beam_options(["--runner=DataflowRunner", "--sdk_container_image=image"])
    with pytest.raises(InputError, match=r"--output out is on this machine, .* give gs://"):
        require_for_cluster(options, {**CLOUD, "--output": "out"})


def test_other_runners_are_not_asked() -> None:
    require_for_cluster(beam_options([]), {"--output": "out"})
    require_for_cluster(beam_options(["--runner=FlinkRunner"]), {"--output": "out"})


FLINK = ["--runner=FlinkRunner", "--flink_master=host:8081"]


def test_workers_of_flink_stand_in_other_folders() -> None:
    options = beam_options([*FLINK, "--environment_type=PROCESS"])
    with pytest.raises(InputError, match=r"--output out is a relative path, .* give /"):
        require_for_cluster(options, {"--pairs": "/shared/pairs", "--output": "out"})
    require_for_cluster(options, {"--pairs": "s3://bucket/pairs", "--output": "/shared/out"})
    here = beam_options([*FLINK, "--environment_type=LOOPBACK"])
    require_for_cluster(here, {"--output": "out"})


def test_the_job_says_so_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("archives")
    (folder / "a.warc.gz").write_bytes(b"")
    words = ["--warc", str(folder / "*.gz"), "--output", str(folder / "out")]
    words += ["--safety-model", "none", "--realism-model", "none", "--runner=DataflowRunner"]
    assert command.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --warc ") and "is on this machine" in line
    assert not (folder / "out").exists()
