"""Shows which parts of an image a model's score rests on, by covering them (``explain``).

The weight of a part is the score with the whole image minus the score without that part: occlusion
(Zeiler and Fergus, arXiv:1311.2901, sec. 4.2). It is a measurement of the model, not a reading of
its attention, and has the same meaning for every model; it costs one more score for each part. The
parts are the detector's regions, which are removed, or for a model that reads pixels the squares of
a grid, which are made grey.

R parts.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vlmill.inference.load.model import (
    CLASSIFICATION,
    ENTAILMENT,
    VQA,
    LoadedModel,
    TaskOutput,
    read_answer,
    read_classes,
)
from vlmill.inference.load.scoring import feed, score_each
from vlmill.runtime.readers.region_rows import PER_BOX
from vlmill.runtime.readers.regions import HeldRegions, RegionRow
from vlmill.schemas.errors import InputError, with_article
from vlmill.schemas.images.decode import decode
from vlmill.schemas.rejects import Rejected
from vlmill.train.loading.images.crop import BOUNDS
from vlmill.train.tasks.evaluating.job import weigh_example
from vlmill.train.tasks.retrieval.job import get_max_elements
from vlmill.train.tasks.retrieval.matching import make_scorer, match_scores

GRID = 7  # squares a side of an image that a model reads as pixels
GREY = 128  # of a covered square
GREY_INPUT = 0.0  # the same after normalisation
STRONGEST = 5  # parts that are drawn with their number
FOR, AGAINST = (217, 130, 43), (74, 127, 181)  # orange: the score falls without it; blue: it rises
SHADE = 0.45  # opacity of the strongest part
MIN_SIDE = 480  # a smaller image is drawn enlarged

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Holds the parts of an image by their effect on a score, the strongest first.

    ``boxes`` are float32 [R, 4], x1, y1, x2, y2 in pixels of the upright image. ``weights`` float32
    [R]: by how much ``score`` falls without each part, below 0 where it rises. ``score`` is the
    logit of ``label``, the predicted answer or class; without such a head, the logit or the cosine
    of the text with the image, and ``label`` is empty. ``image`` shows the parts: orange where the
    score falls without them, blue where it rises, as opaque as they are heavy; the strongest have
    their rank.
    """

    image: Image.Image
    boxes: Floats
    weights: Floats
    score: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Holds boxes [R, 4] in pixels, their weights [R], and the ``score`` of ``label``."""

    boxes: NDArray[Any]
    weights: NDArray[Any]
    score: float
    label: str = ""


def explain_image(model: LoadedModel, content: bytes, text: str) -> Explanation:
    """Returns the parts of an encoded image that the model's score of a text rests on.

    Raises InputError for a model without a head that predicts or scores, for a text without a word
    where the head needs one, and for an image that cannot be read or has fewer than two regions.
    """
    try:
        pixels = decode(content, BOUNDS).image
    except Rejected as why:
        raise InputError(f"the image cannot be read: {why.reason}; give another image") from None
    record = model.loaded.task
    task = VQA if record is None and model.labels is not None else record and record.name
    if task in (VQA, CLASSIFICATION, ENTAILMENT):
        result = model.run_one(task, partial(weigh_task, pixels.size), content, text)
    elif reads_regions(model):
        effects = measure_region_effects(model, content, text)
        result = Weights(boxes=effects.row.boxes, weights=effects.without, score=effects.score)
    else:
        result = weigh_squares_of_score(model, pixels, text)
    order = np.argsort(-np.abs(result.weights), kind="stable")
    boxes, weights = (
        result.boxes[order].astype(np.float32),
        result.weights[order].astype(np.float32),
    )
    return Explanation(
        image=draw_weights(pixels, boxes, weights),
        boxes=boxes,
        weights=weights,
        score=result.score,
        label=result.label,
    )


def weigh_task(size: tuple[int, int], output: TaskOutput) -> Weights:
    """Returns the weights of the parts of an image of ``size`` for the prediction of a head."""
    is_answer = output.model.recipe.task == VQA
    label = read_answer(output) if is_answer else read_classes(output).label
    if output.batches.regions is None:
        return weigh_squares(output, size, label)
    weighted = weigh_example(output.model, output.batches, output.prediction, "")
    if weighted is None or len(weighted.boxes) < 2:
        raise InputError("no two regions are found in the image; give another image")
    score = score_batch(output)(None)
    return Weights(boxes=weighted.boxes, weights=weighted.weights, score=score, label=label)


def score_batch(output: TaskOutput) -> Callable[[tuple[int, int, int, int] | None], float]:
    """Returns the function that scores the prediction for an example, with the pixels of a square
    (rows and columns, from and to) made grey, or whole.
    """
    model, batches, prediction = output.model, output.batches, output.prediction
    host, _ = batches.make_batch([prediction.row])
    assert host is not None  # the example was predicted
    batch = host.to(model.device)

    @torch.inference_mode()
    def score(square: tuple[int, int, int, int] | None) -> float:
        masked_batch = batch
        if square is not None:
            assert batch.pixels is not None
            first_row, last_row, first_column, last_column = square
            pixels = batch.pixels.clone()
            pixels[:, :, first_row:last_row, first_column:last_column] = GREY_INPUT
            masked_batch = replace(batch, pixels=pixels)
        values = model.task.outputs(model.loaded.model, masked_batch)
        return model.task.compute_score(values, prediction.value)

    return score


def weigh_squares(output: TaskOutput, size: tuple[int, int], label: str) -> Weights:
    """Returns the weights of the squares of a model's input, with boxes in an image of ``size``."""
    score = score_batch(output)
    side = output.batches.stage.feeding.image_size
    edges = np.linspace(0, side, GRID + 1).round().astype(int).tolist()
    spans = list(pairwise(edges))
    squares = [(*rows, *columns) for rows in spans for columns in spans]
    full_score = score(None)
    weights = np.array([full_score - score(square) for square in squares])
    return Weights(boxes=grid_boxes(*size), weights=weights, score=full_score, label=label)


