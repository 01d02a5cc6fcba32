"""Measures precision and recall of mined pairs on labelled sites.

Mines the archives of labelled sites in this process and compares what
is kept with what a person said of each image.

precision: share of the kept pairs whose text is among those that describe the image. Texts of
which the person was unsure count neither way. Strict counts a text that nobody judged as wrong,
lenient leaves it out.
recall: share of the content images with a describing text that were kept with one of them.

Lost images are the content images with a describing text of which nothing is kept, by the reason
of the reject.

Labels of further sites are in benchmarks/labelled_sites (``labels-*.jsonl``); build.py makes their
archives. A third of these sites is held out: it is neither fitted on nor reported without
``--held-out``.

Run: python benchmarks/mining.py [--sites DIR] [--archives DIR] [--leave-out site|language | --fit]
"""

import argparse
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from labelled_sites.build import is_held_out
from labelled_sites.labels import Label, counts, read_labels, verdict_of, wilson
from labelled_sites.mined import (
    LabelledSite,
    Outcome,
    examples,
    fit_weights,
    mine,
    read_sites,
    weights_source,
)

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.choice.choose import WEIGHTS

MORE_LABELS = Path(__file__).with_name("labelled_sites")
Outcomes = Sequence[Outcome]


def figures(outcomes: Outcomes) -> dict[str, Any]:
    """Precision, strict and lenient, and recall, with their 95 % intervals and counts."""
    sums = counts((one.label, one.text) for one in outcomes)
    right, judged = sums["right"], sums["right"] + sums["wrong"]
    return {
        "precision": _share(right, judged + sums["not_judged"]),
        "precision_interval": _rounded(wilson(right, judged + sums["not_judged"])),
        "precision_of_judged": _share(right, judged),
        "recall": _share(sums["found"], sums["findable"]),
        "recall_interval": _rounded(wilson(sums["found"], sums["findable"])),
    } | sums


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None


def _rounded(interval: tuple[float, float] | None) -> list[float] | None:
    return [round(end, 3) for end in interval] if interval else None


def lines(outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    """The figures of all, of each language, of each site, and of each source of texts."""
    yield {"of": "all"} | figures(outcomes) | {"lost": count_lost(outcomes)}
    groups: tuple[tuple[str, Callable[[Outcome], str | None]], ...] = (
        ("language", lambda one: one.label.language),
        ("site", lambda one: one.label.archive.removesuffix(".warc.gz")),
        ("source", lambda one: one.kept.source if one.kept else None),
    )
    for name, key in groups:
        parts: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            if (value := key(outcome)) is not None:
                parts[value].append(outcome)
        for value, part in sorted(parts.items()):
            lost = {} if name == "source" else {"lost": count_lost(part)}
            yield {"of": name, name: value} | figures(part) | lost


def count_lost(outcomes: Outcomes) -> dict[str, int]:
    """Counts the content images with a describing text that have none, by reason."""
    lost = Counter(
        str(one.reason)
        for one in outcomes
        if one.kept is None and one.label.is_content and one.label.describes
    )
    return dict(lost.most_common())


def outcomes_of(
    sites: Sequence[LabelledSite], rules: WebPairRules, *, leave_out: str | None
) -> list[Outcome]:
    """What is kept with the weights of the code, or with weights fitted without each part.

    ``leave_out`` is what a part is: a ``site``, or all sites of a ``language``.
    """
    if leave_out is None:
        return [one for site in sites for one in mine(site, rules, WEIGHTS)]
    part = {s.archive: s.archive if leave_out == "site" else s.labels[0].language for s in sites}
    known = {site.archive: examples(site, rules) for site in sites}
    outcomes: list[Outcome] = []
    for out in sorted(set(part.values())):
        others = [one for name, some in known.items() if part[name] != out for one in some]
        weights = fit_weights(others)
        outcomes += [o for s in sites if part[s.archive] == out for o in mine(s, rules, weights)]
    return outcomes


def read_all(options: argparse.Namespace, rules: WebPairRules) -> list[LabelledSite]:
    """Reads the sites of the options: those to fit on, or those that are held out."""
    own = read_labels(options.sites / "labels.jsonl")
    more = [
        label for path in sorted(MORE_LABELS.glob("labels-*.jsonl")) for label in read_labels(path)
    ]
    more = [one for one in more if _is_held_out(one) == options.held_out]
    return read_sites(
        more if options.held_out else own + more, (options.sites, *options.archives), rules
    )


def _is_held_out(label: Label) -> bool:
    return is_held_out(label.archive.removesuffix(".warc.gz"))


def main(argv: Sequence[str] | None = None) -> None:
    """Prints JSON lines; ``--fit`` prints the source of the weights instead."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    default = Path(os.environ.get("VLMILL_DATA", "data")) / "sites"
    parser.add_argument(
        "--sites", type=Path, default=default, help="folder of *.warc.gz and labels.jsonl"
    )
    parser.add_argument(
        "--archives",
        type=Path,
        action="append",
        default=[],
        help="folder of the archives of labels-*.jsonl; repeatable (default: not measured)",
    )
    parser.add_argument("--min-score", type=float, default=WebPairRules().min_score)
    parser.add_argument(
        "--leave-out",
        choices=("site", "language"),
        help="measure each site or language with weights that are fitted on the others",
    )
    parser.add_argument("--held-out", action="store_true", help="measure the held-out sites only")
    parser.add_argument("--fit", action="store_true", help="print the weights fitted on all sites")
    parser.add_argument("--texts", action="store_true", help="also print each selected text")
    options = parser.parse_args(argv)
    if options.held_out and (options.fit or options.leave_out):
        parser.error("--held-out sites are for reports only; remove --fit or --leave-out")
    rules = WebPairRules(min_score=options.min_score, language="any")
    sites = read_all(options, rules)
    if options.fit:
        sys.stdout.write(
            weights_source(fit_weights([e for s in sites for e in examples(s, rules)]))
        )
        return
    outcomes = outcomes_of(sites, rules, leave_out=options.leave_out)
    for line in lines(outcomes):
        print(json.dumps(line, ensure_ascii=False))
    for outcome in outcomes if options.texts else ():
        print(json.dumps(_describe(outcome), ensure_ascii=False))


def _describe(outcome: Outcome) -> dict[str, Any]:
    label, kept = outcome.label, outcome.kept
    return {
        "of": "image",
        "page_url": label.page_url,
        "image_url": label.image_url,
        "text": outcome.text,
        "score": kept.score if kept else None,
        "verdict": verdict_of(kept.text, label) if kept else None,
        "reason": outcome.reason or None,
    }


if __name__ == "__main__":
    main()
