"""Trains a small image tokenizer and VLMo's first stage with it, on the generated world.

    python benchmarks/tokenizer.py
    python benchmarks/tokenizer.py --full --output build/tokenizer-full

BEiT's objective (arXiv:2106.08254, sec. 2.1) trains the discrete auto-encoder of its repository:
images are rebuilt from codes that are sampled by Gumbel's softmax, at a temperature that falls, and
the squared error is the loss; the divergence from equally likely tokens has the weight 0 of its
code. Then vlmo-images-base, narrowed, guesses the tokens of masked patches: the stage in which VLMo
sees images alone. Prints lines of JSON: the error on held-out images compared with that of their
mean colour, how many tokens are used, and the loss of masked patches at the end compared with the
entropy of the tokens, which is that of a guess without looking.

OUTPUT/tokenizer.safetensors serves as picture_tokenizer=FILE, OUTPUT/images as --init of the
second stage.
"""

import io
import math
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

# The products are small: threads cost twice the CPU time and save none.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from shell import add_counts, add_output, parse_form, print_line, print_lines, result_line
from torch import Tensor
from worlds import World, write_world

import vlmill
from vlmill.models.beit.dvae import Dvae, DvaeConfig
from vlmill.runtime.console.command import Parser, run_command
from vlmill.runtime.console.log import read_log
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import atomic_path
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import save_tensors
from vlmill.train.cli import main as train_vl

SHORT = {"images": 400, "tokenizer_steps": 300, "steps": 60}
FULL = {"images": 6_000, "tokenizer_steps": 3_000, "steps": 2_000}
SIDE = 64  # pixels of the tokenizer's input: 8 x 8 tokens, as many as the model has patches
BATCH = 32
WARM, COLD = 1.0, 0.5  # temperatures of the first and the last step
CONFIG = DvaeConfig(num_tokens=128, width=32, num_layers=3, codebook_width=32)
# The recipe of the stage on a narrow model of 8 x 8 patches.
NARROW = (
    *("model.width=96", "model.num_layers=4", "model.num_heads=4", "model.intermediate_width=384"),
    *("model.image_size=128", "feeding.image_size=128", f"feeding.token_size={SIDE}"),
    *("optimizer.warmup_steps=20", "batch_size=32", "precision=no", "workers=0", "log_every=10"),
    *("optimizer.lr=1e-3", "save_every=1000000"),
)
LAST_LINES = 5  # of the log, whose mean is the loss at the end


def run(arguments: Sequence[str]) -> int:
    """Trains the tokenizer and the stage, and prints the figures."""
    args = parse_form(parser(), arguments, short=SHORT, full=FULL)
    if args.images < 20:
        raise InputError(f"--images {args.images}: expected 20 or more; a twentieth is held out")
    world = args.output / "world"
    write_world(world, World(), pairs=args.images, held_out=2)
    held_out = max(10, args.images // 20)
    pixels = world_pixels(world)
    model = train_tokenizer(pixels[held_out:], args.tokenizer_steps)
    weights = args.output / "tokenizer.safetensors"
    with atomic_path(weights) as temporary:
        save_tensors(model.state_dict(), temporary)
    print_lines(tokenizer_lines(model, pixels[:held_out]))
    words = ["pretrain", "vlmo-images-base", "--images", str(world), "--fresh"]
    words += ["--output", str(args.output / "images"), *NARROW, f"steps={args.steps}"]
    with redirect_stdout(sys.stderr):  # lines of JSON alone go to the other
        status = train_vl([*words, f"picture_tokenizer={weights}"])
    if status:
        return status
    losses = [line["loss/mim"] for line in read_log(args.output / "images" / "log.jsonl")]
    blind = entropy(model.tokens(pixels))
    value = float(np.mean(losses[-LAST_LINES:]))
    print_line("masked patches", value, "nats", peer=blind, ratio=value / blind)
    return 0


def world_pixels(folder: Path) -> Tensor:
    """Reads a world's images at the tokenizer's size, normalised as it takes them."""
    planes = []
    for content in vlmill.open_table(folder, "images").to_table(columns=["bytes"])["bytes"]:
        image = Image.open(io.BytesIO(content.as_py())).convert("RGB").resize((SIDE, SIDE))
        planes.append(np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1)
    return torch.from_numpy(np.stack(planes))


def train_tokenizer(pixels: Tensor, steps: int) -> Dvae:
    """Trains an auto-encoder on images, by BEiT's objective."""
    torch.manual_seed(0)
    model = Dvae(CONFIG).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with Progress(total=steps, unit="step", label="tokenizer") as progress:
        for step in range(steps):
            rows = torch.randint(len(pixels), (BATCH,))
            temperature = WARM * (COLD / WARM) ** (step / steps)
            loss = F.mse_loss(model.reconstruct(pixels[rows], temperature), pixels[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            progress.advance(loss=f"{loss.item():.4f}")
    return model.eval()


@torch.no_grad()
def tokenizer_lines(model: Dvae, pixels: Tensor) -> list[dict[str, object]]:
    """Measures the error of images rebuilt from their likeliest tokens, and the tokens used."""
    tokens = model.tokens(pixels)
    error = F.mse_loss(model.decode(tokens), pixels).item()
    flat = F.mse_loss(pixels.mean((2, 3), keepdim=True).expand_as(pixels), pixels).item()
    used = len(set(tokens.flatten().tolist()))
    limit = model.config.num_tokens
    return [
        result_line("rebuilt images", error, "squared error", peer=flat, ratio=error / flat),
        result_line("tokens used", used, "tokens", limit=limit, fraction_of_limit=used / limit),
    ]


def entropy(tokens: Tensor) -> float:
    """Returns the entropy of tokens in nats: the loss of a guess by frequency alone."""
    shares: list[float] = (torch.bincount(tokens.flatten()) / tokens.numel()).tolist()
    return -sum(share * math.log(share) for share in shares if share)


def parser() -> Parser:
    """Returns the parser of the flags that do not depend on the form."""
    p = Parser(prog="python benchmarks/tokenizer.py", description=__doc__)
    add_output(p, "build/tokenizer")
    add_counts(
        p,
        images="images of the generated world to train on",
        tokenizer_steps="training steps of the tokenizer",
        steps="training steps of VLMo's first stage",
    )
    return p


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
