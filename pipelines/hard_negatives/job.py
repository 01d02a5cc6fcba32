"""Hard negatives of image-text pairs: python -m vlmill.pipelines.hard_negatives --help

Each worker process builds the index from the pairs once; the queries are split into ranges, one a
shard. A killed run keeps its finished shards.
"""

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.utils.shared import Shared

from vlmill.pipelines.hard_negatives.cost import estimate_of, measure
from vlmill.pipelines.hard_negatives.tfidf import Index, NegativeRules, build_index, search
from vlmill.pipelines.launch.options import beam_options, run_pipeline
from vlmill.schemas.console.command import say_how_to_read
from vlmill.schemas.console.cost import print_estimate
from vlmill.schemas.console.progress import Progress
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.digests import table_input
from vlmill.schemas.files.manifest import write_manifest
from vlmill.schemas.files.outputs import State, prepare_output
from vlmill.schemas.files.reading import iter_batches
from vlmill.schemas.files.shards import ShardWriter, describe_shard, shard_name, write_shard
from vlmill.schemas.rejects import Reason, reject, rejects_said
from vlmill.schemas.tables import NEGATIVES, PAIRS, REJECTS

JOB = "hard_negatives"
ROWS_PER_GROUP = 10_000


class Pairs:
    """The columns of the pairs table that the job needs, sorted by pair id, each id once."""

    def __init__(self, argument: str) -> None:
        rows: dict[str, tuple[str, str]] = {}
        self.rejects: list[dict[str, object]] = []
        columns = ["pair_id", "image_id", "text"]
        for batch in iter_batches(argument, PAIRS, columns=columns, flag="--pairs"):
            for pair_id, image_id, text in zip(*(c.to_pylist() for c in batch), strict=True):
                if image_id is None:
                    detail = "a text without a picture has no negatives"
                    self.rejects.append(reject(JOB, pair_id, Reason.NO_PICTURE, detail))
                elif pair_id in rows:
                    detail = "a pair of this id came earlier"
                    self.rejects.append(reject(JOB, pair_id, Reason.DUPLICATE, detail))
                else:
                    rows[pair_id] = (image_id, text)
        self.pair_ids = sorted(rows)
        self.image_ids = [rows[p][0] for p in self.pair_ids]
        self.texts = [rows[p][1] for p in self.pair_ids]

    def digest(self) -> str:
        """SHA-256 of all that decides the answer."""
        digest = hashlib.sha256()
        for row in zip(self.pair_ids, self.image_ids, self.texts, strict=True):
            digest.update("\0".join(row).encode() + b"\0\n")
        return digest.hexdigest()


class _SharedIndex:
    """Holds the index for Beam's Shared, which needs what weak references can name."""

    def __init__(self, index: Index) -> None:
        self.index = index


class SearchRange(beam.DoFn):
    """(shard number, start, stop) -> the shard's file; yields the number of captions it holds."""

    def __init__(
        self, pairs: str, output: str, total: int, rules: NegativeRules, settings: dict[str, Any]
    ) -> None:
        self.pairs, self.output, self.total = pairs, output, total
        self.rules, self.settings = rules, settings
        self.shared = Shared()

    def setup(self) -> None:
        self.shared_index = self.shared.acquire(self._build)

    def _build(self) -> _SharedIndex:
        pairs = Pairs(self.pairs)
        return _SharedIndex(build_index(pairs.pair_ids, pairs.image_ids, pairs.texts, self.rules))

    def process(self, element: tuple[int, int, int]) -> Iterator[int]:
        shard, start, stop = element
        producer = {"job": JOB, **self.settings}
        index = self.shared_index.index
        with (
            ShardWriter(self.output, NEGATIVES, shard, self.total, producer=producer) as writer,
            Progress(total=stop - start, unit="caption", label=f"negatives {shard}") as progress,
        ):
            for begin in range(start, stop, ROWS_PER_GROUP):
                end = min(begin + ROWS_PER_GROUP, stop)
                rows = []
                negatives = search(index, begin, end, self.rules)
                for pair_id, (ids, cosines) in zip(
                    index.pair_ids[begin:end], negatives, strict=True
                ):
                    rows.append(
                        {"pair_id": pair_id, "negative_pair_ids": ids, "similarities": cosines}
                    )
                    progress.advance()
                writer.write(rows)
        yield stop - start


def run(args: argparse.Namespace, beam_flags: Sequence[str]) -> int:
    """Searches what no finished shard holds, and writes the manifest."""
    options = beam_options(beam_flags)
    rules = rules_of(args.top, args.below, args.tokenizer)
    if args.pairs_per_shard < 1:
        raise InputError(f"--pairs-per-shard {args.pairs_per_shard}: must be at least 1")
    pairs = Pairs(args.pairs)
    if not pairs.pair_ids:
        raise InputError(
            f"--pairs {args.pairs}: the table is empty, or of texts without pictures alone; give "
            "one with pairs"
        )
    output = Path(args.output)
    if args.dry_run:
        rate = measure(pairs.pair_ids, pairs.image_ids, pairs.texts, rules)
        return print_estimate(estimate_of(len(pairs.pair_ids), rules.top, rate), output)
    settings = {
        "top": rules.top,
        "below": str(rules.below),
        "tokenizer": rules.tokenizer,
        "pairs_per_shard": args.pairs_per_shard,
        "pairs_sha256": pairs.digest(),
    }
    state = prepare_output(output, job=JOB, settings=settings, fresh=args.fresh)
    if state is not State.FINISHED:
        inputs = [table_input("--pairs", args.pairs, PAIRS)]
        ranges = ranges_of(len(pairs.pair_ids), args.pairs_per_shard)
        names = [shard_name(NEGATIVES, k, len(ranges)) for k, _, _ in ranges]
        missing = [r for r, n in zip(ranges, names, strict=True) if not (output / n).exists()]
        if len(missing) < len(ranges):
            print(f"continuing: {len(ranges) - len(missing)} shards are there", file=sys.stderr)
        if missing:
            step = SearchRange(args.pairs, str(output), len(ranges), rules, settings)
            with run_pipeline(options) as pipeline:
                _ = pipeline | "Ranges" >> beam.Create(missing) | "Search" >> beam.ParDo(step)
        rejects = write_shard(output, REJECTS, pairs.rejects, producer={"job": JOB, **settings})
        shards = [describe_shard(output / name, NEGATIVES.name) for name in names]
        write_manifest(output, [*shards, rejects], job=JOB, settings=settings, inputs=inputs)
    done = "finished before" if state is State.FINISHED else "done"
    say_how_to_read(output, NEGATIVES.name)
    rejected = rejects_said(Counter(str(row["reason"]) for row in pairs.rejects))
    print(f"{done}: negatives of {len(pairs.pair_ids)} pairs, {rejected}: {output}")
    return 0


def ranges_of(count: int, size: int) -> list[tuple[int, int, int]]:
    """(number, start, stop) of consecutive ranges that cover ``count`` pairs."""
    return [(k, s, min(s + size, count)) for k, s in enumerate(range(0, count, size))]


def rules_of(top: int, below: str, tokenizer: str) -> NegativeRules:
    """Rules from the flags; InputError for values that make none."""
    try:
        return NegativeRules(top=top, below=Fraction(below), tokenizer=tokenizer)
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(f"--top {top} --below {below} --tokenizer {tokenizer}: {error}") from None
