"""Image-text pairs from web archives: python -m vlmill.pipelines.web_pairs --help

The stages of LAIT (ImageBERT, arXiv:2001.07966, section 3) that need no fitted model: language,
dominant images, size, sentences, score, best text of each picture, shared texts.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from vlmill.pipelines.counting.funnel import build_funnel
from vlmill.pipelines.counting.steps import KEPT, REJECTS, TALLIES
from vlmill.pipelines.launch.options import beam_options, run_pipeline
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web_pairs.archives import find_archives
from vlmill.pipelines.web_pairs.cost import estimate_of, measure
from vlmill.pipelines.web_pairs.report import write_report
from vlmill.pipelines.web_pairs.steps_pages import (
    PAGE_RECORDS,
    PICTURE_RECORDS,
    UNUSABLE,
    FindDominant,
    KeepLanguage,
    MeasurePictures,
    ReadArchives,
    ReadPage,
)
from vlmill.pipelines.web_pairs.steps_pairs import (
    DropSharedTexts,
    FindTexts,
    JoinPictures,
    KeepBestText,
    ScoreTexts,
    candidate_urls,
    match_urls,
)
from vlmill.pipelines.web_pairs.tables import (
    LeaveResults,
    ToShards,
    WriteImages,
    WriteRows,
    pair_row,
    results_path,
    take_results,
)
from vlmill.schemas.console.command import say_how_to_read
from vlmill.schemas.console.cost import print_estimate
from vlmill.schemas.files.atomic import write_json
from vlmill.schemas.files.digests import path_input
from vlmill.schemas.files.inputs import Input
from vlmill.schemas.files.manifest import read_manifest, write_manifest
from vlmill.schemas.files.outputs import State, prepare_output
from vlmill.schemas.files.reading import reject_counts
from vlmill.schemas.files.shards import Shard
from vlmill.schemas.rejects import rejects_said

JOB = "web_pairs"


class Tee:
    """Applies steps, and keeps their rejects and tallies for the end of the job."""

    def __init__(self) -> None:
        self.rejects: list[Any] = []
        self.tallies: list[Any] = []

    def __call__(self, source: Any, label: str, step: beam.DoFn, *more: str) -> Any:
        """Applies a step; returns its outputs, ``kept`` and those named in ``more``."""
        tags = (REJECTS, TALLIES, *more)
        outputs = source | label >> beam.ParDo(step).with_outputs(*tags, main=KEPT)
        self.rejects.append(outputs[REJECTS])
        self.tallies.append(outputs[TALLIES])
        return outputs


def build(p: beam.Pipeline, archives: Sequence[str], rules: WebPairRules, tee: Tee) -> Any:
    """Builds the job as a list of steps, from paths of archives to Pairs."""
    paths = p | "Archives" >> beam.Create(list(archives))
    read = tee(
        paths,
        "Read archives",
        ReadArchives(rules.max_record_bytes, len(archives)),
        PAGE_RECORDS,
        PICTURE_RECORDS,
    )
    pages = tee(read[PAGE_RECORDS], "Read pages", ReadPage(rules)).kept
    pages = tee(pages, "Keep language", KeepLanguage(rules)).kept
    candidates = tee(pages, "Find dominant images", FindDominant(rules)).kept

    measured = tee(read[PICTURE_RECORDS], "Measure pictures", MeasurePictures(rules), UNUSABLE)
    pictures = (measured.kept, measured[UNUSABLE]) | "All pictures" >> beam.Flatten()
    urls = candidates | "Candidate URLs" >> beam.FlatMap(candidate_urls)
    matches = (
        {"pictures": pictures, "candidate_ids": urls}
        | "By URL" >> beam.CoGroupByKey()
        | "Match URLs" >> beam.FlatMap(match_urls)
    )
    joined = {"candidates": candidates, "pictures": matches} | "By candidate" >> beam.CoGroupByKey()
    joined = tee(joined, "Join pictures", JoinPictures()).kept

    texts = tee(joined, "Find texts", FindTexts(rules)).kept
    pairs = tee(texts, "Score texts", ScoreTexts(rules)).kept
    pairs = pairs | "By image" >> beam.GroupByKey()
    pairs = tee(pairs, "Keep best text", KeepBestText()).kept
    pairs = pairs | "By text" >> beam.GroupByKey()
    return tee(pairs, "Drop shared texts", DropSharedTexts(rules.max_images_per_text)).kept


def write(
    p: beam.Pipeline, pairs: Any, tee: Tee, folder: str, shards: int, rules: WebPairRules
) -> None:
    """Writes the tables, and leaves counts and shards for :func:`finish`."""
    producer = {"job": JOB, "rules": rules.as_settings()}
    rows = pairs | "Pair rows" >> beam.Map(pair_row)
    rejects = tee.rejects | "All rejects" >> beam.Flatten()
    written = (
        rows
        | "Pair shards" >> ToShards(shards, lambda row: row["pair_id"])
        | "Write pairs" >> beam.ParDo(WriteRows(folder, "pairs", ("pair_id",), shards, producer)),
        pairs
        | "Image shards" >> ToShards(shards, lambda pair: pair.picture.image_id)
        | "Write images"
        >> beam.ParDo(WriteImages(folder, shards, rules.max_record_bytes, producer)),
        rejects
        | "Reject shards" >> ToShards(shards, lambda row: row["key"])
        | "Write rejects"
        >> beam.ParDo(
            WriteRows(folder, "rejects", ("stage", "reason", "key", "detail"), shards, producer)
        ),
    )
    tallies = tee.tallies | "All tallies" >> beam.Flatten() | "Count" >> beam.CombinePerKey(sum)
    _ = (
        p
        | "Once" >> beam.Create([None])
        | "Leave results"
        >> beam.ParDo(
            LeaveResults(folder),
            beam.pvalue.AsList(tallies),
            beam.pvalue.AsList(written | "All shards" >> beam.Flatten()),
        )
    )


def run(args: argparse.Namespace, rules: WebPairRules, beam_flags: Sequence[str]) -> int:
    """Runs the pipeline unless its output is there, and says what came out."""
    options = beam_options(beam_flags)
    archives = find_archives(args.warc)
    settings = {
        "warc": args.warc,
        "archives": [[path, size] for path, size in archives],
        "shards": args.shards,
        **rules.as_settings(),
    }
    output = Path(args.output)
    if args.dry_run:
        return print_estimate(estimate_of(archives, measure(archives, rules)), output)
    state = prepare_output(output, job=JOB, settings=settings, fresh=args.fresh)
    if state is not State.FINISHED:
        inputs = [path_input("--warc", args.warc)]
        mine(options, [path for path, _ in archives], rules, output, args.shards)
        finish(output, settings, inputs)
    shards: list[Shard] = read_manifest(output)["shards"]
    rows = {name: sum(s.rows for s in shards if s.table == name) for name in TABLE_NAMES}
    done = "finished before" if state is State.FINISHED else "done"
    rejects = rejects_said(reject_counts(output))
    print(f"{done}: {rows['pairs']} pairs, {rows['images']} images, {rejects}: {output}")
    say_how_to_read(output, TABLE_NAMES[0])
    return 0 if rows["pairs"] or not rows["rejects"] else 1


TABLE_NAMES = ("pairs", "images", "rejects")


def mine(
    options: PipelineOptions,
    archives: Sequence[str],
    rules: WebPairRules,
    output: Path,
    shards: int,
) -> None:
    """Runs the whole pipeline and waits for its end."""
    with run_pipeline(options) as p:
        tee = Tee()
        pairs = build(p, archives, rules, tee)
        write(p, pairs, tee, str(output), shards, rules)


def finish(output: Path, settings: dict[str, Any], inputs: Sequence[Input]) -> None:
    """Writes funnel, report and, last, the manifest."""
    tallies, shards = take_results(output)
    funnel = build_funnel(tallies)
    write_json(output / "funnel.json", funnel)
    write_report(output, funnel, settings)
    write_manifest(output, shards, job=JOB, settings=settings, inputs=inputs)
    results_path(output).unlink()
