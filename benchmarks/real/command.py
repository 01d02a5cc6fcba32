"""Selects runs and tests of real photographs, runs them, and prints recalls."""

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shell import add_line, read_lines, require_known, result_line

from real.alignment import Alignment
from real.baseline import measure_baseline
from real.photographs import FIRST, SMALL
from real.recipes import (
    GROUPS,
    MODELS,
    TASKS,
    alignment,
    fine_tuning,
    make_feeding,
    pretraining,
    task_config,
    task_training,
)
from real.runs import (
    RECALLS,
    Line,
    Part,
    Run,
    find_line,
    make_key,
    run_all,
    with_seed,
)
from real.tables import Tables, TaskTables, Test, find_set
from real.zero_shot import ZERO_SHOT, find_file, make_test
from vlmill.train.tasks.retrieval.settings import RetrievalSettings

BASE, SHORT = "base", "short"
ABLATED = "vilbert"  # whose steps cost least: `short` runs of it are compared with each other
SHORT_STEPS, SEEDS = 400, (0, 1, 2)


def base(tables: Tables, model: str) -> Run:
    """Returns a model's run. ViLBERT has no pretraining, VLMo none either; models that read pairs
    are aligned first.
    """
    return Run(name=f"{model}/{BASE}", seed=0, parts=parts_of(model), tables=tables)


def parts_of(model: str) -> tuple[Part, ...]:
    """Returns the parts of a model's run."""
    if model == "vilbert":
        return vilbert_parts()
    if model == "vlmo":
        return (Part(recipe=fine_tuning(model)),)
    return Part(recipe=alignment(model)), Part(recipe=fine_tuning(model))


def vilbert_parts(**changes: Any) -> tuple[Part, ...]:
    """Returns ViLBERT's fine-tuning. Its co-attention is off: all pairs of a step then cost no more
    than its texts and images.
    """
    alone = task_config("vilbert", co_attention=False)
    return (Part(recipe=fine_tuning("vilbert", config=alone, **changes), co_attention=False),)


def short_runs(tables: Tables) -> list[Run]:
    """Returns short runs of one model: seeds, and ablations with one thing changed."""

    def run(name: str, *parts: Part) -> Run:
        return Run(name=f"{ABLATED}/{name}", seed=0, parts=parts, tables=tables, small=True)

    short = run(SHORT, *vilbert_parts(steps=SHORT_STEPS))
    seeds = [with_seed(short, seed) for seed in SEEDS[1:]]
    changed = [
        *(
            run(f"{SHORT}-loss-{loss}", *vilbert_parts(steps=SHORT_STEPS, settings=with_loss(loss)))
            for loss in ("binary", "triplet")
        ),
        *(
            run(
                f"{SHORT}-{count}-regions",
                *vilbert_parts(steps=SHORT_STEPS, feeding=make_feeding(max_regions=count)),
            )
            for count in (6, 32)
        ),
        *(
            run(f"{SHORT}-{name}", part, *vilbert_parts(steps=SHORT_STEPS))
            for name, part in pretrainings().items()
        ),
    ]
    return [short, *seeds, *changed]


def pretrainings() -> dict[str, Part]:
    """Returns ViLBERT's pretraining, and the same with one thing changed."""
    return {
        "pretrained": Part(recipe=pretraining(ABLATED)),
        "hard-negatives": Part(
            recipe=pretraining(ABLATED, hard_negative_share=0.2), hard_negatives=True
        ),
        "groups": Part(recipe=pretraining(ABLATED, masking=GROUPS)),
    }


def with_loss(loss: Any) -> RetrievalSettings:
    """Returns retrieval's settings with another loss."""
    return RetrievalSettings(negatives="batch", losses=(loss,))


def all_runs(tables: Tables) -> list[Run]:
    """Returns all runs, the five models first."""
    models = [base(tables, model) for model in MODELS]
    return [*models, *short_runs(tables), *task_runs(tables)]


def task_runs(tables: Tables) -> list[Run]:
    """Returns ViLBERT's runs of the task sets that are there: pretrained and blind, each from the
    same start; of the first set with further seeds.
    """
    first = pretrainings()["pretrained"]
    runs = [
        Run(
            name=f"{name}/{'blind' if blind else 'vilbert'}",
            seed=0,
            parts=(first, Part(recipe=task_training(name, blind=blind), examples=name)),
            tables=tables,
        )
        for name in TASKS
        if (tables.data / "tasks" / find_set(name).file).is_file()
        for blind in (False, True)
    ]
    seeded = next(iter(TASKS))
    more = [one for one in runs if one.name.startswith(f"{seeded}/")]
    return [*runs, *(with_seed(one, seed) for seed in SEEDS[1:] for one in more)]


