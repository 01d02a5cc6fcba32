"""Reads the settings that determine the output of a published data set: files, flags and lists."""

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmill.pipelines.manifest.entries import DataSet, Reading
from vlmill.pipelines.manifest.published.overlaps import Overlaps, hash_list, id_list, list_digests
from vlmill.pipelines.manifest.published.splits import split_lists
from vlmill.pipelines.manifest.reading.sources import Folder
from vlmill.pipelines.web.fetching.flags import build_policy
from vlmill.runtime.files.digests import path_input
from vlmill.runtime.files.inputs import Input


def read_settings(
    name: str, data_set: DataSet, reading: Reading, args: argparse.Namespace
) -> dict[str, Any]:
    """Returns the settings that determine the rows: names and sizes of files, and the flags."""
    options = {option: _plain(getattr(args, option)) for option in data_set.options}
    lists = ("exclude", "exclude_hash", "compare", "compare_hash")
    return {
        "data_set": name,
        "files": [[s.name, s.size] for s in reading.sources],
        "images": [str(path) for path in args.images],
        "require_images": args.require_images,
        **{flag: list_digests(getattr(args, flag)) for flag in lists},
        "exclude_splits": sorted(args.exclude_split),
        "exclude_from": args.exclude_from,
        "max_distance": args.max_distance,
        "rows_per_shard": args.rows_per_shard,
        **({"fetch": build_policy(args).as_settings()} if args.fetch else {}),
        **{f"{Path(file).stem}_sha256": _digest(c) for file, c in reading.files.items()},
        **options,
        **reading.resolved,
    }


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, list) else value


def read_overlaps(folder: Folder, args: argparse.Namespace) -> Overlaps:
    """Reads the lists of the flags. Raises InputError."""
    ids = [
        id_list(path, flag=flag, excludes=flag == "--exclude")
        for flag, paths in (("--exclude", args.exclude), ("--compare", args.compare))
        for path in paths
    ]
    hashes = [
        hash_list(path, flag=flag, excludes=flag == "--exclude-hash", distance=args.max_distance)
        for flag, paths in (
            ("--exclude-hash", args.exclude_hash),
            ("--compare-hash", args.compare_hash),
        )
        for path in paths
    ]
    ids += split_lists(folder, args.exclude_split)
    return Overlaps(ids=tuple(ids), hashes=tuple(hashes), train_only=args.exclude_from == "train")


def inputs_of_job(args: argparse.Namespace) -> list[Input]:
    """Records the folder, the images and the lists."""
    flags: Mapping[str, Sequence[Path]] = {
        "--input": [args.input],
        "--images": args.images,
        "--exclude": args.exclude,
        "--exclude-hash": args.exclude_hash,
        "--compare": args.compare,
        "--compare-hash": args.compare_hash,
    }
    return [path_input(flag, path) for flag, paths in flags.items() for path in paths]
