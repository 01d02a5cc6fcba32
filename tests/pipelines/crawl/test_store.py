"""Crawls into an object store: from a list in a store, on a runner, killed and continued."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.object_stores import download_folder, names_below, upload_folder
from tests.pipelines.crawl.test_site import (
    arguments,
    expected,
    fresh,
    is_whole,
    kept_rates,
    most_asked_again,
    outcomes_of,
    rows_of,
    start,
    write_list,
)
from worlds.host_kinds import KINDS
from worlds.host_server import MANY, Served

from vlmill.pipelines.crawl.__main__ import main
from vlmill.runtime.files.manifest import verify_folder

__all__ = ["fresh"]  # the fixture of that module
HOSTS = range(len(KINDS), len(KINDS) + 6)


def in_store(tmp_path: Path, bucket: str, urls: list[str], *more: str) -> list[str]:
    """The arguments of a crawl from and to a store."""
    (tmp_path / "in").mkdir()
    write_list(tmp_path / "in" / "urls.txt", urls)
    listed = f"{upload_folder(tmp_path / 'in', f'{bucket}/in')}/urls.txt"
    args = [str(a) for a in arguments(tmp_path, tmp_path, "--retries", "0", *more)]
    args[1], args[3] = listed, f"{bucket}/out"
    return args


def pictures(fresh: Served, number: int) -> list[str]:
    """URLs of images on some hosts."""
    return [fresh.site.url(host, f"{MANY}{n}.jpg") for host in HOSTS for n in range(number)]


def wait_until(process: subprocess.Popen[bytes], happened: Callable[[], bool]) -> None:
    for _ in range(3_000):
        if happened():
            return
        assert process.poll() is None, "the run has ended before its kill"
        time.sleep(0.02)
    raise AssertionError("nothing has happened")


def has_journal(process: psutil.Process) -> bool:
    try:
        return any(file.path.endswith(".journal") for file in process.open_files())
    except psutil.Error:
        return False


def workers_with_a_bucket(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if has_journal(child)]


def check_images(output: str, tmp_path: Path, urls: list[str]) -> None:
    assert verify_folder(output) == []
    whole = download_folder(output, tmp_path / "whole")
    assert outcomes_of(whole) == dict.fromkeys(urls, "fetched")
    is_whole(whole)
    assert not os.listdir(Path(os.environ["VLMILL_CACHE"], "uploads"))


@pytest.mark.slow
def test_a_killed_worker_s_bucket_is_taken_over_from_its_mirror(
    tmp_path: Path, fresh: Served, bucket: str
) -> None:
    """By another process of the same run, as soon as its lock is stale."""
    urls = pictures(fresh, 12)
    more = ("--workers", "2", "--delay", "0.3", "--lock-seconds", "2")
    args = in_store(tmp_path, bucket, urls, *more)
    process = start(args)
    wait_until(process, lambda: len(fresh.hits()) > 30)
    (victim, *_) = workers_with_a_bucket(process)
    victim.send_signal(signal.SIGKILL)
    assert process.wait() == 0
    assert most_asked_again(fresh) <= 1
    hosts = {hit.host for hit in fresh.hits()}
    assert hosts == set(HOSTS) and max(hit.running for hit in fresh.hits()) == 1
    check_images(args[3], tmp_path, urls)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_runner_s_workers_fetch_buckets_in_a_store(
    tmp_path: Path, fresh: Served, bucket: str
) -> None:
    urls = pictures(fresh, 4)
    beam = ("--runner=DirectRunner", "--direct_num_workers=2")
    args = in_store(tmp_path, bucket, urls, *beam, "--direct_running_mode=multi_processing")
    assert main(args) == 0
    assert most_asked_again(fresh) == 0
    assert max(hit.running for hit in fresh.hits()) == 1
    check_images(args[3], tmp_path, urls)
    assert main(args) == 0  # says that it is finished


@pytest.mark.nightly  # as above, with every kind of host
def test_a_killed_crawl_in_a_store_goes_on(tmp_path: Path, fresh: Served, bucket: str) -> None:
    more = ("--workers", "2", "--warc-bytes", "20000")
    args = in_store(tmp_path, bucket, fresh.site.urls(), *more)
    process, output = start(args), args[3]
    wait_until(process, lambda: sum(name.endswith(".warc.gz") for name in names_below(output)) >= 4)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert main([*args, "--lock-seconds", "0"]) == 0
    assert verify_folder(output) == []
    whole = download_folder(output, tmp_path / "whole")
    assert outcomes_of(whole) == expected(fresh)
    is_whole(whole)
    kept_rates(fresh)
    assert most_asked_again(fresh) <= 1
    assert not os.listdir(Path(os.environ["VLMILL_CACHE"], "uploads"))
    assert main(args) == 0  # says that it is finished


@pytest.mark.nightly  # its parts are above and in test_table.py
def test_a_table_in_a_store_becomes_pairs_there(tmp_path: Path, fresh: Served, bucket: str) -> None:
    urls = pictures(fresh, 3)
    args = in_store(tmp_path, bucket, [], "--workers", "2", "--resize", "64")
    write_list(tmp_path / "in" / "a.csv", ["url,caption", *(f"{url},a text" for url in urls)])
    args[0], args[1] = "--input", f"{upload_folder(tmp_path / 'in', f'{bucket}/in')}/a.csv"
    assert main(args) == 0
    assert verify_folder(args[3]) == []
    whole = download_folder(args[3], tmp_path / "whole")
    assert sorted(row["image_url"] for row in rows_of(whole, "pairs")) == sorted(urls)
    assert {row["height"] for row in rows_of(whole, "images")} == {64}
    assert not any("/work/" in name for name in names_below(args[3]))