BASELINE = "baseline"


def carry_out(args: Namespace) -> int:
    """Writes the tables, trains and tests what is missing, and prints the figures."""
    tables = Tables(data=args.data, output=args.output, test=args.test, jobs=args.jobs)
    every = [*tables.tests(), *tables.other_tests()]
    runs = all_runs(tables)
    require_known("--runs", args.runs, [BASELINE, *dict.fromkeys(run.name for run in runs)])
    runs = [one for one in runs if args.runs is None or one.name in args.runs]
    has_baseline = args.runs is None or BASELINE in args.runs
    jobs = [(one, tests_of(one, every, args.tests)) for one in runs]
    tests = [test for test in every if is_chosen(test, args.tests)] if has_baseline else []
    if args.list:
        list_figures(tables, tests, jobs, args.results)
        return 0
    tables.write()
    if any(part.hard_negatives for one in runs for part in one.parts):
        tables.write_negatives()
    sets = {part.examples for one in runs for part in one.parts if part.examples is not None}
    TaskTables(tables=tables).write(sets)
    for line in (*baseline_lines(tables, tests, args.results), *run_all(jobs, args.results)):
        print_recalls(line)
    return 0


def tests_of(run: Run, every: Sequence[Test], names: Sequence[str] | None) -> list[Test]:
    """Returns a run's tests: its task set's, or those of retrieval that are asked for. The main run
    of each region model is tested without training, too.
    """
    last = run.parts[-1]
    if last.examples is not None:
        return [TaskTables(tables=run.tables).test(last.examples)]
    tests = [test for test in every if is_chosen(test, names, small=run.small)]
    if isinstance(last.recipe, Alignment) or run.small:
        return tests
    if not last.recipe.stages[0].feeding.reads_regions:
        return tests
    zero_shot = [
        make_test(run.tables, name)
        for name in ZERO_SHOT
        if (names is None or name in names) and find_file(run.tables, name).is_file()
    ]
    return [*tests, *zero_shot]


def is_chosen(test: Test, names: Sequence[str] | None, *, small: bool = False) -> bool:
    """Returns whether a test is asked for: those named, else the small one, and the images' first
    captions except for ``small`` runs. Another folder counts as its own small test.
    """
    plain = test.name.removeprefix("other-")
    if names is not None:
        return plain in names
    return plain == SMALL or (plain == FIRST and (not small or plain != test.name))


def baseline_lines(tables: Tables, tests: Sequence[Test], path: Path) -> Iterator[Line]:
    """Yields the baseline's line of each test: known ones, or new ones, which are added."""
    keys = [baseline_key(tables, test) for test in tests]
    known = [find_line(read_lines(path), key) for key in keys]
    missing = [test for test, line in zip(tests, known, strict=True) if line is None]
    measured = measure_baseline(tables, missing) if missing else {}
    for key, test, line in zip(keys, tests, known, strict=True):
        if line is None:
            metrics = measured[test.name]
            line = key | {"metrics": {name: metrics[name] for name in RECALLS}}
            add_line(path, line)
        yield line


def baseline_key(tables: Tables, test: Test) -> Line:
    """Returns what identifies the baseline's line of a test."""
    test_key = {"name": test.name, "digest": test.digest}
    return {"name": BASELINE, "test": test_key, "settings": {"data": tables.digest()}}


def list_figures(
    tables: Tables, tests: Sequence[Test], jobs: Sequence[tuple[Run, Sequence[Test]]], path: Path
) -> None:
    """Prints which figures are known and which are missing."""
    keys = [baseline_key(tables, test) for test in tests]
    keys += [make_key(run, test) for run, tests in jobs for test in tests]
    lines = read_lines(path)
    for key in keys:
        state = "missing" if find_line(lines, key) is None else "finished"
        print(f"{state:9} {key['name']} {key['test']['name']}")


def print_recalls(line: Line) -> None:
    """Prints a line of JSON for each recall, or a task's figure, of a run on a test."""
    for name in line["metrics"]:
        full = f"real-pairs/{line['test']['name']}/{line['name']}/{name}"
        print(json.dumps(result_line(full, line["metrics"][name], "share")))
