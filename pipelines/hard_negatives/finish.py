"""The end of a run: what was rejected, counts, the report and, last, the manifest."""

from vlmill.pipelines.hard_negatives.captions import JOB, Staged, read_arrow
from vlmill.pipelines.hard_negatives.plan import Plan
from vlmill.pipelines.hard_negatives.report import look, write_report
from vlmill.runtime.files.atomic import remove_leftovers, write_json
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.reading import reject_counts
from vlmill.runtime.files.shards import describe_shard, write_shard
from vlmill.schemas.tables import NEGATIVES, REJECTS, VOCABULARY


def finish(plan: Plan, staged: Staged) -> None:
    """Writes rejects, funnel, report and, last, the manifest: all shards are there."""
    output = plan.output
    rejected = read_arrow(plan.captions / "rejects.arrow")
    rejects = write_shard(output, REJECTS, rejected, producer=plan.producer)
    counts = dict(sorted(reject_counts(output / rejects.name).items()))
    findings = look(plan.work, staged.captions, plan.parts, plan.rules.top)
    funnel = [
        {"stage": "captions", "unit": "rows", "in": staged.rows, "out": staged.captions}
        | {"rejects": counts, "without_picture": staged.alone, "unspaced": staged.unspaced},
        {"stage": "negatives", "unit": "captions", "in": staged.captions, "out": staged.captions}
        | {"rejects": {}, "without_negatives": findings.without, "short_lists": findings.short},
    ]
    write_json(output / "funnel.json", funnel)
    shards = [plan.shard(number, staged) for number, _, _ in plan.ranges(staged)]
    names = [path.name for path in shards]
    write_report(output, plan.captions, findings, funnel, plan.settings, names, plan.images)
    written = [describe_shard(path, NEGATIVES.name) for path in shards]
    vocabulary = describe_shard(plan.vocabulary, VOCABULARY.name)
    remove_leftovers(output)  # of workers that were killed while the run went on with others
    write_manifest(
        output,
        [*written, vocabulary, rejects],
        job=JOB,
        settings=plan.settings,
        inputs=plan.inputs,
    )
