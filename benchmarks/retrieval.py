"""Measures the ranking of captions and images on this CPU, by fusion models and by VLMo.

For each model a line of JSON: pairs that `train-vl evaluate retrieval` scores a CPU second, from
tables of regions or images to logits. Captions have the lengths of Flickr30k's (12.4 words in the
mean; 14.8 tokens with [CLS], [SEP] and pieces of words), images 10 to 99 regions as a threshold
leaves them (47.5 in the mean) and the whole one.
``limit`` is what the rate of a 2048 x 768 x 3072 float32 product, measured in turn, would give for
the useful operations: each caption and each image read once, and each pair by itself, without
padding, up to what the matching head reads. The warm-up lays weights out for their products, which
a run of many pairs does once. ``peer`` is the official code with the same weights on
the same pairs, in a process of its own, where a checkout of it is given
(benchmarks/peers/official_retrieval.py says what it does); ``equal_ranks`` is the share of pairs
that have one rank by both, ``largest_difference`` that of their log odds. Bars are 3 times
ViLBERT's and InterBERT's loop, 2.5 times VL-BERT's pass, and 0.7 of the limit for the others.

Then seconds from raw images and texts to ranks of 1,000 images and 5,000 captions, measured on
a part and scaled by the numbers of images, texts and pairs: VLMo as dual encoder, with --rerank
20 (20 for each image and each text, at most), as fusion encoder, and the first model of regions
with its detector (R-101, random weights, one image). Last the product of 1,000 x 5,000 vectors,
which has the ranks of all, beside FAISS's ten best, which has not.

    python benchmarks/retrieval.py
    python benchmarks/retrieval.py --full --official vilbert=../vilbert_beta vl-bert=../VL-BERT
"""

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

# Waiting threads must sleep: spinning ones count as CPU time and take the cores of others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from numpy.typing import NDArray
from peers.captions import PeerWork, names, random_captions, write_images, write_regions
from peers.official_models import add_official
from peers.official_retrieval import RETRIEVAL_PEERS, SCORES, WEIGHTS
from peers.own_process import PRODUCT_OPERATIONS, Apart, Timing, measure, products, timed
from shell import add_choices, add_counts, new_parser, parse_form, print_line, result_line
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vlmill.extract.config import ExtractConfig
from vlmill.extract.detect.detector import open_detector
from vlmill.extract.detect.predict import extract_regions
from vlmill.models import VARIANTS, load_reference, preset
from vlmill.models.detector.config import ARCHITECTURES
from vlmill.models.layers.operators import unchanging_weights
from vlmill.runtime.memory import keep_freed_memory
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.train.devices.throughput import operations_counter
from vlmill.train.loading.arrays import Ids
from vlmill.train.recipes.imagebert import imagebert_feeding
from vlmill.train.recipes.vilbert import vilbert_retrieval_feeding
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.retrieval.inputs import PixelImages, RegionImages, text_batches
from vlmill.train.tasks.retrieval.matching import PairScorer, make_scorer, match_scores
from vlmill.train.tasks.retrieval.metrics import retrieval_metrics
from vlmill.train.tasks.retrieval.vectors import image_vectors, text_vectors

SHORT = {"rounds": 1, "captions": 2, "images": 4}
FULL = {"rounds": 2, "captions": 8, "images": 8}
CAPTIONS = (8, 10, 12, 13, 14, 16, 19, 26)  # tokens, eighths of Flickr30k's about their mean
REGIONS = (10, 15, 21, 30, 46, 67, 92, 99)
BATCH = 64  # as the command scores them
RANKED_IMAGES, RANKED_TEXTS, RERANK = 1_000, 5_000, 20
WIDTH, FIRST = 768, 10
CPU = torch.device("cpu")
Images = RegionImages | PixelImages


@dataclass(frozen=True, kw_only=True)
class Case:
    """A variant at its published base size, what it is fed, and what is asked of its speed: times
    the peer's, or a share of the product's rate.
    """

    preset: str
    feeding: Feeding
    changes: dict[str, Any] = field(default_factory=dict)
    times_peer: float | None = None
    of_limit: float | None = None


