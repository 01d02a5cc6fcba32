"""Runs the job of hard negatives: python -m vlmill.pipelines.hard_negatives --help

Captions are staged once, split into words, counted and indexed. The index is on the disk as plain
arrays that all workers map. Then blocks of captions are searched and shards are written. The last
step writes rejects, counts, report.html and the manifest.

With a runner, Beam's workers do all work: no result passes through this process. Results in
``work`` of a killed run are reused; ``work`` is deleted when the run has finished. The cost is
estimated from the first captions: time grows with N^1.5 for N captions.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from markupsafe import Markup

from vlmill.pipelines.hard_negatives import blocks
from vlmill.pipelines.hard_negatives.arrays import Array, Bags, Part, map_arrays, save
from vlmill.pipelines.hard_negatives.blocks import search_range
from vlmill.pipelines.hard_negatives.captions import JOB, read_arrow, stage
from vlmill.pipelines.hard_negatives.index import build_index
from vlmill.pipelines.hard_negatives.plan import Plan
from vlmill.pipelines.hard_negatives.rules import NegativeRules
from vlmill.pipelines.hard_negatives.source import Source, batches
from vlmill.pipelines.hard_negatives.state import Rules
from vlmill.pipelines.hard_negatives.tokens import make_tokenizer, refuse_unspaced
from vlmill.pipelines.hard_negatives.vectors import (
    build_vocabulary,
    chunk_units,
    count_chunk,
    cut_chunk,
    load_bags,
    read_texts,
    write_vectors,
)
from vlmill.runtime.console import report
from vlmill.runtime.console.bars import histogram
from vlmill.runtime.console.command import print_reading_hint
from vlmill.runtime.console.cost import Estimate, Rate, measure_rate, print_estimate
from vlmill.runtime.files.atomic import has_folder, remove_leftovers, write_json
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.outputs import State, prepare_job, remove_output
from vlmill.runtime.files.paths import readable, remove_tree, to_path
from vlmill.runtime.files.reading import reject_counts
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.units.runner import select_runner
from vlmill.runtime.units.share import end_job
from vlmill.runtime.units.step import Step, Work, single_unit
from vlmill.runtime.units.unit import Result, Unit, read_result, work_folder
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import format_rejects
from vlmill.schemas.tables import NEGATIVES, REJECTS

SAMPLE_CAPTIONS = 20_000
STEP = 500  # captions between two readings of the clock
GROWTH = 0.5  # exponent of a query's time in the number of captions: 0.48 measured
ID_BYTES = 36  # of a pair's id: 32 digits, and four bytes for its length
COSINE_BYTES = 4

MAX_VALUES = 200_000  # of a histogram
SHOWN, SHOWN_NEGATIVES, POPULAR = 50, 3, 20


def run(
    args: argparse.Namespace, source: Source, rules: NegativeRules, beam_flags: Sequence[str]
) -> int:
    """Runs the steps that have no finished block or shard, and writes the manifest."""
    run_steps = select_runner(
        beam_flags,
        workers=args.workers,
        module=__name__,
        paths={"--pairs": args.pairs, "--output": str(args.output)},
        share=args.part,
    )
    source.require()
    if args.dry_run:
        rate = measure(source, rules)
        return print_estimate(estimate_cost(count_rows(source), rules.top, rate), args.output)
    entry = source.input()
    settings = {
        "top": rules.top,
        "below": str(rules.below),
        "tokenizer": rules.tokenizer,
        "token_pattern": rules.pattern,
        "columns": source.columns(),
        "document_parts": args.document_parts,
        "pairs_per_shard": args.pairs_per_shard,
        "pairs_digest": entry.digest,
    }
    plan = Plan(
        source=source,
        rules=rules,
        output=to_path(args.output),
        settings=settings,
        shard_captions=args.pairs_per_shard,
        parts=args.document_parts,
        threads=args.workers,
        images=args.images,
        inputs=[entry],
    )
    state = prepare_job(args, JOB, settings)
    if state is not State.FINISHED:
        for folder in (plan.work, plan.words) if args.part is None else ():
            remove_leftovers(folder)
        with _refusing(plan):
            run_steps(plan, list_steps(plan))
    with end_job(plan.output, args.part) as is_last:
        if is_last:
            remove_tree(plan.work)
            _say(plan, state)
    return 0


@contextmanager
def _refusing(plan: Plan) -> Iterator[None]:
    """Deletes the results for refused captions, so that a corrected command can start.

    If vectors exist, the results are kept, because the refused input is a different one.
    """
    try:
        yield
    except InputError:
        if not has_folder(plan.bags):
            remove_output(plan.output)
        raise


def _say(plan: Plan, state: State) -> None:
    captions, lists = read_json(plan.output / "funnel.json")
    print_reading_hint(plan.output, NEGATIVES.name)
    notes = [format_rejects(captions["rejects"])]
    notes.append(f"{lists['without_negatives']} without negatives")
    notes.append(f"{lists['short_lists']} with fewer than {plan.rules.top}")
    if captions["unspaced"]:
        notes.append(f"{captions['unspaced']} in a script that the tokenizer does not segment")
    print(f"{state.outcome}: negatives of {lists['in']} pairs, {', '.join(notes)}: {plan.output}")


def list_steps(plan: Plan) -> list[Step[Plan]]:
    """Returns all steps. Parts are searched in order, because each profits from earlier results."""
    search = [
        Step(
            name=f"search part {part}",
            units=partial(blocks.block_units, part),
            work=partial(blocks.search_block, part),
            threads=True,
        )
        for part in range(plan.parts)
    ]
    return [
        _alone("captions", lay_out_captions),
        Step(name="words", units=chunk_units, work=cut_chunk),
        _alone("vectors", write_vectors),
        Step(name="index", units=part_units, work=blocks.build_part, threads=True),
        *search,
        Step(name="write", units=blocks.shard_units, work=blocks.write_negatives),
        _alone("finish", finish),
    ]


def _alone(name: str, work: Work[Plan]) -> Step[Plan]:
    return Step(name=name, units=partial(single_unit, name), work=work)


def part_units(plan: Plan) -> list[Unit]:
    """Returns a unit for each part of the index."""
    return [Unit(name=f"index-{number}", number=number) for number in range(plan.parts)]


def lay_out_captions(plan: Plan, unit: Unit) -> Result:
    """Writes the captions for the search. Raises InputError if the search has no caption."""
    argument = f"--pairs {plan.source.argument}"
    staged = stage(plan.source, plan.captions, plan.rules)
    if not staged.captions:
        raise InputError(f"{argument}: the table is empty; give one with captions")
    refuse_unspaced(staged.unspaced, staged.captions, plan.rules, argument)
    return Result()


def finish(plan: Plan, unit: Unit) -> Result:
    """Writes rejects, funnel, report and, last, the manifest, after all shards exist."""
    output, staged = plan.output, plan.staged
    rejected = read_arrow(plan.captions / "rejects.arrow")
    rejects = write_shard(output, REJECTS, rejected, producer=plan.producer)
    counts = dict(sorted(reject_counts(output / rejects.name).items()))
    findings = collect_findings(plan.work, staged.captions, plan.parts, plan.rules.top)
    funnel = [
        {"stage": "captions", "unit": "rows", "in": staged.rows, "out": staged.captions}
        | {"rejects": counts, "without_picture": staged.alone, "unspaced": staged.unspaced},
        {"stage": "negatives", "unit": "captions", "in": staged.captions, "out": staged.captions}
        | {"rejects": {}, "without_negatives": findings.without, "short_lists": findings.short},
    ]
    write_json(output / "funnel.json", funnel)
    units = [Unit(name="vectors", number=0), *blocks.shard_units(plan)]
    shards = [shard for u in units for shard in read_result(work_folder(plan), u).shards]
    names = [shard.name for shard in shards[1:]]
    write_report(output, plan.captions, findings, funnel, plan.settings, names, plan.images)
    remove_leftovers(output)  # files of workers that were killed during the run
    write_manifest(output, [*shards, rejects], job=JOB, settings=plan.settings, inputs=plan.inputs)
    return Result()


@dataclass(kw_only=True)
class Findings:
    """Holds counts of the written lists; ``times`` int64 [N]: how often a caption is a negative."""

    times: Array
    top: int
    without: int = 0
    short: int = 0
    first: list[float] = field(default_factory=list)
    last: list[float] = field(default_factory=list)
    lengths: Counter[int] = field(default_factory=Counter)


def collect_findings(work: Path, captions: int, parts: int, top: int) -> Findings:
    """Counts negatives and samples similarities in the lists of all blocks in ``work``."""
    findings = Findings(times=np.zeros(captions, np.int64), top=top)
    for numbers, scores in blocks.all_lists(work, captions, parts, top):
        sizes = (numbers >= 0).sum(axis=1)
        share = -(-MAX_VALUES * len(sizes) // captions)
        findings.lengths.update(sizes.tolist())
        full = np.flatnonzero(sizes)[:share]
        findings.first += scores[full, 0].tolist()
        findings.last += scores[full, sizes[full] - 1].tolist()
        findings.times += np.bincount(numbers[numbers >= 0], minlength=captions)
    findings.without = findings.lengths[0]
    findings.short = sum(n for size, n in findings.lengths.items() if 0 < size < top)
    return findings


def write_report(
    output: Path,
    staged: Path,
    findings: Findings,
    funnel: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    names: Sequence[str],
    images: str | None,
) -> None:
    """Writes ``output/report.html``; ``images`` is a table of images with the ids of the pairs."""
    charts = [
        histogram(findings.first, title="Highest similarity of a caption", label="cosine"),
        histogram(findings.last, title=f"Lowest of its {findings.top}", label="cosine"),
    ]
    captions = funnel[-1]["in"]
    report.write_page(
        output / "report.html",
        "Hard negatives",
        [
            report.Section(
                "Funnel",
                report.funnel_table(funnel),
                f"{findings.without} captions have no negative, {findings.short} fewer than "
                f"{findings.top}",
            ),
            report.Section("Similarities", Markup("").join(charts)),
            report.Section("Most often a negative", _popular(staged, findings)),
            report.Section(
                "Random captions",
                _examples(output, staged, names, images),
                f"Each with its {SHOWN_NEGATIVES} most similar negatives.",
            ),
            report.Section("Settings", report.settings_table(settings)),
        ],
        subtitle=f"negatives of {format_count(captions, 'caption')}",
    )


def _popular(staged: Path, findings: Findings) -> Markup:
    order = np.argsort(-findings.times, kind="stable")[:POPULAR]
    texts = read_texts(staged, order.tolist())
    rows = [(int(findings.times[k]), texts[int(k)][:200]) for k in order if findings.times[k]]
    return report.html_table(["times", "caption"], rows)


def _examples(output: Path, staged: Path, names: Sequence[str], images: str | None) -> Markup:
    """Returns fifty captions of a fixed seed, their negatives, and the images of both."""
    ids = read_arrow(staged / "ids.arrow").column("id").combine_chunks()
    chosen = np.sort(np.random.default_rng(0).permutation(len(ids))[:SHOWN])
    rows = _rows(output, names, chosen)
    pair_id_lists = [[row["pair_id"], *row["negative_pair_ids"][:SHOWN_NEGATIVES]] for row in rows]
    # One look-up for all, because each look-up makes a table of all ids.
    flat = pa.array([pair_id for pair_ids in pair_id_lists for pair_id in pair_ids], pa.string())
    everyone = pc.index_in(flat, value_set=ids).to_pylist()
    remaining = iter(everyone)
    numbers = [list(islice(remaining, len(pair_ids))) for pair_ids in pair_id_lists]
    texts, image_ids = read_texts(staged, everyone), _images(staged, everyone)
    uris = report.thumbnails(images, {name for name in image_ids.values() if name is not None})
    cards = []
    for row, numbers_of_list in zip(rows, numbers, strict=True):
        for rank, number in enumerate(numbers_of_list):
            cosine = f"negative, cosine {row['similarities'][rank - 1]:.3f}" if rank else ""
            cards.append(
                {
                    "uri": uris.get(image_ids[number] or "", ""),
                    "text": texts[number][:300],
                    "about": cosine or f"caption {row['pair_id'][:60]}",
                }
            )
    return report.image_cards(cards)


def _rows(output: Path, names: Sequence[str], numbers: Array) -> list[dict[str, Any]]:
    """Returns the rows of captions by their numbers, which increase from shard to shard."""
    rows, before = [], 0
    for name in names:
        count = pq.read_metadata(readable(output / name)).num_rows
        inside = numbers[(numbers >= before) & (numbers < before + count)] - before
        if inside.size:
            rows += pq.read_table(readable(output / name)).take(pa.array(inside)).to_pylist()
        before += count
    return rows


def _images(staged: Path, numbers: Sequence[int]) -> dict[int, str | None]:
    """Returns the names of captions' images."""
    names = read_arrow(staged / "pictures.arrow").column("image")
    return {number: names[number].as_py() for number in set(numbers)}


