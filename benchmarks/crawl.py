"""Measures speed and memory of fetching by the guarded client and by a whole crawl, with peers.

Hosts on loopback addresses, served by another process, show images of 100 KB. Each client, over
TCP and over TLS, and each whole crawl takes the same list in a process of its own; seconds are
that process's CPU seconds, of whole crawls with imports, tables and report. ``peer`` is img2dataset
where --img2dataset names an interpreter that has it, else urllib3's pool. ``limit`` is a loop over
bare sockets. Pairs and images of a table are made beside img2dataset's, as received and at 256
pixels. Growth crawls 1, 4 and 16 times as many URLs; the peak of resident memory counts.
Lists are of one URL again and again, and of URLs of which none may be asked for.

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
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from shell import add_counts, new_parser, parse_form, result_line
from worlds.certificates import write_certificate
from worlds.host_kinds import KINDS
from worlds.host_server import MANY, Served, serve_site
from worlds.hosts import address

SHORT = {"urls": 1_000, "rounds": 1, "growth": 1, "lines": 10_000}
FULL = {"urls": 4_000, "rounds": 2, "growth": 16, "lines": 400_000}
GROWTH = (1, 4, 16)
NUM_HOSTS = len(KINDS) + 50  # those of a kind of their own are not asked
PEERS = Path(__file__).parent / "peers"


def write_urls(path: Path, served: Served, num_urls: int, scheme: str = "http") -> Path:
    """Writes a list of images, one plain host after the other, and a table with captions, .csv."""
    with path.open("w") as file, path.with_suffix(".csv").open("w") as table:
        table.write("url,caption\n")
        for number in range(num_urls):
            host = len(KINDS) + number % (NUM_HOSTS - len(KINDS))
            url = served.site.url(host, f"{MANY}{number}.jpg")
            url = f"{scheme}{url.removeprefix('http')}"
            file.write(f"{url}\n")
            table.write(f"{url},A view of the harbour of town {number} in the evening\n")
    return path


def ran(
    script: str, tool: str, *arguments: object, options: argparse.Namespace
) -> dict[str, float]:
    """The figures that a script of ``peers/`` prints of a tool, in a process of its own."""
    is_peer = tool.startswith("img2dataset")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if not is_peer:
        env["PYTHONPATH"] = os.pathsep.join(sys.path)
    python = options.img2dataset if is_peer else sys.executable
    command = [python, str(PEERS / script), tool, *map(str, arguments), str(options.connections)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{tool}: {done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def fetched(client: str, urls: Path, options: argparse.Namespace) -> dict[str, float]:
    """What a client's process says of the list. Raises RuntimeError where a URL failed."""
    figures = ran("fetchers.py", client, urls, options=options)
    if figures["failed"]:
        raise RuntimeError(f"{client}: {figures['failed']:.0f} of the requests failed")
    return figures


def rates(
    urls: Path, options: argparse.Namespace, name: str, limit: str
) -> Iterator[dict[str, Any]]:
    """The best of so many rounds of every client, ours last, with the others beside it."""
    peers = ["urllib3", *(["img2dataset"] if options.img2dataset else [])]
    clients = [*dict.fromkeys((limit, *peers)), "vlmill"]
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
                "limit": round(rate[limit]),
                "fraction_of_limit": round(rate[client] / rate[limit], 3),
                "peer_name": peer,
            }
        yield result_line(f"{name}/{client}", round(rate[client]), "responses/CPU s", **more)


