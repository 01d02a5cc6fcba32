"""Writes one shard per unit, as the last step: sorted pairs and rejects, images by archive."""

import heapq
import json
from collections.abc import Iterable, Iterator
from typing import Any

from vlmill.pipelines.web.pages.images import ArchivedImage
from vlmill.pipelines.web_pairs import rows, webdataset
from vlmill.pipelines.web_pairs.groups import Groups, assign_split
from vlmill.pipelines.web_pairs.image_bytes import read_images
from vlmill.pipelines.web_pairs.metrics import PairMetrics, RejectExamples
from vlmill.pipelines.web_pairs.order import ordered_rows
from vlmill.pipelines.web_pairs.pair import Pair
from vlmill.pipelines.web_pairs.spool import sorted_rows
from vlmill.pipelines.web_pairs.stages import NEAR_DUPLICATES
from vlmill.pipelines.web_pairs.units import Job, open_counts
from vlmill.runtime.files.shards import Shard, stream_shard
from vlmill.runtime.units.funnel import OUT, Drop
from vlmill.runtime.units.numbers import Numbers
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.ids import compute_pair_id
from vlmill.schemas.tables import CANDIDATES, IMAGES, PAIRS, REJECTS, Table

GROUP_BYTES = 16 << 20
GROUP_ROWS = 10_000
SOURCE = "lait"
JOB = "web_pairs"


def write_shard(job: Job, unit: Unit) -> Result:
    """Writes one shard of each table, or of the archives for webdataset.

    Memory: a row group of each, and one image.
    """
    groups, metrics, examples = Groups.read(job.joins), PairMetrics(), RejectExamples()
    rejects_path = job.joins / f"{unit.name}.rejects.spool"
    with open_counts(job, rejects_path) as counts:

        def settled(kind: str) -> Iterator[tuple[Pair, str | Drop]]:
            for _, value in ordered_rows(job, kind, unit):
                pair = rows.pair(value)
                yield pair, assign_split(pair.image, pair.page_url, groups, job.rules)

        def pair_rows() -> Iterator[dict[str, Any]]:
            for pair, split in settled("pairs"):
                row = pair_row(pair, "train")
                if isinstance(split, Drop):
                    counts.dropped(NEAR_DUPLICATES, row["pair_id"], split)
                    continue
                counts.passed(NEAR_DUPLICATES)
                row["split"] = split
                metrics.add(pair, row)
                yield row

        shards = [write_rows(job, PAIRS, unit.number, pair_rows())]
        if job.rules.keep_texts > 1:
            rows_of_texts = (
                row
                for pair, split in settled("pairs")
                if isinstance(split, str)
                for row in candidate_rows(pair, split)
            )
            shards.append(write_rows(job, CANDIDATES, unit.number, rows_of_texts))
    images_to_write = ((pair, split) for pair, split in settled("images") if isinstance(split, str))
    with_bytes = read_images(images_to_write, job, unit.number)
    if job.webdataset:
        samples = (
            webdataset.Sample(pair_row(pair, split), pair.image.format, data)
            for pair, split, data in with_bytes
        )
        metrics.tar = webdataset.write_tar(job.output, unit.number, job.shards, samples)
    else:
        images = (image_row(pair.image, data) for pair, _, data in with_bytes)
        shards.append(write_rows(job, IMAGES, unit.number, images))
    own_rejects = sorted_rows([rejects_path], unit.number)
    stream = heapq.merge(ordered_rows(job, "rejects", unit), own_rejects)
    rejects = (rows.decode_reject(line) for line, _ in stream)
    shards.append(write_rows(job, REJECTS, unit.number, examples.collect(rejects)))
    return Result(
        tallies=counts.tallies,
        shards=shards,
        metrics={**metrics.as_json(), **examples.as_json()},
        numbers=Numbers(pairs=counts.tallies[NEAR_DUPLICATES.name, OUT]),
    )


def pair_row(pair: Pair, split: str) -> dict[str, Any]:
    """Returns a row of ``pairs``."""
    return {
        "pair_id": compute_pair_id(pair.image.image_id, pair.text),
        "image_id": pair.image.image_id,
        "text": pair.text,
        "language": pair.language or None,
        "source": SOURCE,
        "split": split,
        "text_source": pair.text_source,
        "score": pair.score,
        "page_url": pair.page_url or None,
        "image_url": pair.image.url,
        "license": pair.license,
        "nsfw_score": pair.image.nsfw_score,
        "realism_score": pair.image.realism_score,
    }


def candidate_rows(pair: Pair, split: str) -> Iterator[dict[str, Any]]:
    """Yields an image's rows of ``candidates``: the text of its pair, and the further texts."""
    for rank, text in enumerate((pair.as_other(), *pair.others)):
        yield {
            "pair_id": compute_pair_id(pair.image.image_id, text.text),
            "image_id": pair.image.image_id,
            "text": text.text,
            "rank": rank,
            "language": text.language or None,
            "split": split,
            "text_source": text.text_source,
            "score": text.score,
            "page_url": text.page_url or None,
            "image_url": pair.image.url,
            "license": text.license,
            "features": None if text.features is None else json.dumps(text.features),
            "nsfw_score": pair.image.nsfw_score,
            "realism_score": pair.image.realism_score,
        }


def image_row(image: ArchivedImage, data: bytes) -> dict[str, Any]:
    """Returns a row of ``images``."""
    return {
        "image_id": image.image_id,
        "bytes": data,
        "width": image.width,
        "height": image.height,
        "format": image.format,
        "sha256": image.image_id,
        "source_url": image.url,
    }


def write_rows(job: Job, table: Table, number: int, stream: Iterable[dict[str, Any]]) -> Shard:
    """Writes rows in their input order; row groups of images are bounded by their bytes."""
    return stream_shard(
        job.output,
        table,
        stream,
        number,
        job.shards,
        producer={"job": JOB, "rules": job.rules.as_settings()},
        group_rows=GROUP_ROWS,
        group_bytes=GROUP_BYTES,
    )
