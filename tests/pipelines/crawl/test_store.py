"""A crawl into an object store, from a list that lies there, which is killed and goes on."""

import os
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.object_stores import download_folder, names_below, upload_folder
from tests.pipelines.crawl.test_site import (
    PATIENT,
    arguments,
    expected,
    fresh,
    is_whole,
    kept_rates,
    outcomes_of,
    start,
    write_list,
)
from worlds.host_server import Hit, Served

from vlmill.pipelines.crawl.command import main
from vlmill.runtime.files.manifest import verify_folder

__all__ = ["fresh"]  # the fixture of that module


def killed_with_parts(process: subprocess.Popen[bytes], output: str, number: int) -> None:
    """Kills a run once so many archives lie in its output."""
    while sum(name.endswith(".warc.gz") for name in names_below(output)) < number:
        assert process.poll() is None, "the run has ended before its kill"
    process.send_signal(signal.SIGKILL)
    process.wait()


def answered_in(journals: Path) -> set[str]:
    """The URLs whose answers the journals of a store list."""
    urls = set[str]()
    for path in journals.glob("work/buckets/*.journal"):
        database = sqlite3.connect(path)
        urls.update(url for (url,) in database.execute("SELECT url FROM urls WHERE at > 0"))
        database.close()
    return urls


def asked(served: Served, hits: Sequence[Hit]) -> Counter[str]:
    """How often each URL was asked for, of hosts that want to be asked once."""
    patient = {host for host, kind in served.site.kinds.items() if kind in PATIENT}
    return Counter(served.site.url(h.host, h.path) for h in hits if h.host not in patient)


@pytest.mark.nightly  # its kill is in test_site.py, its store in tests/integration
def test_a_killed_crawl_in_a_store_goes_on(tmp_path: Path, fresh: Served, bucket: str) -> None:
    write_list(tmp_path / "urls.txt", fresh.site.urls())
    (tmp_path / "in").mkdir()
    (tmp_path / "urls.txt").rename(tmp_path / "in" / "urls.txt")
    listed, output = f"{upload_folder(tmp_path / 'in', f'{bucket}/in')}/urls.txt", f"{bucket}/out"
    more = ("--workers", "2", "--retries", "0", "--warc-bytes", "20000")
    args = [str(a) for a in arguments(tmp_path, tmp_path, *more)]
    args[1], args[3] = listed, output
    killed_with_parts(start(args), output, 4)
    known = answered_in(download_folder(output, tmp_path / "killed"))
    before = fresh.hits()
    assert main([*args, "--lock-seconds", "0"]) == 0
    assert verify_folder(output) == []
    whole = download_folder(output, tmp_path / "whole")
    assert outcomes_of(whole) == expected(fresh)
    is_whole(whole)
    kept_rates(fresh)
    again = asked(fresh, fresh.hits()[len(before) :])
    assert known and {url: again[url] for url in known if again[url]} == {}
    assert not os.listdir(Path(os.environ["VLMILL_CACHE"], "uploads"))
    assert main(args) == 0  # says that it is finished
