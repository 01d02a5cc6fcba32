"""The end of a run: what was rejected, counts, the report and, last, the manifest."""

from vlmill.pipelines.hard_negatives.blocks import shard_units
from vlmill.pipelines.hard_negatives.captions import JOB, read_arrow
from vlmill.pipelines.hard_negatives.plan import Plan
from vlmill.pipelines.hard_negatives.report import look, write_report
from vlmill.runtime.files.atomic import remove_leftovers, write_json
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.reading import reject_counts
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.units.unit import Result, Unit, read_result, work_folder
from vlmill.schemas.tables import REJECTS


def finish(plan: Plan, unit: Unit) -> Result:
    """Writes rejects, funnel, report and, last, the manifest: all shards are there."""
    output, staged = plan.output, plan.staged
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
    units = [Unit(name="vectors", number=0), *shard_units(plan)]
    shards = [shard for u in units for shard in read_result(work_folder(plan), u).shards]
    names = [shard.name for shard in shards[1:]]
    write_report(output, plan.captions, findings, funnel, plan.settings, names, plan.images)
    remove_leftovers(output)  # of workers that were killed while the run went on with others
    write_manifest(
        output,
        [*shards, rejects],
        job=JOB,
        settings=plan.settings,
        inputs=plan.inputs,
    )
    return Result()
