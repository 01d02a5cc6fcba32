"""Measures the five models at base size on this CPU, compared with a matrix product.

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
own encoder without embeddings and heads. Norms of ViLBERT's and InterBERT's codes are apex's, which
is absent: ``peer_one_norm`` has PyTorch's in its place. Places to be guessed are drawn by the masks
of the recipes. ``left_out`` says which side does not compute what.

    python benchmarks/models.py
    python benchmarks/models.py --full --variants vilbert --official vilbert=../vilbert_beta
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
import torch.nn.functional as F
from peers.official_models import PEERS, WITH_APEX, Step, add_official
from peers.own_process import PRODUCT_OPERATIONS, Apart, Timing, measure, products, timed
from peers.works import PixelWork, RegionWork, mask_of, random_pixels, random_regions
from shell import add_choices, add_counts, new_parser, parse_form, result_line
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vlmill.models import VARIANTS, PixelInputs, VLInputs, preset
from vlmill.models.positions import find_read_positions
from vlmill.runtime.memory import keep_freed_memory
from vlmill.train.devices.throughput import operations_counter
from vlmill.train.objectives.contrast import contrast_and_matching
from vlmill.train.objectives.losses import mean_cross_entropy
from vlmill.train.optim.groups import make_optimizer
from vlmill.train.recipes import recipe_named
from vlmill.train.settings.parts import Optimizer

KINDS = get_args(get_type_hints(Optimizer)["kind"])
TINY_RATE = 1e-12  # of optimisers that are only timed
SHORT, FULL = {"rounds": 1}, {"rounds": 3}
Work = RegionWork | PixelWork


@dataclass(frozen=True, kw_only=True)
class Case:
    """A variant at its published base size, with the batch that the official code was timed on.

    What is to be guessed is drawn by the masking of ``recipe``. ``texts`` and ``rows`` are the
    lengths of the variable batch (rows of regions with that of the full image); the full batch
    has ``max_text`` and ``max_rows`` everywhere; to these sizes the official readers pad every
    batch, except where ``to_longest``.
    """

    preset: str
    recipe: str
    batch: int
    max_text: int
    max_rows: int = 0
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
        recipe="vilbert",
        batch=8,
        max_text=36,
        max_rows=37,
        texts=CAPTIONS,
        rows=(11, 15, 19, 24, 28, 33, 37, 37),
    ),
    "vl-bert": Case(
        preset="vl-bert-base",
        recipe="vl-bert",
        batch=8,
        max_text=20,
        max_rows=101,
        texts=(8, 12, 16, 19, 21, 24, 28, 32),
        rows=REGIONS,
        to_longest=True,
    ),
    "interbert": Case(
        preset="interbert-released",
        recipe="interbert-released",
        batch=8,
        max_text=36,
        max_rows=101,
        texts=CAPTIONS,
        rows=REGIONS,
    ),
    "imagebert": Case(
        preset="imagebert-base",
        recipe="imagebert",
        batch=8,
        max_text=20,
        max_rows=100,
        texts=CAPTIONS,
        rows=(*REGIONS[:-1], 100),
        to_longest=True,
    ),
    "vlmo": Case(
        preset="vlmo-base", recipe="vlmo-base", batch=4, max_text=40, texts=(12, 18, 25, 40)
    ),
}


def make_work(case: Case, texts: tuple[int, ...], rows: tuple[int, ...]) -> Work:
    """A batch of pairs of these lengths, padded as the official reader does."""
    masking = recipe_named(case.recipe).stages[-1].masking
    if not case.max_rows:
        return random_pixels(torch.tensor(texts), masking)
    size = None if case.to_longest else (case.max_text, case.max_rows)
    return random_regions(torch.tensor(texts), torch.tensor(rows), masking, size=size)


def region_step(model: Any, work: RegionWork, variant: str) -> Step:
    """A pretraining step of a variant that reads regions: all losses that it has."""
    tokens = mask_of(work.text_lengths, work.tokens.shape[1])
    regions = mask_of(work.region_lengths, work.features.shape[1])
    masked = work.masked_regions & regions
    guessed = work.word_labels >= 0
    read = find_read_positions(guessed, masked)
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
        terms = [F.cross_entropy(model.mlm_logits(words), labels)]
        logits = model.region_class_logits(hidden)
        if variant == "imagebert":
            terms.append(F.cross_entropy(logits, classes))
            terms.append(F.mse_loss(model.region_features(hidden), features))
        else:
            terms.append(F.cross_entropy(logits, targets))
        if variant != "vl-bert":  # which has no matching, in paper and code
            logit = model.match_logit(encoded.pooled)
            terms.append(F.binary_cross_entropy_with_logits(logit, belongs))
        return terms

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
        return [
            0.25 * words,
            out.contrast.loss,
            mean_cross_entropy(out.match_logits, out.match_classes),
        ]

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


def operations(model: nn.Module, work: Work, variant: str, backward: bool) -> int:
    """Useful operations of a batch: of each pair alone, without padding.

    VLMo's pairs are not alone, as each is a negative of others: its batch counts as it is run.
    """
    works: list[Work] = [work]
    if isinstance(work, RegionWork):
        works = [work.pair(at) for at in range(len(work.tokens))]
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


def record(name: str, batch: int, flops: float, timings: dict[str, Timing]) -> dict[str, object]:
    """Returns the line of a case whose batch takes ``flops`` useful operations."""
    rate, ours, peer = timings["gemm"], timings["ours"], timings.get("peer")
    one_norm = timings.get("peer_one_norm")
    limit = PRODUCT_OPERATIONS / rate.wall_s
    limit_cpu = PRODUCT_OPERATIONS / rate.cpu_s
    return result_line(
        name,
        round(batch / ours.wall_s, 3),
        "samples/s",
        peer=peer and round(batch / peer.wall_s, 3),
        ratio=peer and round(peer.wall_s / ours.wall_s, 3),
        ratio_by_cpu_seconds=peer and round(peer.cpu_s / ours.cpu_s, 3),
        peer_one_norm=one_norm and round(batch / one_norm.wall_s, 3),
        ratio_one_norm=one_norm and round(one_norm.wall_s / ours.wall_s, 3),
        ratio_one_norm_by_cpu_seconds=one_norm and round(one_norm.cpu_s / ours.cpu_s, 3),
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
        ours, peers = make_step(model, work, variant), peers_of(variant, official, work)
        works: dict[str, Callable[[], Timing]] = {
            "gemm": products,
            "ours": partial(timed, partial(ours, backward)),
        }
        works |= {peer: partial(apart.step, backward) for peer, apart in peers.items()}
        timings = measure(works, rounds)
        for apart in peers.values():
            apart.close()
        flops = operations(model, work, variant, backward)
        line = record(f"{variant}_{name}", case.batch, flops, timings)
        print(json.dumps(line | {"left_out": left_out(variant, peers)}), flush=True)
    if full:
        line = optimiser_share(variant, model, make_work(case, *equal), rounds)
        print(json.dumps(line), flush=True)


def peers_of(variant: str, official: Path | None, work: Work) -> dict[str, Apart]:
    """The variant's peers over the work, if there are any: ``peer``, and ``peer_one_norm`` with
    PyTorch's norm in the place of apex's.
    """
    if variant == "imagebert" and isinstance(work, RegionWork):
        return {"peer": Apart(partial(encoder_peer, work))}
    if official is None:
        return {}
    peers = {"peer": Apart(partial(PEERS[variant], official, work))}
    if variant in WITH_APEX:
        with_norm = partial(PEERS[variant], official, work, one_norm=True)
        peers["peer_one_norm"] = Apart(with_norm)
    return peers


def left_out(variant: str, peers: Collection[str]) -> dict[str, str]:
    """Says what either side does not compute, of heads and of the last layer."""
    heads = "heads where nothing is guessed"
    of_ours = heads if variant == "vlmo" else f"{heads}; the last layer's rows that no loss reads"
    of_peer = "embeddings and all heads" if variant == "imagebert" else "nothing"
    return {"ours": of_ours, "limit": of_ours} | dict.fromkeys(peers, of_peer)


def optimiser_share(variant: str, model: nn.Module, work: Work, rounds: int) -> dict[str, object]:
    """AdamW's step beside forward and backward: fused, and tensor by tensor in a few calls.

    Beside them the CPU seconds of each kind of optimiser that a recipe can name.
    """
    step = make_step(model, work, variant)
    grouped = torch.optim.AdamW(model.parameters(), lr=0.0, foreach=True)
    kinds = {
        kind: make_optimizer(model.named_parameters(), Optimizer(lr=TINY_RATE, kind=kind))
        for kind in KINDS
    }
    works: dict[str, Callable[[], object]] = {
        "ours": partial(step, True),
        "foreach": grouped.step,
        **{kind: optimizer.step for kind, optimizer in kinds.items()},
    }
    timings = measure({name: partial(timed, work) for name, work in works.items()}, rounds)
    fused = timings["adamw"]
    share = {name: timings[name].wall_s / timings["ours"].wall_s for name in ("adamw", "foreach")}
    return result_line(
        f"{variant}_optimiser",
        round(share["adamw"] / (1 + share["adamw"]), 3),
        "share of a step",
        peer=round(share["foreach"] / (1 + share["foreach"]), 3),
        ratio=round(timings["foreach"].wall_s / fused.wall_s, 3),
        seconds=round(fused.wall_s, 3),
        cpu_seconds={kind: round(timings[kind].cpu_s, 3) for kind in KINDS},
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = new_parser(__doc__)
    add_choices(parser, "--variants", CASES)
    add_official(parser, PEERS)
    add_counts(parser, rounds="rounds to measure; the median counts")
    options = parse_form(parser, argv, short=SHORT, full=FULL)
    keep_freed_memory()  # as train-vl does
    official = dict(options.official)
    for variant in options.variants:
        run_variant(variant, official.get(variant), options.rounds, full=options.full)


if __name__ == "__main__":
    main()