def over_tls(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rates over TLS, whose limit is urllib3: the bare sockets know none."""
    names = [address(host) for host in range(NUM_HOSTS)]
    certificate = write_certificate(folder, names)
    os.environ["SSL_CERT_FILE"] = str(certificate)
    with serve_site(None, NUM_HOSTS, certificate) as served:
        urls = write_urls(folder / "tls.txt", served, options.urls, "https")
        yield from rates(urls, options, "tls", "urllib3")
    del os.environ["SSL_CERT_FILE"]


def crawled(tool: str, urls: Path, options: argparse.Namespace) -> dict[str, float]:
    """What a whole crawl of a list cost."""
    with tempfile.TemporaryDirectory(dir=urls.parent) as folder:
        return ran("crawls.py", tool, urls, Path(folder, "out"), options=options)


def whole(folder: Path, served: Served, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Whole crawls: of a table beside img2dataset in turns, and of more URLs."""
    urls, first = write_urls(folder / "1.txt", served, options.urls), 0.0
    for ending in ("", "-resized"):
        yield from _beside(ending, urls, options)
    for times in (t for t in GROWTH if t <= options.growth):
        urls = write_urls(folder / f"{times}.txt", served, times * options.urls)
        figures = crawled("vlmill", urls, options)
        first = first or figures["peak_mb"]
        more: dict[str, Any] = {"peak_of_first": round(figures["peak_mb"] / first, 3)}
        yield _line_of(f"crawl/vlmill/{times}x", figures, **more)


def _beside(ending: str, urls: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The best of so many rounds of pairs from a table, and of img2dataset's."""
    tools = [*(["img2dataset"] if options.img2dataset else []), "vlmill-pairs"]
    best: dict[str, dict[str, float]] = {}
    for _ in range(options.rounds):
        for tool in tools:
            figures = crawled(f"{tool}{ending}", urls, options)
            if tool not in best or figures["cpu_s"] < best[tool]["cpu_s"]:
                best[tool] = figures
    rate = {tool: figures["fetched"] / figures["cpu_s"] for tool, figures in best.items()}
    for tool, figures in best.items():
        more: dict[str, Any] = {}
        if tool == "vlmill-pairs" and options.img2dataset:
            peer = rate["img2dataset"]
            more = {"peer": round(peer), "ratio": round(rate[tool] / peer, 2)}
        yield _line_of(f"crawl/{tool}{ending}", figures, **more)


def _line_of(name: str, figures: dict[str, float], **more: Any) -> dict[str, Any]:
    return result_line(
        name,
        round(figures["fetched"] / figures["cpu_s"]),
        "URLs/CPU s",
        urls=round(figures["fetched"]),
        cpu_s=round(figures["cpu_s"], 2),
        peak_mb=round(figures["peak_mb"], 1),
        **more,
    )


def lists(folder: Path, served: Served, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Whole crawls of long lists: of one URL, and of as many on hosts inside, which nobody asks."""
    one = served.site.url(len(KINDS), f"{MANY}1.jpg")
    inside = (f"http://10.{n % 4}.{n % 250}.1/images/{n}.jpg" for n in range(options.lines))
    more = options.lines * 5 // 2
    for name, count, urls in (
        ("duplicates", more, repeat(one, more)),
        ("lines", options.lines, inside),
    ):
        path = folder / f"{name}.txt"
        with path.open("w") as file:
            file.writelines(f"{url}\n" for url in urls)
        figures = crawled("vlmill", path, options)
        yield result_line(
            f"list/{name}",
            round(count / figures["cpu_s"]),
            "lines/CPU s",
            lines=count,
            cpu_s=round(figures["cpu_s"], 2),
            peak_mb=round(figures["peak_mb"], 1),
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line of JSON for each result."""
    parser = new_parser(__doc__)
    add_counts(
        parser,
        urls="number of URLs in the list, and of the smallest list of --growth",
        rounds="rounds to measure; the best counts",
        growth="largest multiple of --urls to measure: 1, 4 or 16",
        lines="lines of a long list; it has 2.5 times as many duplicates",
        connections=(64, "simultaneous requests"),
    )
    parser.add_argument(
        "--img2dataset", metavar="PYTHON", help="Python interpreter that has img2dataset"
    )
    options = parse_form(parser, argv, short=SHORT, full=FULL)
    with tempfile.TemporaryDirectory() as name, serve_site(None, NUM_HOSTS) as served:
        folder = Path(name)
        urls = write_urls(folder / "urls.txt", served, options.urls)
        for line in chain(
            rates(urls, options, "fetch", "sockets"),
            over_tls(folder, options),
            whole(folder, served, options),
            lists(folder, served, options),
        ):
            print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
