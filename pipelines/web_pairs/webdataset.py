"""Writes pairs as tar shards for open_clip and webdataset: KEY.jpg, KEY.txt and KEY.json each."""

import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vlmill.runtime.files.atomic import atomic_path, write_json
from vlmill.runtime.files.listed import hash_file
from vlmill.runtime.files.paths import to_path

INDEX = "webdataset.json"
EXTENSIONS = {"jpeg": "jpg"}  # for other formats the format's own name


class Sample(NamedTuple):
    """Holds a row of ``pairs``, and its image's format and bytes."""

    row: Mapping[str, Any]
    format: str
    image: bytes


def write_tar(folder: str, number: int, total: int, samples: Iterable[Sample]) -> dict[str, Any]:
    """Writes one tar; returns its line of the index. Memory: one image."""
    path = to_path(folder) / f"pairs-{number:05d}-of-{total:05d}.tar"
    count = 0
    with atomic_path(path) as temporary:
        with tarfile.open(temporary, "w") as tar:
            for sample in samples:
                _add_sample(tar, sample)
                count += 1
        digest = hash_file(temporary)
        size = temporary.stat().st_size
    return {"url": path.name, "nsamples": count, "filesize": size, "sha256": digest}


def _add_sample(tar: tarfile.TarFile, sample: Sample) -> None:
    key = sample.row["pair_id"]
    about = json.dumps(dict(sample.row), ensure_ascii=False, sort_keys=True)
    files = {
        EXTENSIONS.get(sample.format, sample.format): sample.image,
        "txt": sample.row["text"].encode(),
        "json": about.encode(),
    }
    for extension, content in files.items():
        entry = tarfile.TarInfo(f"{key}.{extension}")
        entry.size = len(content)  # no time and no owner: equal pairs give equal bytes
        tar.addfile(entry, io.BytesIO(content))


def write_index(folder: Path, tars: Iterable[Mapping[str, Any]]) -> None:
    """Lists the shards with their samples, as webdataset's ``wids`` reads them."""
    shards = sorted(tars, key=lambda tar: str(tar["url"]))
    write_json(folder / INDEX, {"__kind__": "wids-shard-index-v1", "shardlist": shards})
