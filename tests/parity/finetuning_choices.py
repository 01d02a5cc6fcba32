"""VCR's inputs: texts with names and tags as the released codes build them, and regions."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from tests.parity.finetuning_regions import batch_of, check_regions, image, stored_tables
from tests.parity.golden import GoldenSet, leaves, naming, read_json
from tests.parity.results import Results
from tokenizers import Tokenizer

from vlmill.runtime.readers.regions import RegionRow
from vlmill.train.loading.boxes import Size, scales
from vlmill.train.loading.images.boxed import MASKS, boxed_image, make_image_regions, padded_images
from vlmill.train.loading.masking.regions import MaskedRegions
from vlmill.train.loading.sample import Sample, SampledRegions, unread_features
from vlmill.train.loading.vocabulary import read_vocabulary
from vlmill.train.tasks.recipes.vilbert import vilbert_vcr_feeding
from vlmill.train.tasks.registry import task_recipe_named
from vlmill.train.tasks.vcr.batch_tensors import find_object_rows
from vlmill.train.tasks.vcr.examples import Question, cut_pieces, named_texts
from vlmill.train.tasks.vcr.outlines import instance_masks
from vlmill.train.tasks.vcr.settings import VcrSettings
from vlmill.train.tasks.vcr.task import list_mentioned_objects, question_about, sample_with
from vlmill.train.tasks.vcr.texts import (
    MARK,
    NO_OBJECT,
    PERSON,
    WHOLE,
    find_category,
    names_in_turn,
)


def vilbert_choices(golden: GoldenSet, results: Results) -> None:
    """Both sub-tasks of one question; the only name for persons is recorded."""
    about = golden.config["vcr"]
    annotation = about["annotation"]
    only = about["only_unisex_name"]
    names = [only if name == PERSON else name for name in about["names"]]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.txt"
        path.write_text("\n".join(golden.config["vocab"]) + "\n", encoding="utf-8")
        tokenizer = read_vocabulary(path)
        reader = stored_tables(golden, Path(folder))
        feeding = replace(vilbert_vcr_feeding(), max_regions=about["max_region_num"] - 1)
        image_id = annotation["img_id"].partition("-")[2]
        regions = image(reader, image_id, feeding, annotated=True)
        batch = batch_of(regions, reader, feeding)
    for kind, longest in about["max_seq_length"].items():
        at = f"vcr.{kind}.out"
        results.given(f"{at}.anno_id", f"{at}.target")
        with naming(at):
            check_regions(results, at, batch)
            first, choices = annotation["question"], annotation["answer_choices"]
            if kind == "VCR_QA-R":
                first = [*first, MARK, *choices[annotation["answer_label"]]]
                choices = annotation["rationale_choices"]
            settings = VcrSettings(shared_cut=True)
            texts = named_texts(first, choices, names, longest, settings, tokenizer)
            rows = {
                "input_ids": [text.tokens for text in texts],
                "segment_ids": [text.segments for text in texts],
                "input_mask": [torch.ones(len(text.tokens)).long().numpy() for text in texts],
            }
            for name, values in rows.items():
                tensors = [torch.from_numpy(value) for value in values]
                padded = [F.pad(tensor, (0, longest - len(tensor))) for tensor in tensors]
                results.check(f"{at}.{name}", torch.stack(padded))
            places = find_object_rows(regions, len(names), feeding)
            pointed = torch.zeros(len(texts), about["max_region_num"], longest, dtype=torch.int8)
            for choice, text in enumerate(texts):
                boxes = torch.from_numpy(places[text.objects])
                (tokens,) = boxes.nonzero(as_tuple=True)
                pointed[choice, boxes[tokens], tokens] = 1
            results.check(f"{at}.co_attention_mask", pointed)


def vlbert_choices(golden: GoldenSet, results: Results) -> None:
    """Word pieces, their tags and words; persons' names go on from question to question."""
    tokenizer = read_vocabulary(golden.folder / "vocab.txt")
    content = read_json(golden.folder / "cases.json")
    results.given("cases:vcr_annotations.*", "cases:vcr_metadata.*", "tensors:vcr.sample*")
    results.given("cases:vcr.*.draws*", "cases:vcr.*.label")
    first, before = 0, None
    for number, case in enumerate(content["vcr"]):
        at = f"cases:vcr.{number}"
        settings = ("case", "task", "sample", "seq_len", "only_use_relevant_dets")
        results.given(*(f"{at}.{name}" for name in settings))
        run = case["task"], case["seq_len"], case["only_use_relevant_dets"]
        first, before = (first if run == before else 0), run
        question = question_of(content, case)
        objects = list(range(len(question.object_names)))
        if case["only_use_relevant_dets"]:
            objects = list_mentioned_objects(question, len(objects))
        shown = question_about(question, objects)
        with naming(at):
            ours: dict[str, Any] = tagged(shown, case["seq_len"], first, tokenizer)
            ours["im_info"] = image_with_outlines(golden, results, content, case, shown, objects)
            results.check_all(dict(leaves(ours, at)))
        first += list(shown.object_names).count(PERSON)


