"""Parts of a job: processes that share its units, and wait for each other."""

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.factories import NO_MODELS, Tables
from tests.pipelines.conftest import make_image, write_archive
from tests.pipelines.manifest.layouts import FLICKR
from tests.runtime.units.jobs import MODULE, STEPS, Sums, log, run_part
from tests.runtime.units.test_run import files

from vlmill.pipelines.tables.__main__ import main as tables
from vlmill.pipelines.web_pairs.__main__ import main as web_pairs
from vlmill.runtime.files.manifest import verify_folder
from vlmill.runtime.units.run_here import run_here, wait_for_others
from vlmill.runtime.units.share import Share
from vlmill.runtime.units.unit import Unit

ROOT = Path(__file__).parents[3]


def test_parts_at_the_same_time_do_each_unit_once(tmp_path: Path) -> None:
    whole = Sums(output=str(tmp_path / "whole"))
    (tmp_path / "whole").mkdir()
    run_here(whole, STEPS, workers=1, module=MODULE)
    output = tmp_path / "parts"
    output.mkdir()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=run_part, args=(str(output), n, 3)) for n in (1, 2, 3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (output / "ended.txt").read_text() == "1"
    (output / "ended.txt").unlink()
    assert files(output) == files(tmp_path / "whole")  # no lock is left, either
    assert sorted(log(Sums(output=str(output)))) == sorted(log(whole))


def test_missing_parts_are_named(tmp_path: Path) -> None:
    """Each run of a part goes as far as the others allow; nothing is done twice."""
    output = str(tmp_path)
    with pytest.raises(OSError, match=r"squares lacks 3 of 5 units, of --part 2/3, 3/3"):
        run_part(output, 1, 3, 0.0)
    with pytest.raises(OSError, match=r"squares lacks 1 of 5 units, of --part 3/3"):
        run_part(output, 2, 3, 0.0)
    with pytest.raises(OSError, match=r"halves lacks 4 of 5 units, of --part 1/3, 2/3"):
        run_part(output, 3, 3, 0.0)
    run_here(Sums(output=output), STEPS, workers=1, module=MODULE)  # the whole goes on from there
    assert len(log(Sums(output=output))) == 5


def test_a_part_may_start_again_after_a_long_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait begins when the killed part was last at work, not when the step began."""
    job, share = Sums(output=str(tmp_path)), Share(number=1, count=2, wait_s=15)
    units = [Unit(name="square-0", number=0), Unit(name="square-1", number=1)]
    seconds, polls = [0.0], iter([True] * 5 + [False] * 9)
    clock = SimpleNamespace(
        monotonic=lambda: seconds[0], sleep=lambda _: seconds.append(seconds.pop() + 10)
    )
    monkeypatch.setattr("vlmill.runtime.units.run_here.time", clock)
    monkeypatch.setattr("vlmill.runtime.units.run_here.parts_at_work", lambda *_: next(polls))
    with pytest.raises(OSError, match="not at work after 15 s"):
        wait_for_others(job, STEPS[0], units, share)
    assert seconds == [60.0]  # last at work at 40


def test_a_damaged_unit_of_another_part_is_refused(tmp_path: Path) -> None:
    for number in (2, 1):
        with pytest.raises(OSError, match="lacks"):
            run_part(str(tmp_path), number, 2, 0.0)
    (tmp_path / "work" / "square-1.txt").write_text("5")
    with pytest.raises(OSError, match="square-1 of another --part is damaged"):
        run_part(str(tmp_path), 1, 2, 0.0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--part", "1/2", "--fresh"], "--fresh would delete"),
        (["--part", "1/2", "--runner=FlinkRunner"], "--part is for a job without Beam"),
        (["--part", "3/2"], "i from 1 to n"),
        (["--part-wait", "9"], "--part-wait 9: give --part i/n"),
    ],
)
def test_what_does_not_go_with_parts(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = Tables(tmp_path)
    inputs.write(4)
    try:
        status = tables(["concat", inputs.pairs, "--output", str(tmp_path / "out"), *flags])
    except SystemExit as stopped:  # argparse's own
        status = int(stopped.code or 0)
    assert status == 2 and message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "web_pairs",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("hard_negatives", "tables", "manifest sbu")
        ),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("nearest_images", "manifest")),
    ],
)
def test_parts_of_jobs_write_the_bytes_of_one_process(name: str, tmp_path: Path) -> None:
    inputs = Tables(tmp_path)
    inputs.write(24)
    pairs = ["--pairs", inputs.pairs]
    for number in range(4):
        page = (
            "<html lang=en><title>A page</title><p>Some words of it stand before the picture."
            f"<img src='/{number}.jpg' width=400 height=320 alt='A boat on the lake {number}'>"
        )
        site = f"http://site-{number}.example"
        responses = [
            (f"{site}/page.html", page.encode(), "text/html"),
            (f"{site}/{number}.jpg", make_image(400, 320, seed=number), "image/jpeg"),
        ]
        write_archive(tmp_path / f"{number}.warc.gz", responses)
    (tmp_path / "rows.csv").write_text(
        "image_url,text\nhttp://site-0.example/0.jpg,A white boat with a sail on the lake\n"
    )
    lines = ["image,text", *(f"{n}.jpg,boat {n}" for n in range(9))]
    (tmp_path / "own.csv").write_text("\n".join(lines))
    command = {
        "web_pairs": [
            *["--warc", str(tmp_path / "*.warc.gz"), "--table", str(tmp_path / "rows.csv")],
            *[*NO_MODELS, "--shards", "2"],
        ],
        "hard_negatives": [*pairs, "--pairs-per-shard", "5", "--workers", "1"],
        "nearest_images": ["--regions", inputs.regions, *pairs, "--images-per-shard", "5"],
        "manifest": [
            *["own", "--input", str(tmp_path / "own.csv"), "--text-column", "text"],
            *["--image-column", "image", "--rows-per-shard", "2"],
        ],
        "manifest sbu": ["--input", str(write_sbu(tmp_path / "sbu")), "--rows-per-shard", "4"],
        "tables": ["concat", inputs.pairs, inputs.pairs],
    }[name]

    def start(output: str, *program: str, **slurm: str) -> "subprocess.Popen[str]":
        given = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **slurm}
        return subprocess.Popen(
            [*program, *command, "--output", str(tmp_path / output)],
            env={**os.environ, "PYTHON": sys.executable, **given},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    script = ["bash", str(ROOT / "examples/slurm/job.sbatch"), *name.split()]
    processes = [start("whole", sys.executable, "-m", *f"vlmill.pipelines.{name}".split())]
    processes += [
        start("parts", *script, SLURM_ARRAY_TASK_ID=task, SLURM_ARRAY_TASK_COUNT="3")
        for task in ("2", "3", "1")
    ]
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0, 0], said
    whole, parts = (
        {p.name: p.read_bytes() for p in (tmp_path / out).iterdir() if p.is_file()}
        for out in ("whole", "parts")
    )
    assert parts.keys() == whole.keys()
    assert [file for file, content in whole.items() if parts[file] != content] == []
    assert verify_folder(tmp_path / "parts") == []


def write_sbu(folder: Path) -> Path:
    """Captions and images of a published data set; two entries have the same image."""
    urls = [f"{FLICKR}/{n}_ab.jpg" for n in range(11)]
    columns = {"image_urls": urls, "user_ids": urls, "captions": [f"a cat {n}" for n in range(11)]}
    (folder / "images").mkdir(parents=True)
    (folder / "sbu-captions-all.json").write_text(json.dumps(columns))
    for number, url in enumerate(urls):
        image = make_image(160, 120, seed=max(number, 1))
        (folder / "images" / url.rpartition("/")[2]).write_bytes(image)
    return folder


def test_parts_need_a_folder_that_all_see(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--warc", "s3://bucket/a.warc.gz", "--output", "s3://bucket/out", "--part", "1/2"]
    assert web_pairs([*flags, *NO_MODELS]) == 2
    assert "parts need a folder that all of them see" in capsys.readouterr().err
