"""Rules of fine-tuning's inputs: texts, regions and labels, as each task reads them."""

import io
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from tests.parity import training_vlbert
from tests.parity.finetuning_choices import vilbert_choices, vlbert_choices
from tests.parity.finetuning_regions import expressions
from tests.parity.golden import GoldenSet, expect, leaves, naming, read_json
from tests.parity.results import Results
from tests.parity.training import by_kind
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor

from vlmill.schemas.answers import soft_labels, without_marks
from vlmill.train.loading.batch import full_image
from vlmill.train.loading.boxes import Size, resized_boxes, scales
from vlmill.train.loading.collate import padded_locations
from vlmill.train.loading.images.crop import evaluation_image
from vlmill.train.loading.masking.words import MaskedTokens, select_tokens
from vlmill.train.loading.sample import kept_lengths
from vlmill.train.loading.vocabulary import read_vocabulary
from vlmill.train.tasks.refcoco.metrics import RULES, iou
from vlmill.train.tasks.retrieval.metrics import KS, retrieval_metrics
from vlmill.train.tasks.vlbert_texts import find_sides, mirrored_text

UNKNOWN = "<unk>"
IGNORED = -1
FLIP_TOKENS = "cases:vqa_flip_tokens"
OWN_TABLES = "VLMo's own tables, in place of which ours are read"


def vlbert_rules(golden: GoldenSet, results: Results) -> None:
    """VL-BERT's small rules, or its samples with every random draw."""
    if (golden.folder / "vocab.txt").is_file():
        training_vlbert.pretraining_samples(golden, results)
        vlbert_choices(golden, results)
        return
    cases = read_json(golden.folder / "cases.json")
    results.given(
        "cases:meta.*", "cases:vqa_soft_targets.vocab", "cases:vqa_soft_targets.*.answers"
    )
    results.given(f"{FLIP_TOKENS}.in")
    results.check_all(dict(leaves(mirrored_words(cases["vqa_flip_tokens"]), FLIP_TOKENS)))
    rules = {
        "resize_and_flip": resize_and_flip,
        "truncation": truncation,
        "refcoco_iou": refcoco_iou,
        "image_box_feature_after_masking": image_feature,
    }
    for name, rule in rules.items():
        for i, case in enumerate(cases[name]):
            ours = rule(case)
            results.given(*(f"cases:{name}.{i}.{key}" for key in case if key not in ours))
            results.check_all({f"cases:{name}.{i}.{key}": value for key, value in ours.items()})
    targets = cases["vqa_soft_targets"]
    for i, case in enumerate(targets["cases"]):
        at = f"cases:vqa_soft_targets.cases.{i}.target"
        compare_targets(results, at, targets["vocab"], case)
    for text in cases["vqa_answer_vocab_punctuation"]:
        processed = text if text == UNKNOWN else without_marks(text)  # which is no answer
        results.check(f"cases:vqa_answer_vocab_punctuation.{text}", processed)


def mirrored_words(case: dict[str, Any]) -> dict[str, Any]:
    """The words of a mirrored image's question, each a token."""
    words = case["in"]
    ids = {word: number for number, word in enumerate(words)}
    tokens = np.arange(len(words))
    text = MaskedTokens(original=tokens, tokens=tokens, masked=np.zeros(len(words), dtype=np.bool_))
    mirrored = mirrored_text(text, find_sides(Tokenizer(WordLevel(ids, unk_token=words[0]))))
    return {"out": [words[number] for number in mirrored.tokens.tolist()]}


def resize_and_flip(case: dict[str, Any]) -> dict[str, Any]:
    size = Size(width=case["w"], height=case["h"])
    new = size.resized(case["min"], case["max"])
    boxes = np.array([case["box"]], np.float32)
    return {
        "out_im_info": [float(x) for x in (new.width, new.height, *scales(size, new))],
        "out_box": resized_boxes(boxes, size, new, mirrored=False)[0].tolist(),
        "out_box_flipped": resized_boxes(boxes, size, new, mirrored=True)[0].tolist(),
    }


def truncation(case: dict[str, Any]) -> dict[str, Any]:
    text, boxes = kept_lengths(case["text_len"], case["box_len"], case["seq_len"])
    return {
        "text_keep": text,
        "box_keep": boxes,
        "text_indices": select_tokens(case["text_len"], text).tolist(),
    }