def grid_boxes(width: int, height: int) -> Floats:
    """Returns the boxes of the squares of an image, row by row: float32 [GRID * GRID, 4]."""
    x, y = (np.linspace(0, side, GRID + 1) for side in (width, height))
    rows, columns = np.divmod(np.arange(GRID * GRID), GRID)
    corners = [x[columns], y[rows], x[columns + 1], y[rows + 1]]
    return np.stack(corners, axis=1).astype(np.float32)


def weigh_squares_of_score(model: LoadedModel, image: Image.Image, text: str) -> Weights:
    """Returns the weights of the squares of an image for its score with a text."""
    boxes = grid_boxes(*image.size)
    images = [image, *(grey_out(image, box) for box in boxes)]
    (matrix,) = score_each(model, [(list(map(encode_png, images)), [text])])
    scores = matrix[:, 0]
    if not np.isfinite(scores).all():
        raise InputError(f"{text!r} has no word; give a text with one")
    return Weights(boxes=boxes, weights=scores[0] - scores[1:], score=float(scores[0]))


def grey_out(image: Image.Image, box: Floats) -> Image.Image:
    """Returns an image with a grey box."""
    covered = image.copy()
    corners = [round(float(corner)) for corner in box]
    covered.paste((GREY, GREY, GREY), (corners[0], corners[1], corners[2], corners[3]))
    return covered


def encode_png(image: Image.Image) -> bytes:
    """Returns an image as a PNG: the same pixels."""
    content = io.BytesIO()
    image.save(content, "PNG", compress_level=1)
    return content.getvalue()


