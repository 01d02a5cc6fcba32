"""Writes the vectors of a checkpoint, resumable by shard (``train-vl embed``)."""

from pathlib import Path

import torch

from vlmill.inference.search.embedding_inputs import (
    EmbeddingSetup,
    EmbedOptions,
    Part,
    collect_inputs,
    collect_settings,
    make_producer,
    open_embedding,
)
from vlmill.inference.search.vectors import PartRows, part_rows
from vlmill.runtime.console.command import print_reading_hint, print_status
from vlmill.runtime.console.cost import Estimate, measure_rate, require_disk_space
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.manifest import read_manifest, write_manifest
from vlmill.runtime.files.outputs import State, prepare_output
from vlmill.runtime.files.reading import reject_counts
from vlmill.runtime.files.shards import Shard, describe_finished, shard_name, write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import format_rejects
from vlmill.schemas.tables import REJECTS, VECTORS

JOB = "train-vl embed"
SAMPLE_BATCHES = 64  # of each kind, at most, in a dry run
BYTES_BESIDE = 120  # of ids and a text, about


def embed(options: EmbedOptions, *, force: bool = False) -> int:
    """Writes the vectors of unfinished shards; returns the exit status.

    Raises InputError for problems that a user can fix.
    """
    setup = open_embedding(options)
    inputs, output = collect_inputs(setup), options.output
    settings = collect_settings(setup, inputs)
    state = prepare_output(output, job=JOB, settings=settings, fresh=options.fresh)
    if state is not State.FINISHED:
        require_disk_space(estimate_bytes(setup), output, force=force)
        for note in _notes(setup):
            print_status(f"note: {note}")
        shards = _write_parts(setup)
        write_manifest(output, shards, job=JOB, settings=settings, inputs=inputs)
    return _finish(output, state)


def _notes(setup: EmbeddingSetup) -> list[str]:
    cut = 0 if setup.texts is None else setup.texts.cut
    return [
        *setup.notes,
        *([f"cut {format_count(cut, 'text')} to the model's length"] if cut else []),
    ]


def _write_parts(setup: EmbeddingSetup) -> list[Shard]:
    """Writes the missing parts, rejects first: the vectors' shard appears last."""
    parts, output = setup.parts(), setup.options.output
    tables = (REJECTS, VECTORS)
    files = [
        [(table, output / shard_name(table, index, len(parts))) for table in tables]
        for index in range(len(parts))
    ]
    finished = [describe_finished(part_files) for part_files in files]
    done = sum(p.stop - p.start for p, there in zip(parts, finished, strict=True) if there)
    total = sum(part.stop - part.start for part in parts)
    setup.loaded.model.to(setup.device)
    shards: list[Shard] = []
    with Progress(total=total, unit="vector", label="embed", done=done) as progress:
        for index, (part, there) in enumerate(zip(parts, finished, strict=True)):
            if not there:
                rows = _compute_rows(setup, part, progress)
                there = _write_part(setup, rows, index, len(parts))
            shards += there
    return shards


def _compute_rows(setup: EmbeddingSetup, part: Part, progress: Progress) -> PartRows:
    try:
        rows = part_rows(setup, part, progress.advance)
    except torch.OutOfMemoryError:
        raise InputError(
            f"--batch-size {setup.options.batch_size} does not fit into the memory of --device "
            f"{setup.options.device}; give a smaller one"
        ) from None
    progress.advance(0, rejects=len(rows.rejects))
    return rows


def _write_part(setup: EmbeddingSetup, rows: PartRows, index: int, total: int) -> list[Shard]:
    output, producer = setup.options.output, {"job": JOB, **make_producer(setup)}
    arrays = {"vector": {"dtype": "float32", "dim": vector_width(setup)}}
    return [
        write_shard(output, REJECTS, rows.rejects, index, total, producer=producer),
        write_shard(output, VECTORS, rows.table, index, total, producer=producer, arrays=arrays),
    ]


def vector_width(setup: EmbeddingSetup) -> int:
    """Returns P, the width of the checkpoint's vectors."""
    for name in ("pooled_width", "co_width", "width"):
        if (width := getattr(setup.loaded.body, name, None)) is not None:
            return int(width)
    raise InputError(f"--checkpoint {setup.loaded.path}: its configuration names no width")


def estimate_bytes(setup: EmbeddingSetup) -> int:
    """Returns the size of the vectors, assuming no rejects."""
    count = sum(part.stop - part.start for part in setup.parts())
    return count * 4 * vector_width(setup)


def estimate(options: EmbedOptions) -> Estimate:
    """Measures the first batches of each kind; writes nothing."""
    setup = open_embedding(options)
    setup.loaded.model.to(setup.device)
    parts, size = setup.parts(), options.batch_size
    batches = [
        Part(kind=part.kind, start=start, stop=min(start + size, part.stop))
        for part in parts
        for start in range(part.start, part.stop, size)
    ]
    by_kind = {kind: [b for b in batches if b.kind == kind] for kind in {b.kind for b in batches}}
    count = sum(part.stop - part.start for part in parts)
    seconds, rate = 0.0, None
    for kind, kind_batches in sorted(by_kind.items()):
        measured = (part for part in kind_batches[:SAMPLE_BATCHES] if part_rows(setup, part))
        rate = measure_rate(measured, kind, weight=lambda part: part.stop - part.start)
        seconds += rate.seconds_for(sum(p.stop - p.start for p in kind_batches)) or 0.0
    inputs = {entry.flag: f"{entry.rows or entry.bytes}" for entry in collect_inputs(setup)}
    min_bytes = estimate_bytes(setup)
    return Estimate(
        inputs=inputs,
        min_bytes=min_bytes,
        expected_bytes=min_bytes + count * BYTES_BESIDE,
        seconds=seconds,
        rate=rate,
    )


def _finish(output: Path, state: State) -> int:
    shards: list[Shard] = read_manifest(output)["shards"]
    count = sum(shard.rows for shard in shards if shard.table == VECTORS.name)
    print_reading_hint(output, VECTORS.name)
    done = "finished before" if state is State.FINISHED else "done"
    counts = reject_counts(output)
    print(f"{done}: {format_count(count, 'vector')}, {format_rejects(counts)}: {output}")
    return 0 if count else 1
