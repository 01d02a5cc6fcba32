"""Many archives: their spools are merged in levels, and the output has the same bytes."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.factories import NO_MODELS
from tests.pipelines.conftest import make_image, write_archive

from vlmill.pipelines.web_pairs import merge, spool, units
from vlmill.pipelines.web_pairs.__main__ import main
from vlmill.pipelines.web_pairs.units import count_merged, cut_slices

ARCHIVES = 9


@pytest.fixture
def warcs(tmp_path: Path) -> str:
    """Archives whose images are in the archive of the next page; one is in all of them."""
    for number in range(ARCHIVES):
        site, near = (f"http://site-{n % ARCHIVES}.example" for n in (number, number + 1))
        page = (
            f"<html lang=en><title>Page {number}</title><p>Some words before it stand here."
            f"<img src='{near}/a.jpg' width=400 height=320 alt='A boat on the lake {number}'>"
            f"<img src='/all.jpg' width=400 height=320 alt='The old harbour in May {number}'>"
        )
        responses = [
            (f"{site}/page.html", page.encode(), "text/html"),
            (f"{site}/a.jpg", make_image(400, 320, seed=number), "image/jpeg"),
            (f"{site}/all.jpg", make_image(400, 320, seed=99), "image/jpeg"),
        ]
        write_archive(tmp_path / f"{number}.warc.gz", responses)
    return str(tmp_path / "*.warc.gz")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_merged_spools_give_the_same_bytes(
    warcs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--warc", warcs, *NO_MODELS, "--workers", "1", "--shards", "3", "--output"]
    assert main([*flags, str(tmp_path / "direct")]) == 0
    for name, value in (("FAN_IN", 2), ("MERGE_RANGES", 2), ("GATHERED", 0), ("UNIT_BYTES", 500)):
        monkeypatch.setattr(units, name, value)
    written = Counter[str]()
    write = spool.spool

    def note(path: Path, **more: Any) -> Any:
        written[f"{path.name.split('-')[0]}.{path.suffixes[-2]}"] += 1
        return write(path, **more)

    monkeypatch.setattr(merge, "spool", note)
    assert main([*flags, str(tmp_path / "merged")]) == 0
    assert contents(tmp_path / "merged") == contents(tmp_path / "direct")
    # Nine archives become five spools, and these three times two: of two ranges of slices each.
    mined = [f"merged..mined-{kind}" for kind in ("pages", "urls", "redirects", "inline")]
    assert [written[name] for name in mined] == [5 + 3 * 2] * 4
    assert all(written[f"merged..{kind}"] for kind in ("pairs", "images", "hashes", "rejects"))
    assert written["gather..undecoded"] > 1


def test_two_levels_leave_few_spools() -> None:
    assert [count_merged(n) for n in (1, 64, 65, 4_096)] == [[], [], [2], [64]]
    assert count_merged(90_000) == [1_407, 22]
    for slices in (256, 3, 5_000):
        ranges = cut_slices(slices, 2)
        assert len(ranges) == 32 and [n for part in ranges for n in part] == list(range(slices))
    assert cut_slices(256, 1) == [range(256)]
