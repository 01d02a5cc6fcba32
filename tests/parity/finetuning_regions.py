"""ViLBERT's inputs of referring expressions: detected and annotated regions of stored tables."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.parity.golden import GoldenSet, expect, naming
from tests.parity.results import Results
from torch import Tensor

from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.joined_regions import JoinedRegions
from vlmill.runtime.readers.region_rows import RegionRow, encode_regions, region_arrays
from vlmill.schemas.tables import REGIONS
from vlmill.train.loading.batch import Batch
from vlmill.train.loading.collate import collate
from vlmill.train.loading.features import read_features
from vlmill.train.loading.joined_regions import joined_regions
from vlmill.train.loading.masking.words import MaskedTokens
from vlmill.train.loading.sample import Sample, SampledRegions
from vlmill.train.loading.vocabulary import SEP
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.recipes.vilbert import refcoco_vilbert, vilbert_refcoco_feeding
from vlmill.train.tasks.refcoco.metrics import RULES, iou
from vlmill.train.tasks.refcoco.task import make_targets, prepend_image_box

PAD_ID = 0


def expressions(golden: GoldenSet, results: Results, pieces: Any) -> None:
    """Each expression: its text, its regions, and what each is taught.

    Annotated regions come along in training; in validation the overlaps themselves are recorded.
    """
    about = golden.config["refer"]
    feeding = replace(vilbert_refcoco_feeding(), max_regions=about["max_region_num"] - 1)
    sentences = [
        (ref["image_id"], ref_id, sentence["raw"])
        for ref_id, ref in about["refs"].items()
        for sentence in ref["sentences"]
    ]
    results.given("refer.*.out.image_id")
    with TemporaryDirectory() as folder:
        reader = stored_tables(golden, Path(folder))
        for number, (image_id, ref_id, text) in enumerate(sentences):
            x, y, width, height = about["ref_boxes_xywh"][ref_id]
            named = np.array([x, y, x + width, y + height], np.float32)
            for split in ("train", "val"):
                at = f"refer.{split}{number}.out"
                with naming(at):
                    regions = image(reader, str(image_id), feeding, annotated=split == "train")
                    check_regions(results, at, batch_of(regions, reader, feeding))
                    taught = targets(regions, named, feeding, raw=split == "val")
                    length = len(golden.tensors[f"{at}.target"])
                    results.check(f"{at}.target", padded(taught[:, None], length))
                    check_text(golden, results, at, pieces(text, about["max_seq_length"]))


def check_text(golden: GoldenSet, results: Results, at: str, pieces: dict[str, Tensor]) -> None:
    """The text; where it is cut its last piece is given, which is [SEP] in ours alone."""
    ours, recorded = pieces["out.input_ids"], golden.tensors[f"{at}.caption"]
    sep = golden.config["vocab"].index(SEP)
    if int(recorded[-1]) not in (PAD_ID, sep):
        expect(int(ours[-1]) == sep, f"{at}.caption is cut, ours ends with {int(ours[-1])}")
        ours = torch.cat([ours[:-1], recorded[-1:]])
    results.check(f"{at}.caption", ours)
    results.check(f"{at}.input_mask", pieces["out.input_mask"])
    results.check(f"{at}.segment_ids", pieces["out.segment_ids"])


def stored_tables(golden: GoldenSet, folder: Path) -> JoinedRegions:
    """The recorded detected and annotated regions as our tables."""
    for kind in ("det", "gt"):
        names = {k.split(".")[1] for k in golden.tensors if k.startswith(f"reader.{kind}")}
        rows = [stored_row(golden, name, name.removeprefix(kind)) for name in sorted(names)]
        expect(rows, f"{golden.folder}: no tensor reader.{kind}*, which holds regions")
        width = rows[0].features.shape[1] if rows[0].features is not None else 0
        arrays = region_arrays(dtype="float32", feature_dim=width)
        write_shard(folder / kind, REGIONS, encode_regions(rows, dtype="float32"), arrays=arrays)
    return JoinedRegions(folder / "det", folder / "gt")


def stored_row(golden: GoldenSet, name: str, image_id: str) -> RegionRow:
    boxes, features, size = (
        golden.tensors[f"reader.{name}.in.{key}"].numpy() for key in ("boxes", "features16", "wh")
    )
    width, height = size.tolist()
    return RegionRow(image_id=image_id, width=width, height=height, boxes=boxes, features=features)


def image(
    reader: JoinedRegions, image_id: str, feeding: Feeding, *, annotated: bool
) -> SampledRegions:
    (at,) = reader.find([image_id]).tolist()
    return joined_regions(reader, at, feeding, with_annotated=annotated)


def batch_of(regions: SampledRegions, reader: JoinedRegions, feeding: Feeding) -> Batch:
    tokens = np.array([1, 2])
    text = MaskedTokens(original=tokens, tokens=tokens, masked=np.zeros(2, dtype=np.bool_))
    host = collate([Sample(pair_id="x", text=text, regions=regions)], feeding)
    return read_features(host, reader).to("cpu")


def check_regions(results: Results, at: str, batch: Batch) -> None:
    """What the model is fed of the image, padded as recorded."""
    inputs = batch.inputs
    length = len(results.golden.tensors[f"{at}.image_mask"])
    pad = partial(padded, length=length)
    results.check(f"{at}.features16", pad(inputs.region_features[0]))
    results.check(f"{at}.spatials", pad(inputs.region_locations[0]))
    results.check(f"{at}.image_mask", pad(inputs.region_mask[0][:, None])[:, 0].long())


def targets(
    regions: SampledRegions, named: np.ndarray[Any, Any], feeding: Feeding, *, raw: bool
) -> Tensor:
    size = (regions.row.width, regions.row.height)
    boxes = prepend_image_box(regions.boxes[: regions.num_shown], size, feeding)
    settings = refcoco_vilbert().settings
    if raw:
        return torch.from_numpy(iou(named, boxes, RULES[settings.label_rule])).float()
    return torch.from_numpy(make_targets(boxes, named, settings))


def padded(rows: Tensor, length: int) -> Tensor:
    return F.pad(rows, (0, 0, 0, length - len(rows)))
