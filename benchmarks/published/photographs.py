"""The section of the reproduction page on real photographs, from the records of real_pairs.py."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent.parent / "results" / "real_pairs.jsonl"
TEST, NUM_QUERIES = "400x1", 400
WAYS = ("text_retrieval", "image_retrieval")
R1 = "image_retrieval/r1"
ABLATED = "interbert"
INTRO = """## Real photographs

`python benchmarks/real_pairs.py --data DIR` trains small models on real photographs with captions
that people wrote (Flickr8k and COCO, 14,491 training captions) and ranks 400 test images of
Flickr8k, with one caption each. The baseline is a ridge regression from image features to sentence
vectors, without vision-language training. The figures are recalls in percent. They come from
`benchmarks/results/real_pairs.jsonl`.
"""
Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """A run with one thing changed, and what that changed in the paper's R@1 of images, in points;
    None: the paper has another measure.
    """

    run: str
    label: str
    paper: float | None
    source: str


# The base has pretraining, segments and groups, random negatives and softmax over a step.
ABLATIONS = (
    Ablation(
        run="without-pretraining",
        label="without pretraining",
        paper=-8.8,
        source="InterBERT, fine-tuned",
    ),
    Ablation(
        run="hard-negatives",
        label="hard negatives in pretraining",
        paper=1.7,
        source="InterBERT, table 5, fine-tuned",
    ),
    Ablation(
        run="single-masks",
        label="words and regions masked separately",
        paper=None,
        source="InterBERT, table 4: VCR only",
    ),
    Ablation(
        run="loss-binary",
        label="binary loss instead of softmax",
        paper=2.5,
        source="ImageBERT, table 4",
    ),
    Ablation(
        run="loss-triplet",
        label="triplet loss instead of softmax",
        paper=0.0,
        source="ImageBERT, table 4",
    ),
    Ablation(
        run="6-regions",
        label="6 regions instead of 20",
        paper=-4.3,
        source="ImageBERT, table 4: 36 instead of 100",
    ),
    Ablation(
        run="32-regions",
        label="32 regions instead of 20",
        paper=4.3,
        source="ImageBERT, table 4: 100 instead of 36",
    ),
)


def read_records(path: Path = RECORDS) -> list[dict[str, Any]]:
    """Returns the records; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def photographs_section(records: Sequence[Line]) -> str:
    """Returns the section: recalls of every run, and each ablation compared with the paper."""
    recalls = [line for line in records if line["test"]["name"] == TEST]
    parts = [INTRO, *_recall_table(recalls), "\n### Ablations\n", *_ablation_table(recalls), ""]
    return "\n".join(parts)


def _recall_table(recalls: Sequence[Line]) -> Iterator[str]:
    if not recalls:
        yield "No run has been recorded yet."
        return
    yield "| run | captions for images, R@1 / 5 / 10 | images for captions, R@1 / 5 / 10 |"
    yield "|---|---|---|"
    for line in recalls:
        cells = [
            " / ".join(f"{100 * line['metrics'][f'{way}/r{k}']:.1f}" for k in (1, 5, 10))
            for way in WAYS
        ]
        yield f"| {line['name']} | {' | '.join(cells)} |"


def _ablation_table(recalls: Sequence[Line]) -> Iterator[str]:
    """Yields the rows: a change counts if it is larger than two standard errors."""
    figures = {line["name"]: line["metrics"][R1] for line in recalls}
    base = figures.get(f"{ABLATED}/base/seed-0")
    yield f"Changes of the R@1 of images, in points, relative to `{ABLATED}/base`.\n"
    yield "| change | here | paper | agreement | source |"
    yield "|---|---|---|---|---|"
    for one in ABLATIONS:
        ours = figures.get(f"{ABLATED}/{one.run}/seed-0")
        here, verdict = "", "to be measured"
        if base is not None and ours is not None:
            error = 100 * sqrt((base * (1 - base) + ours * (1 - ours)) / NUM_QUERIES)
            change = 100 * (ours - base)
            here, verdict = f"{change:+.1f} ± {error:.1f}", judge(change, error, one.paper)
        paper = "" if one.paper is None else f"{one.paper:+.1f}"
        yield f"| {one.label} | {here} | {paper} | {verdict} | {one.source} |"


def judge(change: float, error: float, paper: float | None) -> str:
    """Returns whether a change agrees with the paper's: the same sign, beyond two errors."""
    if paper is None or abs(change) <= 2 * error:
        return "within error" if abs(change) <= 2 * error else ""
    return "yes" if change * paper > 0 else "no"
