"""Speed of the five models at base size on this CPU, beside the rate of a matrix product.

For each variant a line of JSON for forward and backward of a pretraining step (training mode,
dropout on, all its objectives, no optimiser), and with --full one for the forward pass, one for
both at variable lengths and one for the optimiser's step; without it batches are half as large.
``limit`` is what the rate of a 2048 x 768 x 3072 float32 product, measured in turn with the model,
would give for the useful operations: those of each pair by itself, without padding, with heads and
most of the last layer where labels are. Fractions by CPU seconds hold on a busy machine too, if
waiting threads sleep (OMP_WAIT_POLICY=PASSIVE, as `make bench` has it); on an idle one steps are
faster where they spin a little, as they do by themselves.
``peer`` is the official code on the same batch, in a process of its own, where a checkout of it is
given (benchmarks/peers/official_models.py says which), and for ImageBERT, which has none, PyTorch's
own encoder without embeddings and heads.

    python benchmarks/models.py
    python benchmarks/models.py --full --variants vilbert --official vilbert=../vilbert_beta
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from peers.apart import Apart, Timing, timed
from peers.official_models import (
    PEERS,
    PixelWork,
    RegionWork,
    Step,
    mask_of,
    random_pixels,
    random_regions,
)
from shell import parse_form, result_line
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vlmill.models import VARIANTS, PixelInputs, VLInputs, preset
from vlmill.models.places import cells_read
from vlmill.schemas.console.memory import keep_freed_memory
from vlmill.train.devices.throughput import operations_counter
from vlmill.train.objectives.contrast import contrast_and_matching, matching_loss

GEMMS, GEMM_FLOPS = 16, 2 * 2048 * 768 * 3072
SHORT, FULL = {"rounds": 1}, {"rounds": 3}
Work = RegionWork | PixelWork


@dataclass(frozen=True, kw_only=True)
class Case:
    """A variant at its published base size, with the batch that the official code was timed on.

    ``words`` and ``masked`` regions are to be guessed in each pair. ``texts`` and ``rows`` are the
    lengths of the variable batch (rows of regions with that of the whole picture); the full batch
    has ``max_text`` and ``max_rows`` everywhere; to these sizes the official readers pad every
    batch, except where ``to_longest``.
    """

    preset: str
    batch: int
    max_text: int
    words: int
    max_rows: int = 0
    masked: int = 0
    texts: tuple[int, ...]
    rows: tuple[int, ...] = ()
    to_longest: bool = False

    def halved(self) -> "Case":
        """Returns the case with every second pair of its batch."""
        return replace(self, batch=self.batch // 2, texts=self.texts[::2], rows=self.rows[::2])


# Captions of about 14 tokens of 36, as Conceptual Captions has them; 10 to 36 or 100 regions.
CAPTIONS = (9, 11, 12, 13, 14, 15, 18, 23)
REGIONS = (11, 16, 22, 31, 47, 68, 93, 101)
CASES = {
    "vilbert": Case(
        preset="vilbert-released",
        batch=8,
        max_text=36,
        words=5,
        max_rows=37,
        masked=5,
        texts=CAPTIONS,
        rows=(11, 15, 19, 24, 28, 33, 37, 37),
    ),
    "vl-bert": Case(
        preset="vl-bert-base",
        batch=8,
        max_text=20,
        words=3,
        max_rows=101,
        masked=15,
        texts=(8, 12, 16, 19, 21, 24, 28, 32),
        rows=REGIONS,
        to_longest=True,
    ),
    "interbert": Case(
        preset="interbert-released",
        batch=8,
        max_text=36,
        words=7,
        max_rows=101,
        masked=17,
        texts=CAPTIONS,
        rows=REGIONS,
    ),
    "imagebert": Case(
        preset="imagebert-base",
        batch=8,
        max_text=20,
        words=3,
        max_rows=100,
        masked=15,
        texts=CAPTIONS,
        rows=(*REGIONS[:-1], 100),
        to_longest=True,
    ),
    "vlmo": Case(preset="vlmo-base", batch=4, max_text=40, words=3, texts=(12, 18, 25, 40)),
}


def make_work(
    case: Case, texts: tuple[int, ...], rows: tuple[int, ...], *, padded: bool = True
) -> Work:
    """A batch of pairs of these lengths, regions ``padded`` as the official reader does."""
    if not case.max_rows:
        return random_pixels(len(texts), torch.tensor(texts), words=case.words)
    return random_regions(
        torch.tensor(texts),
        torch.tensor(rows),
        size=(case.max_text, case.max_rows) if padded and not case.to_longest else None,
        words=case.words,
        # The shortest list has fewer regions than are masked in a long one.
        masked=min(case.masked, min(rows) - 1),
    )


def region_step(model: Any, work: RegionWork, variant: str) -> Step:
    """A pretraining step of a variant that reads regions: all losses that it has."""
    tokens = mask_of(work.text_lengths, work.tokens.shape[1])
    regions = mask_of(work.region_lengths, work.features.shape[1])
    masked = work.masked_regions & regions
    guessed = work.word_labels >= 0
    read = cells_read(guessed, masked)
    inputs = VLInputs(
        tokens=work.tokens,
        token_mask=tokens,
        region_features=work.features,
        region_locations=work.locations,
        region_mask=regions,
        masked_regions=masked if variant == "vl-bert" else None,
        read_tokens=read.text,
        read_regions=read.regions,
    )
    labels, targets = work.word_labels[guessed], work.targets[masked]
    features, classes = work.features[masked], targets[:, 1:].argmax(-1)
    belongs = (work.mismatched == 0).float()

    def losses() -> list[Tensor]:
        encoded = model(inputs)
        words, hidden = encoded.text[guessed], encoded.regions[masked]
        found = [F.cross_entropy(model.mlm_logits(words), labels)]
        logits = model.region_class_logits(hidden)
        if variant == "imagebert":
            found.append(F.cross_entropy(logits, classes))
            found.append(F.mse_loss(model.region_features(hidden), features))
        else:
            found.append(F.cross_entropy(logits, targets))
        if variant != "vl-bert":  # which has no matching, in paper and code
            logit = model.match_logit(encoded.pooled)
            found.append(F.binary_cross_entropy_with_logits(logit, belongs))
        return found

    return _step(model, losses)


def pixel_step(model: Any, work: PixelWork) -> Step:
    """A pretraining step of VLMo: contrast, matching with hard negatives, masked words."""
    inputs = PixelInputs(
        tokens=work.tokens,
        token_mask=mask_of(work.text_lengths, work.tokens.shape[1]),
        pixels=work.pixels,
    )
    guessed = work.word_labels >= 0
    labels = work.word_labels[guessed]

    def losses() -> list[Tensor]:
        out = contrast_and_matching(model, inputs, work.masked_tokens)
        words = F.cross_entropy(model.mlm_logits(out.masked_text[guessed]), labels)
        return [0.25 * words, out.contrast.loss, matching_loss(out.match_logits)]

    return _step(model, losses)


def _step(model: nn.Module, losses: Callable[[], list[Tensor]]) -> Step:
    def step(backward: bool) -> None:
        model.train(backward)
        model.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(backward):
            total = torch.stack(losses()).sum()
            if backward:
                total.backward()  # type: ignore[no-untyped-call]

    return step


def make_step(model: nn.Module, work: Work, variant: str) -> Step:
    """The variant's step over the work."""
    if isinstance(work, PixelWork):
        return pixel_step(model, work)
    return region_step(model, work, variant)