# Without the limit of 64 elements that VL-BERT's pretraining has; its tasks have none.
OF_REGIONS = replace(vilbert_retrieval_feeding(), region_targets="class")
CASES = {
    "vilbert": Case(preset="vilbert-released", feeding=OF_REGIONS, times_peer=3.0),
    "interbert": Case(preset="interbert-released", feeding=OF_REGIONS, times_peer=3.0),
    "vl-bert": Case(
        preset="vl-bert-base",
        feeding=OF_REGIONS,
        changes={"matching": True, "pooler": True, "text_only": False},
        times_peer=2.5,
    ),
    "imagebert": Case(preset="imagebert-base", feeding=imagebert_feeding(), of_limit=0.7),
    "vlmo": Case(
        preset="vlmo-base",
        feeding=Feeding(kind="pixels", max_tokens=40, image_size=224),
        of_limit=0.7,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is ranked, and what came of it: CPU seconds of a pair, by the matching head."""

    texts: tuple[Ids, ...]
    ids: list[str]
    images: Images

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return len(self.texts) * len(self.ids)

    def scores(self, scorer: PairScorer) -> NDArray[np.float32]:
        """Scores all pairs as the command does, [I, T]."""
        return match_scores(scorer, self.texts, self.ids, self.images, device=CPU, batch_size=BATCH)

    def of_peer(self) -> PeerWork:
        """The same as a peer takes it."""
        inputs = self.images.batch(self.ids).to("cpu").inputs
        return PeerWork(
            captions=self.texts,
            features=inputs.region_features,
            locations=inputs.region_locations,
            region_lengths=inputs.region_mask.sum(1),
        )


def make_work(case: Case, captions: Sequence[int], counts: Sequence[int], folder: Path) -> Work:
    """Writes the tables of a case and opens them."""
    images: Images
    if case.feeding.kind == "pixels":
        reader = ImageReader(write_images(folder / "images", len(counts)))
        images = PixelImages(reader, case.feeding)
    else:
        regions = RegionReader(write_regions(folder / "regions", counts))
        images = RegionImages(regions, case.feeding)
    return Work(texts=random_captions(captions), ids=names(len(counts)), images=images)


@torch.inference_mode()
def operations(scorer: PairScorer, work: Work) -> int:
    """Useful operations: of each caption, each image and each pair alone, without padding."""
    counter = operations_counter()
    # The fused attention kernel of the CPU is not in the counter's list.
    with counter, sdpa_kernel(SDPBackend.MATH):
        texts = [scorer.read_texts(text_batches([text], 1, CPU)[0]) for text in work.texts]
        for image_id in work.ids:
            image = scorer.read_image(work.images.batch([image_id]).to(CPU))
            for text in texts:
                scorer.match(text, image)
    return counter.get_total_flops()


def run_variant(
    variant: str, official: Path | None, rounds: int, work: Work, folder: Path
) -> tuple[nn.Module, float]:
    """Prints a variant's line; returns its model, and the CPU seconds of a pair."""
    case = CASES[variant]
    works: dict[str, Callable[[], Timing]] = {"gemm": products}
    peer: Apart | None = None
    config = replace(preset(case.preset), **case.changes)
    torch.manual_seed(0)
    if official is None:
        model: nn.Module = VARIANTS[variant].model(config)
    else:
        peer = Apart(partial(RETRIEVAL_PEERS[variant], official, work.of_peer(), folder))
        peer.step(False)
        model = load_reference(variant, folder / WEIGHTS, config)
        works["peer"] = partial(peer.step, False)
    scorer, scores = make_scorer(model.eval()), list[NDArray[np.float32]]()
    works["ours"] = partial(timed, lambda: scores.append(work.scores(scorer)))
    with unchanging_weights(RANKED_IMAGES * RANKED_TEXTS):
        timings = measure(works, rounds)
    line = speed_line(variant, work, timings, operations(scorer, work))
    if peer is not None:
        peer.close()
        line |= agreement(scores[-1], np.load(folder / SCORES))
    print(json.dumps(line), flush=True)
    return model, timings["ours"].cpu_s / work.pairs


def speed_line(
    variant: str, work: Work, timings: dict[str, Timing], flops: float
) -> dict[str, object]:
    """Pairs per CPU second, beside the official code's and the product's."""
    case, ours, peer = CASES[variant], timings["ours"].cpu_s, timings.get("peer")
    rate = PRODUCT_OPERATIONS / timings["gemm"].cpu_s
    ratio = None if peer is None else peer.cpu_s / ours
    fraction = flops / ours / rate
    bar, reached = case.times_peer, ratio
    if bar is None:
        bar, reached = case.of_limit, fraction
    return result_line(
        f"retrieval/{variant}/pairs",
        round(work.pairs / ours, 3),
        "pairs/CPU s",
        peer=peer and round(work.pairs / peer.cpu_s, 3),
        ratio=ratio and round(ratio, 3),
        limit=round(rate * work.pairs / flops, 3),
        fraction_of_limit=round(fraction, 3),
        bar=bar,
        bar_passed=None if reached is None or bar is None else reached >= bar,
        gemm_gflops=round(rate / 1e9, 1),
        gflop_per_pair=round(flops / work.pairs / 1e9, 2),
        pairs=work.pairs,
        threads=torch.get_num_threads(),
    )


def agreement(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> dict[str, float]:
    """How far scores [I, T] of the same pairs differ, and whether they rank images alike."""
    ranks = [scores.argsort(0).argsort(0) for scores in (ours, theirs)]
    return {
        "equal_ranks": float((ranks[0] == ranks[1]).mean()),
        "largest_difference": float(np.abs(ours - theirs).max()),
        "spread_of_scores": float(theirs.std()),
    }


def cpu_seconds(work: Callable[[], object]) -> float:
    """The CPU seconds of the second time."""
    work()
    return timed(work).cpu_s


def whole_line(name: str, parts: dict[str, float], **more: object) -> None:
    """Prints the seconds from raw images and texts to ranks, and what they are made of."""
    print_line(
        f"retrieval/1000x5000/{name}",
        round(sum(parts.values()), 1),
        "CPU s, scaled from a part",
        parts={part: round(seconds, 1) for part, seconds in parts.items()},
        **more,
    )


def run_vlmo(model: Any, of_pair: float, work: Work, ranking: float) -> None:
    """Prints VLMo's seconds as dual encoder, with the best ranked again, and as fusion encoder."""
    assert isinstance(work.images, PixelImages)
    images = partial(image_vectors, model, work.ids, work.images, device=CPU, batch_size=BATCH)
    texts = partial(text_vectors, model, work.texts, device=CPU, batch_size=BATCH)
    of_image, of_text = cpu_seconds(images) / len(work.ids), cpu_seconds(texts) / len(work.texts)
    dual = {"pictures": RANKED_IMAGES * of_image, "texts": RANKED_TEXTS * of_text, "ranks": ranking}
    whole_line("vlmo-dual", dual)
    again = RERANK * (RANKED_IMAGES + RANKED_TEXTS)
    whole_line("vlmo-rerank", dual | {"pairs": again * of_pair}, rerank=RERANK)
    every = RANKED_IMAGES * RANKED_TEXTS
    whole_line("vlmo-fusion", {"pairs": every * of_pair, "ranks": ranking})


def run_regions(variant: str, arch: str, of_pair: float, ranking: float, folder: Path) -> None:
    """Prints the seconds of a model of regions, with those of its detector."""
    reader = ImageReader(write_images(folder / "to-detect", 1))
    data, detector = reader.read_bytes(0), open_detector(ARCHITECTURES[arch], None)
    assert data is not None
    detect = partial(extract_regions, "picture", bytes(data), detector, ExtractConfig())
    parts = {
        "detector": RANKED_IMAGES * timed(detect).cpu_s,
        "pairs": RANKED_IMAGES * RANKED_TEXTS * of_pair,
        "ranks": ranking,
    }
    whole_line(f"{variant}-with-detector", parts, detector=arch)


def run_ranking() -> float:
    """Prints the product of all vectors beside FAISS; returns the seconds of product and ranks."""
    import faiss  # its threads come after torch's

    faiss.omp_set_num_threads(torch.get_num_threads())
    rng = np.random.default_rng(0)
    images, texts = (
        rng.standard_normal((count, WIDTH), dtype=np.float32)
        for count in (RANKED_IMAGES, RANKED_TEXTS)
    )
    owners = np.arange(RANKED_TEXTS) % RANKED_IMAGES
    product = cpu_seconds(lambda: images @ texts.T)
    scores = images @ texts.T
    ranks = cpu_seconds(lambda: retrieval_metrics(scores, owners))
    both = faiss.IndexFlatIP(WIDTH), faiss.IndexFlatIP(WIDTH)
    both[0].add(images)
    both[1].add(texts)
    peer = cpu_seconds(lambda: (both[0].search(texts, FIRST), both[1].search(images, FIRST)))
    print_line(
        "retrieval/1000x5000/vectors",
        round(product + ranks, 3),
        "CPU s",
        peer=round(peer, 3),
        ratio=round(peer / (product + ranks), 3),
        product_s=round(product, 3),
        ranks_s=round(ranks, 3),
        peer_is="FAISS IndexFlatIP, ten best of each query",
    )
    return product + ranks


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = new_parser(__doc__)
    add_choices(parser, "--variants", CASES)
    add_official(parser, RETRIEVAL_PEERS)
    parser.add_argument(
        "--arch",
        choices=ARCHITECTURES,
        default="r101",
        help="architecture of the detector (default: r101)",
    )
    sizes = (1, 2, 4, 8)
    add_counts(parser, rounds="rounds to measure; the median counts")
    parser.add_argument(
        "--captions", type=int, choices=sizes, metavar="N", help="number of captions: 1, 2, 4 or 8"
    )
    parser.add_argument(
        "--images", type=int, choices=sizes, metavar="N", help="number of images: 1, 2, 4 or 8"
    )
    options = parse_form(parser, argv, short=SHORT, full=FULL)
    keep_freed_memory()  # as train-vl does
    official, ranking = dict(options.official), run_ranking()
    captions, counts = (
        lengths[8 // number // 2 :: 8 // number]  # from the middle of each part
        for lengths, number in ((CAPTIONS, options.captions), (REGIONS, options.images))
    )
    detected = False
    for variant in options.variants:
        with tempfile.TemporaryDirectory(prefix="vlmill-retrieval-") as scratch:
            folder = Path(scratch)
            work = make_work(CASES[variant], captions, counts, folder)
            model, of_pair = run_variant(
                variant, official.get(variant), options.rounds, work, folder
            )
            if isinstance(work.images, PixelImages):
                run_vlmo(model, of_pair, work, ranking)
            elif not detected:
                run_regions(variant, options.arch, of_pair, ranking, folder)
                detected = True


if __name__ == "__main__":
    main()
