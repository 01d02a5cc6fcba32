"""Counts pairs by bins for the report while shards are written, and collects a few samples."""

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from vlmill.pipelines.web.texts.words import split_words
from vlmill.pipelines.web_pairs.pair import Pair
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

SAMPLES = 50
EXAMPLES = 5  # of each stage and reason
MOST_HOSTS = 1_000  # per shard: enough for the largest of all
SAMPLE_COLUMNS = ("pair_id", "text", "text_source", "score", "page_url")
SIDE_BIN, SCORE_BIN, SHAPE_BIN = 100, 0.05, 0.25

Counts = Counter[Any]


class PairMetrics:
    """Counts the pairs of one shard, and keeps those with the lowest hashes as samples."""

    def __init__(self) -> None:
        self.counts: dict[str, Counts] = {}
        self.samples: list[tuple[str, dict[str, Any]]] = []
        self.tar: dict[str, Any] | None = None

    def add(self, pair: Pair, row: Mapping[str, Any]) -> None:
        """Counts a pair."""
        image = pair.image
        values = {
            "words": len(split_words(pair.text, pair.language)),
            "score": score_bin(pair.score),
            "side": min(image.width, image.height) // SIDE_BIN,
            "shape": int(image.width / image.height / SHAPE_BIN),
            "language": pair.language or "unknown",
            "text_source": pair.text_source,
            "split": row["split"],
            "license": pair.license or "none stated",
            "host": urlsplit(pair.page_url or pair.image.url).netloc,
        }
        for name, value in values.items():
            self.counts.setdefault(name, Counter())[value] += 1
        about = {name: row[name] for name in SAMPLE_COLUMNS}
        location = {"archive": image.archive, "offset": image.offset}
        self.samples.append((drawn(row["pair_id"]), {**about, **location}))
        if len(self.samples) > 20 * SAMPLES:
            self._cut()

    def _cut(self) -> None:
        self.samples = heapq.nsmallest(SAMPLES, self.samples, key=lambda sample: sample[0])

    def as_json(self) -> dict[str, Any]:
        """Returns plain values, for the unit's record."""
        self._cut()
        counts = {
            name: sorted(counter.most_common(MOST_HOSTS), key=lambda item: str(item[0]))
            for name, counter in self.counts.items()
        }
        return {"counts": counts, "samples": self.samples, "tar": self.tar}


def score_bin(score: float) -> int:
    """Returns the bin of a score in the report's histogram."""
    return int(score / SCORE_BIN)


class _Examples:
    """Collects a few rows of each kind: those with the lowest hashes."""

    name: str  # of the examples in a unit's record

    def __init__(self) -> None:
        self._examples: dict[Any, list[tuple[str, dict[str, Any]]]] = {}

    def _collect(self, kind: object, key: str, row: dict[str, Any]) -> None:
        examples = self._examples.setdefault(kind, [])
        examples.append((drawn(key), row))
        if len(examples) > 20 * EXAMPLES:
            examples[:] = select_first(examples)

    def as_json(self) -> dict[str, Any]:
        """Returns plain values, for the unit's record."""
        kinds = sorted(self._examples.items())
        return {self.name: [example for _, each in kinds for example in select_first(each)]}


class RejectExamples(_Examples):
    """Collects a few rejects of each stage and reason."""

    name = "examples"

    def collect(self, rejects: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Passes rejects on and collects examples."""
        for row in rejects:
            self._collect((row["stage"], row["reason"]), row["key"], row)
            yield row


class RejectedImages(_Examples):
    """Collects a few images of each reason that were dropped after decoding, with their texts.

    Racy images are excluded: nobody should have to look at them in a report.
    """

    name = "rejected"

    def add(self, pair: Pair, drop: Drop) -> None:
        """Adds a pair whose image is dropped."""
        if drop.reason is Reason.RACY_IMAGE:
            return
        image = pair.image
        about = {"text": pair.text, "page_url": pair.page_url, "url": image.url}
        location = {"archive": image.archive, "offset": image.offset}
        reason = {"reason": drop.reason.value, "detail": drop.detail}
        self._collect(drop.reason.value, image.url, {**about, **location, **reason})


def select_first(
    examples: Iterable[tuple[str, dict[str, Any]]],
) -> list[tuple[str, dict[str, Any]]]:
    """Returns the first examples by their hashes."""
    return heapq.nsmallest(EXAMPLES, examples, key=lambda example: example[0])


def drawn(key: str) -> str:
    """Returns the hash that selects samples: pseudo-random, and the same on every run."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def sum_counts(parts: Iterable[Mapping[str, Any]]) -> dict[str, Counts]:
    """Adds the counts of shards."""
    total: dict[str, Counts] = {}
    for part in parts:
        for name, items in part["counts"].items():
            total.setdefault(name, Counter()).update({key: count for key, count in items})
    return total
