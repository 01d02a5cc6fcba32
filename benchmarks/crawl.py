"""Speed of fetching: responses per CPU second of the guarded client beside others, and its memory.

50 hosts on loopback addresses, served by another process, show pictures of 100 KB. Each client
fetches the same list in a process of its own; seconds are that process's CPU seconds. ``peer`` is
img2dataset's downloader where --img2dataset names an interpreter that has it, else urllib3's pool.
``limit`` is a loop over bare sockets. Growth fetches 1, 4 and 16 times as many URLs; the peak of
resident memory counts.

    python -m venv /tmp/peer && /tmp/peer/bin/pip install img2dataset
    python benchmarks/crawl.py --full --img2dataset /tmp/peer/bin/python
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shell import parse_form, result_line
from worlds.host_server import MANY, Served, serve_site

SHORT = {"urls": 1_500, "rounds": 1, "growth": 4}
FULL = {"urls": 6_000, "rounds": 3, "growth": 16}
GROWTH = (1, 4, 16)
NUM_HOSTS = 50
FETCHERS = Path(__file__).parent / "peers" / "fetchers.py"


def write_urls(path: Path, served: Served, num_urls: int) -> Path:
    """Writes a list of pictures, one host after the other."""
    with path.open("w") as file:
        for number in range(num_urls):
            file.write(served.site.url(number % NUM_HOSTS, f"{MANY}{number}.jpg") + "\n")
    return path


def fetched(client: str, urls: Path, options: argparse.Namespace) -> dict[str, float]:
    """What a client's process says of the list. Raises RuntimeError where a URL failed."""
    python = options.img2dataset if client == "img2dataset" else sys.executable
    command = [python, str(FETCHERS), client, str(urls), str(options.connections)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if client != "img2dataset":
        env["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if figures["failed"]:
        raise RuntimeError(f"{client}: {figures['failed']:.0f} of the requests failed")
    return figures


def rates(urls: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The best of so many rounds of every client, ours last, with the others beside it."""
    clients = ["sockets", "urllib3", *(["img2dataset"] if options.img2dataset else []), "vlmill"]
    best: dict[str, dict[str, float]] = {}
    for _ in range(options.rounds):
        for client in clients:
            figures = fetched(client, urls, options)
            if client not in best or figures["cpu_s"] < best[client]["cpu_s"]:
                best[client] = figures
    rate = {client: best[client]["responses"] / best[client]["cpu_s"] for client in clients}
    peer = "img2dataset" if options.img2dataset else "urllib3"
    for client in clients:
        figures = best[client]
        more: dict[str, Any] = {
            "cpu_ms_per_response": round(1e3 / rate[client], 4),
            "responses_per_second": round(figures["responses"] / figures["wall_s"]),
            "peak_mb": round(figures["peak_mb"], 1),
        }
        if client == "vlmill":
            more |= {
                "peer": round(rate[peer]),
                "ratio": round(rate[client] / rate[peer], 2),
                "limit": round(rate["sockets"]),
                "fraction_of_limit": round(rate[client] / rate["sockets"], 3),
                "peer_name": peer,
            }
        yield result_line(f"fetch/{client}", round(rate[client]), "responses/CPU s", **more)


def growth(folder: Path, served: Served, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Peak memory of our client by the number of URLs."""
    first = None
    for times in (t for t in GROWTH if t <= options.growth):
        urls = write_urls(folder / f"{times}.txt", served, times * options.urls)
        figures = fetched("vlmill", urls, options)
        first = first or figures["peak_mb"]
        yield result_line(
            f"memory/{times}x",
            round(figures["peak_mb"], 1),
            "MB",
            urls=times * options.urls,
            of_first=round(figures["peak_mb"] / first, 3),
            cpu_ms_per_response=round(1e3 * figures["cpu_s"] / figures["responses"], 4),
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line of JSON for each result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--urls", type=int, help="URLs of the list, of the 1x of growth too")
    parser.add_argument("--rounds", type=int, help="rounds, of which the best counts")
    parser.add_argument("--growth", type=int, help="up to how many times the URLs: 1, 4 or 16")
    parser.add_argument("--connections", type=int, default=64, help="requests at once (64)")
    parser.add_argument("--img2dataset", metavar="PYTHON", help="an interpreter that has it")
    options = parse_form(parser, argv, short=SHORT, full=FULL)
    with tempfile.TemporaryDirectory() as folder, serve_site(None, NUM_HOSTS) as served:
        urls = write_urls(Path(folder) / "urls.txt", served, options.urls)
        for line in (*rates(urls, options), *growth(Path(folder), served, options)):
            print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