def question_of(content: dict[str, Any], case: dict[str, Any]) -> Question:
    """The row of choices of a case, all of its objects in it."""
    annotation = content["vcr_annotations"][case["sample"]]
    about = content["vcr_metadata"][case["sample"]]
    words, choices = annotation["question"], annotation["answer_choices"]
    if case["task"] == "QA2R":
        words = [*words, MARK, *choices[annotation["answer_label"]]]
        choices = annotation["rationale_choices"]

    def text(words: list[Any]) -> str:
        return " ".join(word if isinstance(word, str) else "[]" for word in words)

    def tags(words: list[Any]) -> list[list[int]]:
        return [[NO_OBJECT] if isinstance(word, str) else word for word in words]

    return Question(
        example_id=str(case["case"]),
        task=case["task"].lower(),
        label=case["label"],
        question=text(words),
        choices=[text(choice) for choice in choices],
        object_names=annotation["objects"],
        boxes=[corner for box in about["boxes"] for corner in box[:4]],
        question_tags=tags(words),
        choice_tags=[tags(choice) for choice in choices],
        segms=json.dumps(about["segms"]),
    )


def image_with_outlines(
    golden: GoldenSet,
    results: Results,
    content: dict[str, Any],
    case: dict[str, Any],
    shown: Question,
    objects: list[int],
) -> list[float]:
    """The image, boxes with score and category, and outlines of the ``objects`` that are
    ``shown``; the resized image's facts.

    The published code pads all images to one size.
    """
    at, sample = f"tensors:vcr.case{case['case']}", case["sample"]
    about = content["vcr_metadata"][sample]
    image = Image.fromarray(golden.tensors[f"tensors:vcr.sample{sample}.image_uint8"].numpy())
    recorded = golden.tensors[f"{at}.image"]
    feeding = replace(
        task_recipe_named("vcr-vl-bert-end-to-end-q2a").stages[0].feeding,
        short_side=min(recorded.shape[1:]),
        long_side=max(recorded.shape[1:]),
    )
    ((_, drawn),) = case["draws"]
    mirrored = drawn < 0.5
    stored = np.array(about["boxes"], dtype=np.float32)
    boxes, scores = stored[:, :4], torch.from_numpy(stored[objects, 4])
    regions = SampledRegions(
        row=RegionRow(
            image_id=str(sample), width=about["width"], height=about["height"], boxes=boxes
        ),
        features=unread_features(len(boxes)),
        boxes=boxes,
        masks=MaskedRegions.none(len(boxes)),
        num_shown=len(boxes),
        mirrored=mirrored,
    )
    pixels = boxed_image(image, regions, feeding)
    found = sample_with(Sample(pair_id=at, regions=regions, pixels=pixels), objects)
    assert found.regions is not None and found.regions.num_shown == len(objects)
    masks = instance_masks(shown.outlines(), shown.box_rows, 14, mirrored=mirrored)
    padded = padded_images([dict(found.pixels) | {MASKS: masks}], 1 + len(objects))
    tensors = {name: torch.from_numpy(array) for name, array in padded.items()}
    tensors["region_mask"] = torch.ones(1, 1 + len(objects), dtype=torch.bool)
    images = make_image_regions(tensors)
    assert images.instance_masks is not None
    height, width = images.images.shape[2:]
    below, right = recorded.shape[1] - height, recorded.shape[2] - width
    results.check(f"{at}.image", F.pad(images.images[0], (0, right, 0, below)))
    categories = torch.tensor([find_category(name) or 0 for name in shown.object_names])
    more = torch.stack([scores, categories.float()], dim=1)
    more = torch.cat([torch.tensor([[1.0, WHOLE]]), more])
    results.check(f"{at}.boxes", torch.cat([images.boxes[0], more], dim=1))
    results.check(f"{at}.masks", images.instance_masks[0])
    size = Size(width=about["width"], height=about["height"])
    new = size.resized(feeding.short_side, feeding.long_side)
    return [float(x) for x in (new.width, new.height, *scales(size, new), sample)]


def tagged(asked: Question, longest: int, first: int, tokenizer: Tokenizer) -> dict[str, Any]:
    words, choices = asked.words()
    names = names_in_turn(asked.object_names, first)
    question, cut = cut_pieces(words, choices, names, longest, tokenizer)
    ids = tokenizer.get_vocab()

    def triples(pieces: Any) -> list[list[int]]:
        return [[ids[piece.token], piece.object_number + 1, piece.word] for piece in pieces]

    return {"question": triples(question), "choices": [triples(choice) for choice in cut]}
