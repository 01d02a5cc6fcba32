"""Counts drops by stage and reason in the written rejects, so continued runs report the same."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.tables import REJECTS


def rejects_by_stage(output: Path) -> defaultdict[str, Counter[str]]:
    """Returns the rejects of each reason, by stage; stages without drops have no entry."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    columns = ["stage", "reason"]
    for batch in iter_batches(output / f"{REJECTS.name}-*.parquet", REJECTS, columns=columns):
        pairs = pc.binary_join_element_wise(*batch.columns, " ")
        for entry in pc.value_counts(pairs).to_pylist():
            stage, reason = entry["values"].split()
            counts[stage][reason] += entry["counts"]
    return counts


def funnel_stage(stage: str, unit: str, entered: int, reasons: Mapping[str, int]) -> dict[str, Any]:
    """Returns one stage of a funnel: in = out + rejects."""
    left = entered - sum(reasons.values())
    counts = dict(sorted(reasons.items()))
    return {"stage": stage, "unit": unit, "in": entered, "out": left, "rejects": counts}
