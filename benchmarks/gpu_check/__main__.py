"""Checks a machine with a GPU: tests, rates and the extractor's and the trainer's speed, by parts.

Each part runs in a process of its own, prints one line of JSON when it ends, and is ended after
five minutes. A part that fails does not stop the others; the exit status is then 1.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence

from benchmarks.gpu_check.own_process import run_apart
from benchmarks.gpu_check.parts import LIMIT_S, PARTS, Part, share_of

EXAMPLES = """\
examples:
  python -m benchmarks.gpu_check --list                 the parts, and how long each takes
  python -m benchmarks.gpu_check > gpu.jsonl            all of them
  python -m benchmarks.gpu_check --share 1/4            a quarter; then 2/4 to 4/4: no call is long
  python -m benchmarks.gpu_check tests extract-fast     two of them
  python -m benchmarks.gpu_check --tiny --device cpu    all, at the size that the tests use

It needs torch, torchvision, numpy, pillow, pyarrow, accelerate, safetensors, tokenizers, jaxtyping
and pytest, from the root of a checkout; neither Apache Beam nor a network."""


def main(argv: Sequence[str] | None = None, parts: Mapping[str, Part] = PARTS) -> int:
    """Runs the parts that are asked for; 1 if one failed."""
    parser = command()
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.parts if name not in parts]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(parts)}")
    names = [name for name in parts if name in arguments.parts] if arguments.parts else list(parts)
    if arguments.share is not None:
        names = share_of({name: parts[name] for name in names}, *arguments.share)
    if arguments.list:
        print(*(f"{name:20} {parts[name].seconds:4} s" for name in names), sep="\n")
        return 0
    return run_parts({name: parts[name] for name in names}, options_of(arguments), arguments.limit)


def run_parts(parts: Mapping[str, Part], options: Sequence[str], limit_s: float) -> int:
    """Runs and prints; 1 if one failed."""
    failed = []
    for name, part in parts.items():
        print(f"# {name} (about {part.seconds} s on a GPU)", file=sys.stderr, flush=True)
        line = run_apart(name, part, options, limit_s)
        print(json.dumps(line), flush=True)
        if line["status"] != "ok":
            failed.append(name)
    if failed:
        print(f"# failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def options_of(arguments: argparse.Namespace) -> list[str]:
    """Returns what every part's process is told: the device, and the small size where there is no
    GPU.
    """
    device = arguments.device
    if device is None:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    tiny = arguments.tiny
    if not tiny and device == "cpu":
        print("# no GPU: at the small size, whose numbers mean nothing", file=sys.stderr)
        tiny = True
    return ["--device", device, *(["--tiny"] if tiny else [])]


def share(text: str) -> tuple[int, int]:
    """Reads ``1/3`` as its numbers."""
    matched = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if matched is None or int(matched[1]) > int(matched[2]):
        raise argparse.ArgumentTypeError(f"{text}: give 1/4, 2/4 or the like")
    return int(matched[1]), int(matched[2])


def command() -> argparse.ArgumentParser:
    """Declares the flags."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="parts to run (default: all; see --list)"
    )
    parser.add_argument("--list", action="store_true", help="print the parts and exit")
    parser.add_argument(
        "--share", type=share, metavar="N/M", help="run the N-th of M shares that take equally long"
    )
    parser.add_argument("--device", help="device (default: cuda if there is one, else cpu)")
    parser.add_argument(
        "--tiny", action="store_true", help="use the small sizes of the tests, as a CPU always does"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT_S,
        metavar="S",
        help="seconds after which a part is stopped (default: %(default)g)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
