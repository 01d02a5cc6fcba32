"""``report.html`` of an evaluation: figures beside the papers', and examples with images."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from vlmill.runtime.console.report import Section, funnel_table, settings_table, write_page
from vlmill.train.tasks.case_drawing import DRAWN_PX, drawn_section
from vlmill.train.tasks.evaluating.inputs import EvaluationSetup
from vlmill.train.tasks.published import published_section
from vlmill.train.tasks.report import (
    CARD_PX,
    WeighedImage,
    cases_section,
    figures_table,
    read_thumbnails,
    weighed_section,
    worst_cases,
)
from vlmill.train.tasks.scores import Figures
from vlmill.train.tasks.task import EvaluationResult

CASES = 12  # that are shown


def write_report(
    setup: EvaluationSetup,
    evaluated: EvaluationResult,
    figures: Figures,
    rejects: Counter[str],
    weighed: WeighedImage | None,
    settings: Mapping[str, Any],
) -> None:
    """Writes the page of an evaluation."""
    options, training = setup.options, setup.loaded.training
    total = int(figures["examples"] or 0)
    funnel = {
        "stage": "examples",
        "in": total + sum(rejects.values()),
        "out": total,
        "rejects": dict(rejects),
    }
    cases = worst_cases(evaluated.cases, CASES)
    is_drawn = any(case.boxes for case in cases)
    side, make_section = (DRAWN_PX, drawn_section) if is_drawn else (CARD_PX, cases_section)
    uris = read_thumbnails(
        options.images, {name for case in cases for name in case.image_ids}, side=side
    )
    columns = list(dict.fromkeys([*evaluated.headline, *evaluated.published]))
    # Correlations and averages have no count of their own.
    figures_with_counts = [name for name in figures if f"{name}_n" in figures]
    names = {name: name for name in dict.fromkeys([*figures_with_counts, *evaluated.headline])}
    sections = [
        published_section(
            evaluated.papers or options.task, figures, columns, model=training.recipe
        ),
        Section(title="All figures", body=figures_table(figures, names, decimals=2)),
        make_section("Worst cases", "Those with the lowest scores.", cases, uris),
        *([] if weighed is None else [weighed_section([weighed], options.images)]),
        Section(title="Examples", body=funnel_table([funnel])),
        Section(title="Settings", body=settings_table(settings)),
    ]
    write_page(
        options.output / "report.html",
        f"{options.task}: evaluation",
        sections,
        subtitle=f"{total} examples, {training.recipe} after {training.step} steps",
        notice=" ".join(evaluated.notes),
    )