def refcoco_iou(case: dict[str, Any]) -> dict[str, Any]:
    overlap = iou(np.array(case["a"]), np.array([case["b"]]), RULES["released"])
    return {"iou": float(overlap[0]), "label": bool(RULES["released"].is_right(overlap)[0])}


def image_feature(case: dict[str, Any]) -> dict[str, Any]:
    hidden = torch.tensor([case["ops"]]) == 1
    features = torch.tensor([case["features"]]).masked_fill(hidden[..., None], 0.0)
    counts = torch.tensor([features.shape[1]])
    return {"image_feature": full_image(features, counts, hidden, "rest")[0].tolist()}


def compare_targets(results: Results, at: str, vocab: list[str], case: dict[str, Any]) -> None:
    """Answers outside the vocabulary fall on its unknown entry, which scores nothing."""
    numbers = {answer: i for i, answer in enumerate(vocab) if answer != UNKNOWN}
    ids, scores = soft_labels(case["answers"], numbers)
    ours = {vocab[i]: score for i, score in zip(ids, scores, strict=True)}
    surplus = ours.keys() - case["target"].keys()
    expect(not surplus, f"{at}: ours also scores {sorted(surplus)}")
    results.check_all(dict(leaves(ours, at)))


def vilbert_rules(golden: GoldenSet, results: Results) -> None:
    """ViLBERT's feature reader, and a record of pretraining without masks."""
    # Kept beside the normalised ones; no model is fed them.
    results.given("reader.*.out.location_pixels", "*.in.*")
    images = {key.split(".")[1] for key in golden.tensors if key.startswith("reader.")}
    for name in sorted(images):
        with naming(name):
            read = image_with_whole(golden, name)
            for key, ours in read.items():
                results.check(f"reader.{name}.out.{key}", ours)
    if "refer" in golden.config:
        vilbert_choices(golden, results)
        expressions(golden, results, partial(caption_pieces, golden.config["vocab"]))
    if "pretrain" in golden.config:
        pretraining_record(golden, results)


def image_with_whole(golden: GoldenSet, name: str) -> dict[str, Tensor]:
    """An image's regions after its own row: the mean of all features, and the whole box."""
    boxes, features, size = (
        golden.tensors[f"reader.{name}.in.{key}"] for key in ("boxes", "features16", "wh")
    )
    width, height = size.tolist()
    whole = np.array([[0, 0, width, height]], np.float32)
    count = len(boxes)
    locations = padded_locations([boxes.numpy()], [(width, height)], count + 1, first=whole)
    none = torch.zeros(1, count, dtype=torch.bool)
    first = full_image(features[None], torch.tensor([count]), none, "mean")
    return {
        "features16": torch.cat([first, features]),
        "location": torch.from_numpy(locations[0]),
        "num_boxes": torch.tensor(count + 1),
    }


def pretraining_record(golden: GoldenSet, results: Results) -> None:
    """The caption's pieces, the padded regions, and the image's row after some were hidden.

    The record is of the image of its size whose regions have as many rows of classes.
    """
    record, recorded = golden.config["pretrain"], golden.tensors
    probs = recorded["pretrain.in.cls_prob40"]
    longest, count = record["region_len"], len(probs)
    size = [record["image_w"], record["image_h"]]
    names = [
        name
        for name in sorted({key.split(".")[1] for key in recorded if key.startswith("reader.det")})
        if len(recorded[f"reader.{name}.in.boxes"]) == count
        and recorded[f"reader.{name}.in.wh"].tolist() == size
    ]
    expect(names, f"{golden.folder}: no image of {size} has the {count} regions of pretrain")
    name = names[0]
    boxes = recorded[f"reader.{name}.in.boxes"].numpy()
    locations = torch.from_numpy(padded_locations([boxes], [(size[0], size[1])], longest)[0])
    features = torch.zeros(longest, recorded[f"reader.{name}.in.features16"].shape[1])
    features[:count] = recorded[f"reader.{name}.in.features16"]
    shown = torch.arange(longest) < count
    hidden = features.clone()
    hidden[record["rows_zeroed_before_batching"]] = 0
    none = torch.zeros(1, longest, dtype=torch.bool)
    first = full_image(hidden[None], torch.tensor([count]), none, "mean")
    whole = torch.tensor([[0.0, 0, 1, 1, 1]])
    targets = torch.zeros(longest, probs.shape[1])
    targets[:count] = probs
    ours = {
        "batched.image_feat16": torch.cat([first, hidden]),
        "batched.image_loc": torch.cat([whole, locations]),
        "batched.image_mask": torch.cat([torch.ones(1), shown]).long(),
        "out.image_loc": locations,
        "out.image_mask": shown.long(),
        "out.image_target": targets,
        "out.image_feat": features,
        "out.image_label": torch.full((longest,), IGNORED),
        "out.is_next": torch.tensor(0),
        **caption_pieces(golden.config["vocab"], record["caption"], record["seq_len"]),
    }
    results.given("pretrain.target_row_sums")  # of a distribution of which a part is recorded
    for key, value in ours.items():
        results.check(f"pretrain.{key}", value)


