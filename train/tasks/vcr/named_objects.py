"""Selects the objects that a question's texts name, where no others are shown (VL-BERT's code)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vlmill.train.loading.sample import Sample
from vlmill.train.tasks.vcr.examples import Question
from vlmill.train.tasks.vcr.outlines import chosen_outlines
from vlmill.train.tasks.vcr.texts import NO_OBJECT


def list_mentioned_objects(question: Question, num_shown: int) -> list[int]:
    """Returns the objects that a row's texts name, in the order of their first mention.

    Objects after the first ``num_shown``, which have no region, come last: the others' regions
    follow each other. The code looks at wrong answers of a rationale's question, too, which the row
    does not hold and no text shows.
    """
    first, choices = question.words()
    references = (
        word for words in (first, *choices) for word in words if not isinstance(word, str)
    )
    object_numbers = dict.fromkeys(number for numbers in references for number in numbers)
    return sorted(object_numbers, key=lambda number: number >= num_shown)


def question_about(question: Question, objects: Sequence[int]) -> Question:
    """Returns a question whose image has only these objects, in this order; objects, boxes,
    outlines and tags count from 0 again. ``objects`` include at least the ones that its texts name.
    """
    numbers = {number: index for index, number in enumerate(objects)} | {NO_OBJECT: NO_OBJECT}

    def renumbered(tags: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[numbers[number] for number in word] for word in tags]

    return replace(
        question,
        object_names=[question.object_names[number] for number in objects],
        boxes=question.box_rows[list(objects)].ravel().tolist(),
        question_tags=renumbered(question.question_tags),
        choice_tags=[renumbered(tags) for tags in question.choice_tags],
        segms=chosen_outlines(question.segms, objects),
    )


def sample_with(sample: Sample, objects: Sequence[int]) -> Sample:
    """Returns a sample that shows only these of its objects' regions, in this order, as far as they
    were shown; detected regions stay.
    """
    regions = sample.regions
    assert regions is not None
    first, end = regions.first_annotated, regions.num_shown
    if end <= first:  # a blind model's
        return sample
    chosen = [number for number in objects if number < end - first]
    other_objects = sorted(set(range(end - first)) - set(chosen))
    order = np.arange(len(regions.boxes))
    order[first:end] = first + np.array([*chosen, *other_objects], dtype=np.int64)
    num_shown = first + len(chosen)
    pixels = dict(sample.pixels)
    if "boxes" in pixels:  # of the full image and of the shown regions
        pixels["boxes"] = pixels["boxes"][np.append(0, 1 + order[:num_shown])]
    return replace(sample, regions=regions.reorder(order, num_shown), pixels=pixels)
