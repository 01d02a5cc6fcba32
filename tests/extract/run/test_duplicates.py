"""Which images the rows of a finished part are of."""

from pathlib import Path

from vlmill.extract.images.plan import InputImage
from vlmill.extract.run.duplicates import row_images
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import REGIONS, REJECTS, table_of_rows


def test_rows_of_a_finished_part_know_their_images(tmp_path: Path) -> None:
    """Also where one path is there twice: the later one is the duplicate."""
    images = [InputImage(path=name) for name in ("a", "b", "cut", "a", "c")]
    rows: list[dict[str, object]] = [
        {"image_id": name, "width": 1, "height": 1, "num_boxes": 0, "boxes": []}
        for name in ("hash-a", "hash-b", "hash-c")
    ]
    write_shard(tmp_path, REGIONS, table_of_rows(rows, REGIONS))
    rejects = [
        reject("regions", "cut", Reason.UNREADABLE_IMAGE),
        reject("regions", "a", Reason.DUPLICATE),
    ]
    write_shard(tmp_path, REJECTS, rejects)
    (regions_file,), (rejects_file,) = tmp_path.glob("regions-*"), tmp_path.glob("rejects-*")
    found = row_images(images, regions_file, rejects_file)
    assert found == {"hash-a": images[0], "hash-b": images[1], "hash-c": images[4]}
    assert found["hash-a"] is images[0]