def output_bytes(num_pairs: int, top: int) -> int:
    """Returns the largest size of the negatives of a number of pairs, each with ``top`` of them."""
    return num_pairs * (ID_BYTES + min(top, num_pairs) * (ID_BYTES + COSINE_BYTES))


def count_rows(source: Source) -> int:
    """Reads the input and returns its number of rows."""
    return sum(batch.num_rows for batch in batches(source))


def measure(source: Source, rules: NegativeRules) -> Rate:
    """Returns the rate of one thread on the first captions, searched among these alone."""
    with tempfile.TemporaryDirectory() as folder:
        bags, part = prepare(source, Path(folder), rules, SAMPLE_CAPTIONS)
        num = bags.members.size
        kernel_rules = Rules(rules.top, rules.below.numerator, rules.below.denominator)
        floors = np.zeros(num)
        if num:  # compiled, or loaded, before the clock starts
            search_range(bags, part, kernel_rules, 0, 1, floors[:1], 1)
        spans = ((k, min(k + STEP, num)) for k in range(0, num, STEP))
        searched = (
            (b - a, search_range(bags, part, kernel_rules, a, b, floors[a:b], 1)) for a, b in spans
        )
        return measure_rate(searched, "captions", weight=lambda one: one[0])


def prepare(
    source: Source, work: Path, rules: NegativeRules, limit: int | None = None
) -> tuple[Bags, Part]:
    """Returns bags and the full index of a source's first captions, mapped from ``work``."""
    staged = stage(source, work / "captions", rules, limit)
    for chunk in range(staged.chunks):
        count_chunk(work / "captions", work / "words", chunk, make_tokenizer(rules))
    vocabulary = build_vocabulary(work / "words", staged.captions)
    bags = load_bags(work, staged, vocabulary, rules)
    save(work / "bags", bags)
    save(work / "part-0", build_index(bags))
    return map_arrays(work / "bags", Bags), map_arrays(work / "part-0", Part)


def estimate_cost(num_pairs: int, top: int, rate: Rate) -> Estimate:
    """Returns the cost of all pairs: with four times as many, each query takes twice as long."""
    times = max(1.0, num_pairs / SAMPLE_CAPTIONS)
    seconds = rate.seconds_for(num_pairs * times**GROWTH)
    note = "time of one thread; divide by the number of --workers"
    if times > 1:
        note += (
            f"; the rate is measured on {SAMPLE_CAPTIONS:,} captions and falls with their number"
        )
    return Estimate(
        inputs={"--pairs": f"{num_pairs:,} pairs"},
        max_bytes=output_bytes(num_pairs, top),
        seconds=seconds,
        rate=rate,
        note=note,
    )
