"""Captions of images in search results."""

from pathlib import Path

import pytest

from vlmill.inference.service.served_index import Captions
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS


def write(folder: Path, rows: list[tuple[str | None, str]]) -> Path:
    empty = dict.fromkeys(PAIRS.schema.names)
    about = {"source": "own", "split": "train", "text_source": "human"}
    pairs = [
        {**empty, **about, "pair_id": str(at), "image_id": image, "text": text}
        for at, (image, text) in enumerate(rows)
    ]
    write_shard(folder, PAIRS, pairs)
    return folder


def test_the_first_caption_of_an_image_is_added(tmp_path: Path) -> None:
    rows = [("b", "a boat"), (None, "a text alone"), ("a", "a kite"), ("b", "again a boat")]
    captions = Captions(write(tmp_path, rows))
    answers = [
        {"score": 0.5, "image_id": "a"},
        {"score": 0.4, "image_id": "b"},
        {"score": 0.3, "image_id": "none"},
        {"score": 0.2, "image_id": "a", "pair_id": "2", "text": "its own text"},
        {"score": 0.1, "pair_id": "1"},
    ]
    assert [row.get("caption") for row in captions.add_to(answers)] == [
        *("a kite", "a boat", None, None, None)
    ]
    assert [row["score"] for row in captions.add_to(answers)] == [0.5, 0.4, 0.3, 0.2, 0.1]
    assert captions.add_to([]) == []


def test_a_table_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--pairs .*: no row has an image"):
        Captions(write(tmp_path, [(None, "a text alone")]))