def caption_pieces(vocab: list[str], caption: str, longest: int) -> dict[str, Tensor]:
    """A caption as our tokenizer parts it, padded."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.txt"
        path.write_text("\n".join(vocab) + "\n", encoding="utf-8")
        ids = read_vocabulary(path).encode(caption).ids
    tokens = torch.zeros(longest, dtype=torch.int64)
    kept = select_tokens(len(ids), min(len(ids), longest))
    tokens[: len(kept)] = torch.tensor(ids)[torch.from_numpy(kept)]
    return {
        "out.input_ids": tokens,
        "out.input_mask": (torch.arange(longest) < len(kept)).long(),
        "out.segment_ids": torch.zeros_like(tokens),
        "out.lm_label_ids": torch.full_like(tokens, IGNORED),
    }


def vlmo_rules(golden: GoldenSet, results: Results) -> None:
    """Recall by vectors, or VLMo's own tables, whose images are read as ours are."""
    if golden.cases:
        for case in golden.cases:
            recall(golden, results, case)
        return
    results.leaves_out(OWN_TABLES, "expected:*")
    size = int(golden.values["expected:image_size"])
    rows = rows_of_tables(golden.folder)
    for name, records in read_json(golden.folder / "expected.json")["expected"].items():
        for i, record in enumerate(records):
            if not isinstance(record, dict) or "text" not in record:
                continue
            for key in ("image", "image_0", "image_1"):
                if f"{key}_mean" in record:
                    content = image_of(rows, key, record)
                    pixels = evaluation_image(content, record["text"], size)
                    mean = float(pixels.astype(np.float64).mean()) / 127.5 - 1
                    results.check(f"expected:expected.{name}.{i}.{key}_mean", mean)


def rows_of_tables(folder: Path) -> list[dict[str, Any]]:
    """The rows of all tables, each with its table's name."""
    rows = []
    for path in sorted(folder.glob("*.arrow")):
        with pa.ipc.open_file(io.BytesIO(path.read_bytes())) as file:
            rows += [{**row, "table_name": path.stem} for row in file.read_all().to_pylist()]
    return rows


def image_of(rows: Sequence[Mapping[str, Any]], key: str, record: Mapping[str, Any]) -> bytes:
    """The image in the column ``key`` of the row of which a sample is: by its text, and where
    several have it by the table and the question that the sample names.
    """
    contents = {
        row[key]
        for row in rows
        if row.get(key) is not None
        and record["text"] in (row.get("questions") or row.get("caption") or ())
        and record.get("table_name") in (None, row["table_name"])
        and record.get("qid") in (None, *(row.get("question_id") or ()))
    }
    expect(len(contents) == 1, f"{record['text']!r} is of {len(contents)} images")
    (content,) = contents
    return bytes(content)


def recall(golden: GoldenSet, results: Results, case: str) -> None:
    """Vectors score, and images come in any order."""
    images, texts, image_ids, text_image_ids = (
        golden.tensors[f"{case}.in.{name}"].numpy()
        for name in ("image_vec", "text_vec", "image_ids", "text_image_ids")
    )
    rows = {image: row for row, image in enumerate(image_ids.tolist())}
    owners = np.array([rows[image] for image in text_image_ids.tolist()])
    metrics = retrieval_metrics(images @ texts.T, owners)
    for short, name in (("ir", "image_retrieval"), ("tr", "text_retrieval")):
        for k in KS:
            ours = torch.tensor(metrics[f"{name}/r{k}"])
            results.check(f"{case}.out.{short}_r{k}", ours)


FINETUNING = {
    "vilbert": by_kind(rules=vilbert_rules),
    "vl-bert": by_kind(rules=vlbert_rules),
    "vlmo": by_kind(rules=vlmo_rules),
}