def encoder_peer(work: RegionWork) -> tuple[nn.Module, Step]:
    """PyTorch's encoder of ImageBERT's size over as many positions, nothing around it."""
    layer = nn.TransformerEncoderLayer(
        768, 12, dim_feedforward=3072, dropout=0.1, activation="gelu", batch_first=True
    )
    model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    texts = mask_of(work.text_lengths, work.tokens.shape[1])
    padding = ~torch.cat([texts, mask_of(work.region_lengths, work.features.shape[1])], dim=1)
    hidden = torch.randn(*padding.shape, 768)
    return model, _step(
        model, lambda: [model(hidden, src_key_padding_mask=padding).square().mean()]
    )


def operations(model: nn.Module, case: Case, variant: str, lengths: Any, backward: bool) -> int:
    """Useful operations of a batch: of each pair alone, without padding.

    VLMo's pairs are not alone, as each is a negative of others: its batch counts as it is run.
    """
    texts, rows = lengths
    pairs = list(zip(texts, rows or texts, strict=True))
    works = [make_work(case, (text,), (row,), padded=False) for text, row in pairs]
    if variant == "vlmo":
        works = [make_work(case, texts, rows)]
    total = 0
    # The counter follows what requires a gradient into modules, also where none is taken, and fails
    # on a parameter that is an argument there, as InterBERT's segment is.
    model.requires_grad_(backward)
    for work in works:
        counter = operations_counter()
        # The fused attention kernel of the CPU is not in the counter's list.
        with counter, sdpa_kernel(SDPBackend.MATH):
            make_step(model, work, variant)(backward)
        total += counter.get_total_flops()
    model.requires_grad_(True)
    return total


