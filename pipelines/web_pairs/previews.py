"""Writes report.json: the samples and counts that the report shows, as plain values.

They come from the records of the shards' units, and the samples' images from their archives:
no file grows with the number of pairs. With report.json the page can be written again when
scores have changed and the archives are deleted.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any

from vlmill.pipelines.web.archives.reading import open_archive, read_bodies
from vlmill.pipelines.web_pairs.metrics import SAMPLE_COLUMNS, SAMPLES, select_first, sum_counts
from vlmill.pipelines.web_pairs.mine import INLINE
from vlmill.pipelines.web_pairs.report import SHOWN, SHOWN_IMAGES
from vlmill.pipelines.web_pairs.units import Job
from vlmill.runtime.console.report import thumbnail_uri
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Rejected


def write_shown(
    job: Job, written: Sequence[Mapping[str, Any]], decoded: Sequence[Mapping[str, Any]]
) -> None:
    """Writes ``report.json``: counts by bins, samples with their images, examples of rejects.

    ``written`` has the metrics of the shards, ``decoded`` the metrics of the archives' images.
    """
    samples = sorted((s for part in written for s in part["samples"]), key=lambda s: str(s[0]))
    sample_rows = [_with_image(about, job) for _, about in samples[:SAMPLES]]
    counts = {
        name: sorted(counter.items(), key=lambda item: str(item[0]))
        for name, counter in sum_counts(written).items()
    }
    content = {
        "counts": counts,
        "samples": sample_rows,
        "rejected": _rejected_images(decoded, job),
        "rejects": list(_reject_rows(written)),
    }
    write_json(to_path(job.output) / SHOWN, content)


def _with_image(sample: Mapping[str, Any], job: Job) -> dict[str, Any]:
    row = {name: sample[name] for name in SAMPLE_COLUMNS}
    return row | {"picture": _thumbnail(sample, job)}


def _rejected_images(decoded: Sequence[Mapping[str, Any]], job: Job) -> list[dict[str, Any]]:
    """Returns a few rejected images of each reason that can be shown, reasons by turns."""
    kinds: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for part in decoded:
        for drawn, row in part.get("rejected", []):
            kinds.setdefault(row["reason"], []).append((drawn, row))
    turns = zip_longest(*(select_first(examples) for _, examples in sorted(kinds.items())))
    examples = [example for turn in turns for example in turn if example is not None]
    # Lazily: each thumbnail reads an archive and decodes an image.
    rows = ({**row, "picture": _thumbnail(row, job)} for _, row in examples)
    hidden = ("archive", "offset")
    previews = ({k: v for k, v in row.items() if k not in hidden} for row in rows if row["picture"])
    return list(islice(previews, SHOWN_IMAGES))


def _thumbnail(sample: Mapping[str, Any], job: Job) -> str:
    if sample["archive"] == INLINE:
        return ""  # an inline image is represented by its text
    max_bytes = job.rules.max_record_bytes
    with open_archive(sample["archive"], job.allowed) as file:
        (body,) = read_bodies(file, [sample["offset"]], max_bytes=max_bytes)
    try:
        return "" if isinstance(body, Drop) else thumbnail_uri(body)
    except Rejected:
        return ""  # thumbnails do not support its format


def _reject_rows(written: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yields a few rejects of each stage and reason, over all shards."""
    kinds: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    for part in written:
        for drawn, row in part["examples"]:
            kinds.setdefault((row["stage"], row["reason"]), []).append((drawn, row))
    for kind, examples in sorted(kinds.items()):
        for _, row in select_first(examples):
            yield [*kind, row["key"][:100], (row["detail"] or "")[:160]]
