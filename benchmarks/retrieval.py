"""Pairs that fusion models score a second to rank captions and pictures, on this CPU."""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peers.apart import Apart, Timing, measure, timed
from peers.captions import PeerWork, names, random_captions, write_pictures, write_regions
from peers.official_models import official_checkout
from peers.official_retrieval import RETRIEVAL_PEERS, SCORES, WEIGHTS
from shell import parse_form, result_line
from torch.nn.attention import SDPBackend, sdpa_kernel

from vlmill.models import VARIANTS, load_reference, preset
from vlmill.schemas.console.memory import keep_freed_memory
from vlmill.schemas.readers.images import ImageReader
from vlmill.schemas.readers.regions import RegionReader
from vlmill.train.devices.throughput import count_operations
from vlmill.train.recipes.spec import Feeding
from vlmill.train.tasks.retrieval.inputs import PixelPictures, RegionPictures
from vlmill.train.tasks.retrieval.matching import match_scores, scorer_of

SHORT, FULL = {"rounds": 1, "captions": 4, "pictures": 4}, {"rounds": 3, "captions": 8, "pictures": 8}
GEMMS, GEMM_FLOPS = 16, 2 * 2048 * 768 * 3072
CAPTIONS = (8, 10, 12, 13, 14, 16, 19, 26)
REGIONS = (10, 15, 21, 30, 46, 67, 92, 99)
CPU = torch.device("cpu")
OFFICIAL = {"vilbert": "vilbert", "interbert": "interbert", "vl-bert": "vl-bert"}


@dataclass(frozen=True, kw_only=True)
class Case:
    preset: str
    feeding: Feeding
    changes: dict[str, Any]


WHOLE = Feeding(max_tokens=30, max_regions=99, whole_image="mean")
CASES = {
    "vilbert": Case(preset="vilbert-released", feeding=WHOLE, changes={}),
    "interbert": Case(preset="interbert-released", feeding=WHOLE, changes={}),
    "vl-bert": Case(preset="vl-bert-base", feeding=replace(WHOLE, max_tokens=60), changes={"matching": True, "pooler": True, "text_only": False}),
    "imagebert": Case(preset="imagebert-base", feeding=Feeding(max_tokens=44, max_regions=100), changes={}),
    "vlmo": Case(preset="vlmo-base", feeding=Feeding(kind="pixels", max_tokens=40, image_size=224), changes={}),
}
LEFT, RIGHT = torch.randn(2048, 768), torch.randn(768, 3072)


def gemm() -> None:
    for _ in range(GEMMS):
        LEFT @ RIGHT


def run_variant(variant, official, rounds, captions, counts, scratch):
    case = CASES[variant]
    pixels = case.feeding.kind == "pixels"
    texts = random_captions(captions)
    ids = names(len(counts))
    if pixels:
        pictures = PixelPictures(ImageReader(write_pictures(scratch / "images", len(counts))), case.feeding)
    else:
        pictures = RegionPictures(RegionReader(write_regions(scratch / "regions", counts)), case.feeding)
    works = {"gemm": partial(timed, gemm)}
    torch.manual_seed(0)
    config = replace(preset(case.preset), **case.changes)
    peer = None
    if official is not None:
        inputs = pictures.batch(ids).to("cpu").inputs
        work = PeerWork(captions=texts, features=inputs.region_features, locations=inputs.region_locations, region_lengths=inputs.region_mask.sum(1))
        peer = Apart(partial(RETRIEVAL_PEERS[variant], official, work, scratch))
        peer.step(False)
        model = load_reference(variant, scratch / WEIGHTS, config)
        works["peer"] = partial(peer.step, False)
    else:
        model = VARIANTS[variant].model(config)
    model.eval()
    scorer = scorer_of(model)
    out = {}
    def ours():
        out["scores"] = match_scores(scorer, texts, ids, pictures, device=CPU, batch_size=64)
    works["ours"] = partial(timed, ours)
    timings = measure(works, rounds)
    flops = 0
    with sdpa_kernel(SDPBackend.MATH), torch.inference_mode():
        flops = count_operations(ours)
    n = len(texts) * len(ids)
    t = timings
    rate = GEMMS * GEMM_FLOPS / t["gemm"].cpu_s
    line = result_line(f"retrieval/{variant}", round(n / t["ours"].cpu_s, 3), "pairs/CPU s", gflop_pair=round(flops / n / 1e9, 2), gemm=round(rate / 1e9, 1), fraction_of_limit=round(flops / t["ours"].cpu_s / rate, 3), cpu=t["ours"].cpu_s)
    if peer:
        theirs = np.load(scratch / SCORES)
        line |= {"peer": n / t["peer"].cpu_s, "ratio": round(t["peer"].cpu_s / t["ours"].cpu_s, 3), "diff": float(np.abs(theirs - out["scores"]).max()), "std": float(theirs.std())}
        peer.close()
    print(json.dumps(line), flush=True)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--official", nargs="*", type=partial(official_checkout, known=RETRIEVAL_PEERS), default=[])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--captions", type=int)
    parser.add_argument("--pictures", type=int)
    options = parse_form(parser, argv, short=SHORT, full=FULL)
    keep_freed_memory()
    official = dict(options.official)
    for v in options.variants:
        with tempfile.TemporaryDirectory() as s:
            run_variant(v, official.get(v), options.rounds, CAPTIONS[:: 8 // options.captions], REGIONS[:: 8 // options.pictures], Path(s))


if __name__ == "__main__":
    main()