def measure(works: Mapping[str, Callable[[], Timing]], rounds: int) -> dict[str, Timing]:
    """Medians of the works, taken in turn, so that a busy spell meets all; the first is warm-up."""
    measured: dict[str, list[Timing]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            timing = work()
            if number:
                measured[name].append(timing)
    return {
        name: Timing(
            wall_s=median(one.wall_s for one in timings), cpu_s=median(one.cpu_s for one in timings)
        )
        for name, timings in measured.items()
    }


def gemm() -> None:
    """The products that the rate is taken from."""
    for _ in range(GEMMS):
        LEFT @ RIGHT


LEFT, RIGHT = torch.randn(2048, 768), torch.randn(768, 3072)


def record(name: str, batch: int, flops: float, timings: dict[str, Timing]) -> dict[str, object]:
    """Returns the line of a case whose batch takes ``flops`` useful operations."""
    rate, ours, peer = timings["gemm"], timings["ours"], timings.get("peer")
    limit = GEMMS * GEMM_FLOPS / rate.wall_s
    limit_cpu = GEMMS * GEMM_FLOPS / rate.cpu_s
    return result_line(
        name,
        round(batch / ours.wall_s, 3),
        "samples/s",
        peer=peer and round(batch / peer.wall_s, 3),
        ratio=peer and round(peer.wall_s / ours.wall_s, 3),
        ratio_by_cpu_seconds=peer and round(peer.cpu_s / ours.cpu_s, 3),
        limit=round(limit * batch / flops, 3),
        fraction_of_limit=round(flops / ours.wall_s / limit, 3),
        fraction_of_limit_by_cpu_seconds=round(flops / ours.cpu_s / limit_cpu, 3),
        gemm_gflops=round(limit / 1e9, 1),
        gflop_per_sample=round(flops / batch / 1e9, 2),
        batch_size=batch,
        threads=torch.get_num_threads(),
    )


def run_variant(variant: str, official: Path | None, rounds: int, *, full: bool) -> None:
    """Prints a variant's lines: all of them, or that of forward and backward on half the batch."""
    case = CASES[variant] if full else CASES[variant].halved()
    torch.manual_seed(0)
    model = VARIANTS[variant].model(preset(case.preset))
    equal = ((case.max_text,) * case.batch, (case.max_rows,) * case.batch if case.max_rows else ())
    variable = (case.texts, case.rows)
    for name, lengths, backward in (
        ("forward", equal, False),
        ("forward_backward", equal, True),
        ("forward_backward_variable", variable, True),
    ):
        if not full and name != "forward_backward":
            continue
        work = make_work(case, *lengths)
        ours, peer = make_step(model, work, variant), peer_of(variant, official, work)
        works: dict[str, Callable[[], Timing]] = {
            "gemm": partial(timed, gemm),
            "ours": partial(timed, partial(ours, backward)),
        }
        if peer is not None:
            works["peer"] = partial(peer.step, backward)
        timings = measure(works, rounds)
        if peer is not None:
            peer.close()
        flops = operations(model, case, variant, lengths, backward)
        print(json.dumps(record(f"{variant}_{name}", case.batch, flops, timings)), flush=True)
    if full:
        line = optimiser_share(variant, model, make_work(case, *equal), rounds)
        print(json.dumps(line), flush=True)


def peer_of(variant: str, official: Path | None, work: Work) -> Apart | None:
    """The variant's peer over the work, if there is one."""
    if variant == "imagebert" and isinstance(work, RegionWork):
        return Apart(partial(encoder_peer, work))
    return None if official is None else Apart(partial(PEERS[variant], official, work))


def optimiser_share(variant: str, model: nn.Module, work: Work, rounds: int) -> dict[str, object]:
    """AdamW's step beside forward and backward: fused, and tensor by tensor in a few calls."""
    step = make_step(model, work, variant)
    fused = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    grouped = torch.optim.AdamW(model.parameters(), lr=0.0, foreach=True)
    works: dict[str, Callable[[], object]] = {
        "ours": partial(step, True),
        "fused": fused.step,
        "foreach": grouped.step,
    }
    timings = measure({name: partial(timed, work) for name, work in works.items()}, rounds)
    share = {name: timings[name].wall_s / timings["ours"].wall_s for name in ("fused", "foreach")}
    return result_line(
        f"{variant}_optimiser",
        round(share["fused"] / (1 + share["fused"]), 3),
        "share of a step",
        peer=round(share["foreach"] / (1 + share["foreach"]), 3),
        ratio=round(timings["foreach"].wall_s / timings["fused"].wall_s, 3),
        seconds=round(timings["fused"].wall_s, 3),
    )


def official_checkout(text: str) -> tuple[str, Path]:
    """``VARIANT=DIR`` as a pair."""
    variant, _, folder = text.partition("=")
    if variant not in PEERS or not Path(folder).is_dir():
        raise argparse.ArgumentTypeError(
            f"{text}: want VARIANT=DIR with a variant of {', '.join(PEERS)} and a checkout's folder"
        )
    return variant, Path(folder).resolve()


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--variants", nargs="+", choices=CASES, default=list(CASES), help="to measure (all)"
    )
    parser.add_argument(
        "--official",
        nargs="*",
        type=official_checkout,
        default=[],
        metavar="VARIANT=DIR",
        help="checkouts of official codes, to be measured beside",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="of which the median counts")
    options = parse_form(parser, argv, short=SHORT, full=FULL)
    keep_freed_memory()  # as train-vl does
    official = dict(options.official)
    for variant in options.variants:
        run_variant(variant, official.get(variant), options.rounds, full=options.full)


if __name__ == "__main__":
    main()
