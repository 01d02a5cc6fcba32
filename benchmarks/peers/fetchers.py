"""Fetches a list of URLs with one of several clients in a separate process, and times it.

``python benchmarks/peers/fetchers.py CLIENT FILE CONNECTIONS`` prints a line of JSON. ``vlmill`` is
our guarded client; ``urllib3`` its pool and threads, as one would write it; ``img2dataset`` its
downloader's function in its downloader's pool, run by an interpreter that has it; ``sockets`` the
least that Python can do: a kept connection to each host, a request, and the bytes thrown away.
"""

import io
import ipaddress
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from urllib.parse import urlsplit

Fetch = Callable[[Iterator[str], int], Iterator[int]]
"""Takes URLs and how many at once; yields the bytes of each body, 0 for a failure."""


def by_vlmill(urls: Iterator[str], connections: int) -> Iterator[int]:
    """Fetches by our client."""
    from vlmill.runtime.net.client import Client
    from vlmill.runtime.net.exchange import ClientSettings, Request

    settings = ClientSettings(
        contact="benchmark@example.org",
        connections=connections,
        allowed=(ipaddress.ip_network("127.0.0.0/8"),),
    )
    with Client(settings) as client:
        url = next(urls, None)
        while url is not None or client.num_running:
            while url is not None and client.num_free:
                client.start(Request(url=url))
                url = next(urls, None)
            for answer in client.wait(1.0):
                yield len(answer.content) if answer.status == 200 else 0


def by_urllib3(urls: Iterator[str], connections: int) -> Iterator[int]:
    """Fetches by urllib3's pool."""
    import urllib3

    manager = urllib3.PoolManager(num_pools=1_000, maxsize=connections, retries=False)

    def fetch(url: str) -> int:
        response = manager.request("GET", url, preload_content=False, timeout=60)
        body = response.read(32 << 20)
        response.release_conn()
        return len(body) if response.status == 200 else 0

    with ThreadPool(connections) as pool:
        yield from pool.imap_unordered(fetch, urls)


def by_img2dataset(urls: Iterator[str], connections: int) -> Iterator[int]:
    """Fetches by what img2dataset 1.47.0 calls, as its Downloader calls it."""
    from img2dataset.downloader import download_image_with_retry

    directives = ["noai", "noimageai", "noindex", "noimageindex"]

    def fetch(row: tuple[int, str]) -> tuple[int, io.BytesIO | None, str | None]:
        answer: tuple[int, io.BytesIO | None, str | None] = download_image_with_retry(
            row,
            timeout=10,
            retries=0,
            user_agent_token=None,
            disallowed_header_directives=directives,
        )
        return answer

    with ThreadPool(connections) as pool:
        for _, stream, _ in pool.imap_unordered(fetch, enumerate(urls)):
            yield len(stream.getbuffer()) if stream else 0


def by_sockets(urls: Iterator[str], connections: int) -> Iterator[int]:
    """Fetches one after the other; knows nothing but a length in the first bytes."""
    open_sockets: dict[str, socket.socket] = {}
    buffer = memoryview(bytearray(1 << 20))
    for url in urls:
        parts = urlsplit(url)
        if parts.netloc not in open_sockets:
            open_sockets[parts.netloc] = socket.create_connection(
                (parts.hostname or "", parts.port or 80)
            )
        one = open_sockets[parts.netloc]
        one.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        num = one.recv_into(buffer)
        head = bytes(buffer[:num]).partition(b"\r\n\r\n")[0]
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        left = length + len(head) + 4 - num
        if left:
            one.recv_into(buffer, left, socket.MSG_WAITALL)
        yield length
    for one in open_sockets.values():
        one.close()


CLIENTS: dict[str, Fetch] = {
    "vlmill": by_vlmill,
    "urllib3": by_urllib3,
    "img2dataset": by_img2dataset,
    "sockets": by_sockets,
}


def peak_mb() -> float:
    """The peak of this process's resident memory; getrusage's may be that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1_024


def main(client: str, file: str, connections: int) -> None:
    """Prints what fetching the URLs of ``file`` cost, imports left out."""
    fetch = CLIENTS[client]
    with Path(file).open() as lines:
        urls = (line.strip() for line in lines)
        sizes = fetch(urls, connections)
        first = next(sizes)  # with it, what is imported and started
        started, cpu_started = time.perf_counter(), time.process_time()
        num_fetched, num_bytes, num_failed = 0, 0, int(first == 0)
        for size in sizes:
            num_fetched += 1
            num_bytes += size
            num_failed += size == 0
    figures = {
        "responses": num_fetched,
        "failed": num_failed,
        "megabytes": num_bytes / 1e6,
        "cpu_s": time.process_time() - cpu_started,
        "wall_s": time.perf_counter() - started,
        "peak_mb": peak_mb(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
