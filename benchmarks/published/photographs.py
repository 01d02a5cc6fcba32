"""Writes the section of the page on real photographs, from the records of real_pairs.py."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent.parent / "results" / "real_pairs.jsonl"
TESTS = ("400x1", "first", "all")
TEST, NUM_QUERIES = "400x1", 400
WAYS = ("text_retrieval", "image_retrieval")
KS = (1, 5, 10)
R1 = "image_retrieval/r1"
BASELINE, SHORT = "baseline", "vilbert/short"
INTRO = """## Real photographs

`python benchmarks/real_pairs.py --data DIR` trains small models on real photographs with
human-written captions (Flickr8k and COCO, 14,491 training captions) and ranks test images of
Flickr8k. There are three tests: 400 images with one caption each (`400x1`), all 800 images with
their first caption (`first`), and all 800 images with all 3,998 captions (`all`). Region features
come from EfficientNet-Lite0, and text layers are initialised from MiniLM. The baseline is a ridge
regression from image features to sentence vectors, without vision-language training. A run takes
minutes on one core, so the figures show which models learn from little data in little time, not
what the architectures can reach. They are recalls in percent, from
`benchmarks/results/real_pairs.jsonl`. By chance R@1 is 0.25 among 400 images, and 0.125 among 800.

ViLBERT ranks without its co-attention, so the score of a pair is the product of two vectors. Models
that read pairs are aligned first: a contrastive loss compares texts encoded without regions with
images encoded without words (`benchmarks/real/alignment.py`), which none of their papers does.
These models rank with bfloat16 layers. VLMo starts from random weights, because the package index
has no image network of its kind.
"""
# What the records show, and what they do not.
FINDINGS = """
### Where real photographs agree

Three seeds of the short run have 22.8, 19.8 and 19.0 % as R@1 of images, so a change of that size
by one seed says nothing. Only the losses change more: the softmax over all captions of a step is
better than a binary loss, and with the triplet loss the model hardly learns in 400 steps.
ImageBERT's table 4 prefers the binary loss, in a model that is pretrained on millions of pairs.
Pretraining for 200 steps, hard negatives, masked groups and other numbers of regions make no
difference that these tests can show. One other setting was compared: the width of the pooled
vectors. With dropout and the width of the released code, 1,024, ViLBERT's mean recall on the
validation images is 47.5 %; with a width of 384 it is 42.5 % or less
(`without-pretraining-400-steps` is such a run). The papers do not vary this width.

ViLBERT and InterBERT score a pair by the product of two vectors. ImageBERT and VL-BERT have a
matching head on one stream, which starts from nothing: ImageBERT's loss left chance after 350 of
its 1,200 steps and was still falling at the end; VL-BERT's stayed at chance for all of them. VLMo
learns from pixels alone, from random weights. Among all 800 images ViLBERT is above the baseline in
all six figures, InterBERT in those of captions; for images it is within a standard error (1.8
points) of it.

On DAQUAR the images help a little: ViLBERT answers 14.9, 14.5 and 13.7 % of the questions (three
seeds), and without an image 13.8, 12.5 and 12.5 %. On e-SNLI-VE (300 steps) and NLVR (150 steps)
they do not help. ViLBERT, InterBERT and ImageBERT prefer the captions of SugarCrepe to their
negatives in 60.7, 62.6 and 60.7 % of 206 cases, and in 50.0, 48.5 and 52.9 % with another image.
The 28 statements of VSR are too few to distinguish a result from chance.
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


# Of ViLBERT without co-attention and pretraining, with softmax over a step and 20 regions.
ABLATIONS = (
    Ablation(
        run="pretrained",
        label="with pretraining, 200 steps",
        paper=12.7,
        source="ViLBERT, table 1, fine-tuned",
    ),
    Ablation(
        run="hard-negatives",
        label="the same with hard negatives (TF-IDF)",
        paper=None,
        source="InterBERT, table 5: 1.7 more than without",
    ),
    Ablation(
        run="groups",
        label="the same with masked segments and groups",
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
    """Returns the section: recalls of every run, ablations compared with the paper, and tasks."""
    recalls = [line for line in records if line["test"]["name"] in TESTS]
    others = [line for line in records if line["test"]["name"] not in TESTS]
    small = [line for line in recalls if line["test"]["name"] == TEST]
    parts = [INTRO, *_recall_table(recalls), "\n### Ablations\n", *_ablation_table(small)]
    if others:
        parts += ["\n### Tasks, and zero-shot pairs\n", *_task_table(others)]
    parts.append(FINDINGS.rstrip())
    return "\n".join([*parts, ""])


def _recall_table(recalls: Sequence[Line]) -> Iterator[str]:
    if not recalls:
        yield "No run has been recorded yet."
        return
    yield (
        "| test | run | captions for images, R@1 / 5 / 10 | images for captions, R@1 / 5 / 10 "
        "| CPU minutes of each training stage |"
    )
    yield "|---|---|---|---|---|"
    for test in TESTS:
        lines = [line for line in recalls if line["test"]["name"] == test]
        for line in sorted(lines, key=lambda line: line["name"] != BASELINE):
            cells = [
                " / ".join(f"{100 * line['metrics'][f'{way}/r{k}']:.1f}" for k in KS)
                for way in WAYS
            ]
            minutes = ", ".join("?" if m is None else f"{m:g}" for m in line.get("cpu_minutes", ()))
            yield f"| {test} | {line['name']} | {' | '.join(cells)} | {minutes} |"


def _ablation_table(recalls: Sequence[Line]) -> Iterator[str]:
    """Yields the rows: a change counts if it is larger than two standard errors."""
    figures = {line["name"]: line["metrics"][R1] for line in recalls}
    base = figures.get(f"{SHORT}/seed-0")
    yield f"Changes of the R@1 of images, in points, relative to `{SHORT}`, one seed each.\n"
    yield "| change | here | paper | agreement | source |"
    yield "|---|---|---|---|---|"
    for one in ABLATIONS:
        ours = figures.get(f"{SHORT}-{one.run}/seed-0")
        here, verdict = "", "to be measured"
        if base is not None and ours is not None:
            error = 100 * sqrt((base * (1 - base) + ours * (1 - ours)) / NUM_QUERIES)
            change = 100 * (ours - base)
            here, verdict = f"{change:+.1f} ± {error:.1f}", judge(change, error, one.paper)
        paper = "" if one.paper is None else f"{one.paper:+.1f}"
        yield f"| {one.label} | {here} | {paper} | {verdict} | {one.source} |"


def _task_table(lines: Sequence[Line]) -> Iterator[str]:
    yield (
        "A `blind` run gets no image. The last column is the same model with another image. The "
        "kinds of SugarCrepe's cases are in the records."
    )
    yield "\n| test | run | figure | percent | with another image |\n|---|---|---|---|---|"
    for line in sorted(lines, key=lambda line: str(line["test"]["name"])):
        metrics = line["metrics"]
        for name, value in metrics.items():
            if name.startswith(("blind/", "accuracy/")):
                continue
            blind = f"{100 * metrics[f'blind/{name}']:.1f}" if f"blind/{name}" in metrics else ""
            cells = (line["test"]["name"], line["name"], name, f"{100 * value:.1f}", blind)
            yield f"| {' | '.join(cells)} |"


def judge(change: float, error: float, paper: float | None) -> str:
    """Returns whether a change agrees with the paper's: the same sign, beyond two errors."""
    if paper is None or abs(change) <= 2 * error:
        return "within error" if abs(change) <= 2 * error else ""
    return "yes" if change * paper > 0 else "no"
