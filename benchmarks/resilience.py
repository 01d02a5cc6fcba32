"""Measures overload, hostile images and kills in one run.

The measurements are those of other scripts, one after another, each in a process of its own:

- ``serve.py``: 64 clients for two minutes (requests/s, p50, p99, refused), 170 requests together,
  16 large bodies, 10,000 idle connections, ten kills of the worker;
- ``hostile_images.py``: the worst time and memory of hostile images, and 5,000 bad images with the
  memory of the job and of the process that decodes, before and after;
- ``tests/integration/test_kills.py``: kills of a crawl, each at another moment of its run; all must
  end with the outcomes of an undisturbed crawl.

    python benchmarks/resilience.py --full
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from shell import add_counts, new_parser, parse_form, print_line

SHORT = {"kills": 1}
FULL = {"kills": 10}
HERE = Path(__file__).parent
OVERLOAD_ONLY = ("--requests", "0", "--long", "0", "--r101", "0")


def run_script(name: str, *arguments: str) -> None:
    """Runs a benchmark, which prints its own lines. Raises CalledProcessError."""
    subprocess.run([sys.executable, str(HERE / name), *arguments], check=True)


def measure_crawl_kills(count: int) -> None:
    """Prints how many of ``count`` killed crawls ended like an undisturbed one.

    Raises CalledProcessError if pytest ran no test.
    """
    test = str(HERE.parent / "tests/integration/test_kills.py")
    options = ("-q", "-k", "crawl", "--kills", str(count), "--nightly", "-p", "no:cacheprovider")
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", test, *options],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        done.check_returncode()
    print_line(
        f"resilience/{count} kills of a crawl",
        count if done.returncode == 0 else 0,
        "equal to an undisturbed crawl",
        limit=count,
        seconds=round(time.perf_counter() - begin, 1),
        summary=done.stdout.strip().splitlines()[-1:],
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = new_parser(__doc__)
    add_counts(parser, kills="number of kills of a crawl")
    options = parse_form(parser, argv, short=SHORT, full=FULL)
    form = ("--full",) if options.full else ()
    run_script("serve.py", *form, *OVERLOAD_ONLY)
    run_script("hostile_images.py", *form)
    measure_crawl_kills(options.kills)


if __name__ == "__main__":
    main()
