"""Chooses the best text of each image among candidates, in LAIT's order.

Each (text, image) pair is scored by text, image and, if available, regions of the image. Pairs
below the threshold are dropped, and the best remaining pair of each image is kept
(ImageBERT, arXiv:2001.07966, section 3). Texts that then belong to too many images are dropped.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from vlmill.pipelines.filters.facts import FactsReader
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web_pairs import rows
from vlmill.pipelines.web_pairs.rescoring import Scores, Scoring, open_scoring, scoring_inputs
from vlmill.pipelines.web_pairs.shards import SOURCE
from vlmill.pipelines.web_pairs.stages import BEST_TEXT, SHARED_TEXT
from vlmill.runtime.console.command import print_reading_hint, print_status
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.digests import table_input
from vlmill.runtime.files.manifest import read_manifest, write_manifest
from vlmill.runtime.files.outputs import State, prepare_output
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.files.shards import Shard, ShardWriter
from vlmill.runtime.units.funnel import Counts, Drop, Stage, build_funnel
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import CANDIDATES, PAIRS, REJECTS

JOB = "web_pairs_candidates"
SCORES = Stage("score", "texts of images")
ROWS, GROUP_ROWS = 1_000, 10_000
Row = dict[str, Any]


def choose_candidates(args: argparse.Namespace) -> int:
    """Chooses among the texts of ``--candidates``; writes pairs and rejects to ``--output``.

    Raises InputError for a folder without candidates. Memory: a thousand rows, and 16 bytes for
    each kept text.
    """
    source, output = Path(args.candidates), Path(args.output)
    manifest = read_manifest(source)
    if not any(shard.table == CANDIDATES.name for shard in manifest["shards"]):
        raise InputError(
            f"--candidates {source} has no table of candidates; mine it with --keep-texts 5"
        )
    has_images = any(shard.table == "images" for shard in manifest["shards"])
    scoring = open_scoring(
        args, output, source if has_images else None, manifest["settings"].get("min_score")
    )
    if scoring.about["threshold"] is None:
        raise InputError(f"--candidates {source} was mined without a threshold; give --scorer FILE")
    most = args.max_images_per_text or WebPairRules().max_images_per_text
    candidates = table_input("--candidates", str(source), CANDIDATES)
    settings = {
        "candidates": candidates.digest,
        "scoring": scoring.about,
        "max_images_per_text": most,
    }
    if prepare_output(output, job=JOB, settings=settings, fresh=args.fresh) is State.FINISHED:
        return _say(output, "finished before")
    shards = _write_tables(output, source, scoring, most)
    inputs = [candidates, *scoring_inputs(args)]
    write_manifest(output, shards, job=JOB, settings=settings, inputs=inputs)
    return _say(output, "done")


def _write_tables(output: Path, source: Path, scoring: Scoring, most: int) -> list[Shard]:
    producer = {"job": JOB, "scoring": scoring.about}
    rejects: list[Row] = []
    counts = Counts(rejects.append)
    reject_writer = ShardWriter(output, REJECTS, 0, 1, producer=producer)
    pair_writer = ShardWriter(output, PAIRS, 0, 1, producer=producer)

    def flush_rejects() -> None:
        reject_writer.write(rejects)
        rejects.clear()

    # The number of images of a text is known only at the end, so scores are computed twice.
    images_by_text: Counter[bytes] = Counter(
        rows.shared_key(row["text"]) for row in _best_rows(source, scoring, Counts(lambda _: None))
    )
    with pair_writer, reject_writer:
        group: list[Row] = []
        for row in _best_rows(source, scoring, counts):
            if images_by_text[rows.shared_key(row["text"])] > most:
                drop = Drop(Reason.SHARED_TEXT, f"{row['image_url']} {row['text']}")
                counts.dropped(SHARED_TEXT, row["pair_id"], drop)
            else:
                counts.passed(SHARED_TEXT)
                group.append(row)
            if len(group) == GROUP_ROWS:
                pair_writer.write(group)
                group = []
            if len(rejects) >= GROUP_ROWS:
                flush_rejects()
        pair_writer.write(group)
        flush_rejects()
    write_json(
        output / "funnel.json",
        build_funnel(counts.tallies.items(), (SCORES, BEST_TEXT, SHARED_TEXT)),
    )
    return [pair_writer.shard, reject_writer.shard]


def _best_rows(source: Path, scoring: Scoring, counts: Counts) -> Iterator[Row]:
    """Yields a row of ``pairs`` for each image with a text at or above the threshold."""
    threshold = scoring.about["threshold"]
    for _, group in groupby(_scored(source, scoring), key=lambda row: row["image_id"]):
        passing: list[Row] = []
        for row in group:
            if row["score"] < threshold:
                detail = f"{row['score']:.3f} {row['text_source']}: {row['text']}"
                counts.dropped(SCORES, row["pair_id"], Drop(Reason.LOW_SCORE, detail))
            else:
                counts.passed(SCORES)
                passing.append(row)
        passing.sort(key=lambda row: (-row["score"], row["rank"]))
        for number, row in enumerate(passing):
            if number:
                detail = f"{row['score']:.3f} {row['text_source']}: {row['text']}"
                counts.dropped(BEST_TEXT, row["pair_id"], Drop(Reason.NOT_BEST_TEXT, detail))
                continue
            counts.passed(BEST_TEXT)
            known = {name: row[name] for name in PAIRS.fields if name in row}
            yield known | {"source": SOURCE}


def _scored(source: Path, scoring: Scoring) -> Iterator[Row]:
    """Yields the candidates with their new scores; candidates of one image are consecutive."""
    import numpy as np

    reader = FactsReader(scoring.sources)
    with Progress(total=None, unit="text", label="scoring candidates") as progress:
        for batch in iter_batches(source, CANDIDATES, batch_rows=ROWS, flag="--candidates"):
            candidates: list[Row] = batch.to_pylist()
            mined: Scores = np.array(
                [np.nan if row["score"] is None else row["score"] for row in candidates]
            )
            scores = scoring.scores(list(reader.facts(candidates)), mined)
            for row, score in zip(candidates, scores, strict=True):
                yield row | {"score": score}
            progress.advance(len(candidates))


def _say(output: Path, done: str) -> int:
    shards = read_manifest(output)["shards"]
    counts = {table: sum(s.rows for s in shards if s.table == table) for table in (PAIRS.name,)}
    print(f"{done}: {counts[PAIRS.name]} pairs: {output}")
    if not counts[PAIRS.name]:
        print_status(f"warning: the result has no pairs; {output / 'funnel.json'} counts why")
    print_reading_hint(output, PAIRS.name)
    return 0
