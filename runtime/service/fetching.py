"""Fetches images that requests name by URL, never from internal addresses."""

from collections.abc import Sequence

from vlmill.runtime.net.addresses import parse_networks
from vlmill.runtime.net.client import Client
from vlmill.runtime.net.exchange import Answer, ClientSettings, Request
from vlmill.runtime.service.bodies import RequestImage
from vlmill.runtime.service.refusals import RequestRefused, bad_request
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.schemas.rejects import Reason

MOST_REDIRECTS = 3
SECONDS = 20.0


def client_settings(settings: ServiceSettings) -> ClientSettings:
    """Returns the HTTP client's settings for a service."""
    return ClientSettings(
        contact=settings.contact,
        connections=settings.max_images,
        connect_seconds=5.0,
        seconds=min(SECONDS, settings.seconds),
        max_bytes=settings.max_bytes,
        allowed=parse_networks("--allow-address", settings.allowed_addresses),
    )


def fetch_images(urls: Sequence[str], settings: ServiceSettings) -> list[RequestImage]:
    """Downloads the images simultaneously; redirects are followed by the same client.

    Raises RequestRefused for an image that is not available; its message names no private address.
    """
    contents: dict[int, bytes] = {}
    with Client(client_settings(settings)) as client:
        indices: dict[str, list[int]] = {}
        for index, url in enumerate(urls):
            indices.setdefault(url, []).append(index)
        # The open requests, the image of each, and its number of redirects.
        pending = {url: [(url, 0)] for url in indices}
        for url in indices:
            client.start(Request(url=url))
        total = 0
        while client.num_running:
            for answer in client.wait(timeout=1.0):
                for origin, redirects in pending.pop(answer.request.url):
                    if answer.failure is None and 300 <= answer.status < 400:
                        if answer.location is None or redirects == MOST_REDIRECTS:
                            raise bad_request(f"{origin[:200]}: too many redirects", "not_fetched")
                        if answer.location not in pending:
                            client.start(Request(url=answer.location))
                        pending.setdefault(answer.location, []).append((origin, redirects + 1))
                        continue
                    require_content(origin, answer)
                    total += len(answer.content)
                    if total > settings.max_bytes:
                        raise RequestRefused(
                            413, "too_large", f"over {settings.max_bytes} bytes downloaded"
                        )
                    contents |= dict.fromkeys(indices[origin], answer.content)
    return [RequestImage(name=url, content=contents[index]) for index, url in enumerate(urls)]


def require_content(url: str, answer: Answer) -> None:
    """Raises RequestRefused unless the response is complete and has status 200."""
    short = url[:200]
    if answer.failure in (Reason.BAD_ADDRESS, Reason.BAD_URL):
        raise bad_request(f"{short}: not a web address", "bad_address")
    if answer.failure is not None:
        raise bad_request(f"{short}: not downloaded ({answer.failure.value})", "not_fetched")
    if answer.status != 200:
        raise bad_request(f"{short}: response with status {answer.status}", "not_fetched")
