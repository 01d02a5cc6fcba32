"""Which file of a folder a name of a table means."""

from pathlib import Path

import pytest

from vlmill.pipelines.manifest.reading.images import image_path, image_row
from vlmill.pipelines.web.pages.images import open_examiner
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

NFC, NFD = "M\N{LATIN SMALL LETTER O WITH DIAERESIS}we", "Mo\N{COMBINING DIAERESIS}we"


@pytest.mark.parametrize("name", [NFC, NFD, f"{NFC}.jpg"])
@pytest.mark.parametrize("file", [f"{NFC}.jpg", f"{NFD}.jpg"])
def test_both_spellings_of_a_name_find_the_file(tmp_path: Path, name: str, file: str) -> None:
    (tmp_path / file).write_bytes(b"x")
    assert image_path(tmp_path, name) == tmp_path / file


@pytest.mark.parametrize("ending", [".jfif", ".jpe", ".avif", ".heic", ".BMP"])
def test_endings_that_a_name_may_lack(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"a{ending}").write_bytes(b"x")
    assert image_path(tmp_path, "a") == tmp_path / f"a{ending}"


def test_a_format_that_is_not_decoded_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jxl").write_bytes(b"\xff\x0a\xfa\x7f")
    with open_examiner(min_side_px=0, max_pixels=10**6) as examiner:
        row = image_row(tmp_path, "a.jxl", examiner)
    assert isinstance(row, Drop)
    assert row.reason is Reason.UNSUPPORTED_FORMAT and str(row.detail).startswith("JPEG XL")
