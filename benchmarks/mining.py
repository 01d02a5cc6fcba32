"""How many of the mined pairs are right, and how many of the images with a text are found.

Reads, joins, surveys and chooses the archives of labelled sites in this process and compares what
is kept with what a person said of each image.

precision: share of the kept pairs whose text is among those that describe the image. Texts of
which the person was unsure count neither way. Strict counts a text that nobody judged as wrong,
lenient leaves it out.
recall: share of the content images with a describing text that were kept with one of them.

Run: python benchmarks/mining.py [--sites DIR] [--leave-one-out | --fit]
"""

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from labelled_sites.fitting import fit_weights, weights_source
from labelled_sites.labels import Label, counts, verdict_of, wilson
from labelled_sites.mined import Kept, LabelledSite, examples, mine, read_sites

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.choice.weights import WEIGHTS

Outcomes = Sequence[tuple[Label, Kept | None]]


def figures(outcomes: Outcomes) -> dict[str, Any]:
    """Precision, strict and lenient, and recall, with their 95 % intervals and counts."""
    sums = counts((label, kept.text if kept else None) for label, kept in outcomes)
    right, judged = sums["right"], sums["right"] + sums["wrong"]
    return {
        "precision": _share(right, judged + sums["not_judged"]),
        "precision_interval": _rounded(wilson(right, judged + sums["not_judged"])),
        "precision_of_judged": _share(right, judged),
        "recall": _share(right, sums["findable"]),
        "recall_interval": _rounded(wilson(right, sums["findable"])),
    } | sums


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None


def _rounded(interval: tuple[float, float] | None) -> list[float] | None:
    return [round(end, 3) for end in interval] if interval else None


def lines(outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    """The figures of all, of each language, of each site, and of each source of texts."""
    yield {"of": "all"} | figures(outcomes)
    groups: tuple[tuple[str, Callable[[Label], str]], ...] = (
        ("language", lambda label: label.language),
        ("site", lambda label: label.archive),
    )
    for name, key in groups:
        parts: dict[str, list[tuple[Label, Kept | None]]] = defaultdict(list)
        for outcome in outcomes:
            parts[key(outcome[0])].append(outcome)
        for value, part in sorted(parts.items()):
            yield {"of": name, name: value} | figures(part)
    sources = sorted({kept.source for _, kept in outcomes if kept})
    for source in sources:
        part = [(label, kept) for label, kept in outcomes if kept and kept.source == source]
        yield {"of": "source", "source": source} | figures(part)


def outcomes_of(
    sites: Sequence[LabelledSite], rules: WebPairRules, *, leave_one_out: bool
) -> list[tuple[Label, Kept | None]]:
    """What is kept with the weights of the code, or with weights fitted without each site."""
    known = {site.archive: examples(site, rules) for site in sites} if leave_one_out else {}
    outcomes: list[tuple[Label, Kept | None]] = []
    for site in sites:
        weights: Mapping[str, float] = WEIGHTS
        if leave_one_out:
            others = [one for name, some in known.items() if name != site.archive for one in some]
            weights = fit_weights(others)
        outcomes += mine(site, rules, weights)
    return outcomes


def main(argv: Sequence[str] | None = None) -> None:
    """Prints JSON lines; ``--fit`` prints the source of the weights instead."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    default = Path(os.environ.get("VLMILL_DATA", "data")) / "sites"
    parser.add_argument("--sites", type=Path, default=default, help="*.warc.gz and labels.jsonl")
    parser.add_argument("--min-score", type=float, default=WebPairRules().min_score)
    parser.add_argument(
        "--leave-one-out",
        action="store_true",
        help="choose on each site with weights fitted on the others",
    )
    parser.add_argument("--fit", action="store_true", help="print the weights fitted on all sites")
    parser.add_argument("--texts", action="store_true", help="print each kept text, too")
    options = parser.parse_args(argv)
    rules = WebPairRules(min_score=options.min_score, language="any")
    sites = read_sites(options.sites, rules)
    if options.fit:
        sys.stdout.write(
            weights_source(fit_weights([e for s in sites for e in examples(s, rules)]))
        )
        return
    outcomes = outcomes_of(sites, rules, leave_one_out=options.leave_one_out)
    for line in lines(outcomes):
        print(json.dumps(line, ensure_ascii=False))
    for label, kept in outcomes if options.texts else ():
        print(json.dumps(_said(label, kept), ensure_ascii=False))


def _said(label: Label, kept: Kept | None) -> dict[str, Any]:
    return {
        "of": "picture",
        "image_url": label.image_url,
        "text": kept.text if kept else None,
        "score": kept.score if kept else None,
        "verdict": verdict_of(kept.text, label) if kept else None,
    }


if __name__ == "__main__":
    main()