@dataclass(frozen=True, kw_only=True)
class RegionEffects:
    """Holds the ``score`` of an image with a text, its ``row`` of regions, and float32 [R], the
    score's decrease ``without`` each region.
    """

    score: float
    row: RegionRow
    without: NDArray[np.float32]
    arrays: Mapping[str, Any]  # types and widths of the row's arrays


def measure_region_effects(model: LoadedModel, image: bytes, text: str) -> RegionEffects:
    """Scores a text with an image, with all regions and without each of them.

    Raises InputError for a model that reads no regions, or has no matching head, for a text without
    a word, and for an image with fewer than two detected regions.
    """
    if not reads_regions(model):
        raise InputError(f"{with_article(model.loaded.variant)} reads no regions")
    tokens, good = model.tokens([text])
    if not good:
        raise InputError(f"text {text!r} has no word; give one")
    regions = model.hold({"0": image}, model.feeding).regions
    if regions is None or not regions.box_counts().max(initial=0) > 1:
        raise InputError("no two regions are found in the image; give another image")
    row = regions.row(0)
    rows = [row, *(without(row, region) for region in range(len(row.boxes)))]
    names = [str(number) for number in range(len(rows))]
    variants = [replace(variant, image_id=name) for variant, name in zip(rows, names, strict=True)]
    scores = match_scores(
        make_scorer(model.loaded.model, get_max_elements(model.feeding)),
        tokens,
        names,
        feed(model, HeldRegions(variants, regions.arrays)),
        device=model.device,
        batch_size=model.batch_size,
    )[:, 0]
    losses = scores[0] - scores[1:]
    return RegionEffects(score=float(scores[0]), row=row, without=losses, arrays=regions.arrays)


def reads_regions(model: LoadedModel) -> bool:
    """Returns whether the model reads regions."""
    return model.feeding.kind == "regions"


def without(row: RegionRow, region: int) -> RegionRow:
    """Returns the row without one of its regions."""
    values = {name: getattr(row, name) for name in ("boxes", *PER_BOX)}
    fields = {
        name: np.delete(array, region, axis=0)
        for name, array in values.items()
        if array is not None
    }
    return replace(row, **fields)


def draw_weights(image: Image.Image, boxes: Floats, weights: Floats) -> Image.Image:
    """Returns the image with its parts, given by falling strength: each as opaque as its weight is
    heavy, the strongest with an outline and its rank.
    """
    scale = max(1.0, MIN_SIDE / max(image.size))
    size = (round(image.width * scale), round(image.height * scale))
    drawn = image.resize(size).convert("RGBA")
    heaviest = float(np.abs(weights).max(initial=0.0)) or 1.0
    scaled = boxes * scale
    for box, weight in list(zip(scaled, weights, strict=True))[::-1]:  # the strongest on top
        colour = FOR if weight >= 0 else AGAINST
        layer = Image.new("RGBA", drawn.size, (*colour, 0))
        opacity = round(255 * SHADE * (abs(float(weight)) / heaviest) ** 2)
        ImageDraw.Draw(layer).rectangle(box.tolist(), fill=(*colour, opacity))
        drawn = Image.alpha_composite(drawn, layer)
    pen = ImageDraw.Draw(drawn)
    width = max(2, round(max(size) / 240))
    strongest = list(zip(scaled, weights, strict=True))[:STRONGEST]
    for rank, (box, weight) in reversed(list(enumerate(strongest, 1))):
        if not weight:
            continue
        colour = FOR if weight >= 0 else AGAINST
        x1, y1, x2, y2 = box.tolist()
        pen.rectangle((x1, y1, x2, y2), outline=colour, width=width)
        label = f"{rank}: {float(weight):+.2g}"
        place = pen.textbbox((x1 + width, y1 + width), label, font_size=14)
        pen.rectangle((place[0] - 2, place[1] - 1, place[2] + 2, place[3] + 1), fill=colour)
        pen.text((x1 + width, y1 + width), label, fill="white", font_size=14)
    return drawn.convert("RGB")
