"""Defines the limits of a service, and the flags that set them."""

import argparse
import os
import re
from dataclasses import dataclass
from pathlib import Path

from vlmill.runtime.console.command import make_options
from vlmill.schemas.errors import InputError

MEBIBYTE = 2**20
TOKEN = re.compile(r"[!-~]{8,512}")  # characters that need no quotes in a header
NAME_FLAGS = ("classes", "attributes")


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Holds the address and the limits of a service."""

    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = None  # the token that a request must send
    max_bytes: int = 32 * MEBIBYTE  # of a request's body
    max_images: int = 32  # of a request
    max_connections: int = 512
    queue: int = 256  # images, or questions, that wait for a worker
    batch: int = 1  # items in a batch for a worker, or its weight
    batch_seconds: float | None = None  # that a batch may take, as estimated; None: any
    batch_wait: float = 0.004  # seconds until a batch that is not full goes to an idle worker
    seconds: float = 60.0  # from the end of a request's headers to the end of its answer
    header_seconds: float = 10.0  # for the headers only
    allow_urls: bool = False
    contact: str | None = None  # how site owners reach the operator of the service
    allowed_addresses: tuple[str, ...] = ()  # private networks that URLs may lead to: for tests

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_images", "max_connections", "queue", "batch"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"--{format_flag(name)} {getattr(self, name)}: expected at least 1"
                )
        for name in ("seconds", "header_seconds"):
            if getattr(self, name) <= 0:
                raise InputError(f"--{format_flag(name)} {getattr(self, name)}: must be above 0")
        if self.batch_wait < 0:
            raise InputError(f"--batch-wait {1_000 * self.batch_wait:g}: expected 0 or more")
        if self.max_images > self.queue:
            raise InputError(
                f"--queue {self.queue}: must be at least the images of a request, --max-images "
                f"{self.max_images}"
            )
        if not 0 <= self.port < 65_536:
            raise InputError(f"--port {self.port}: give 0 (any free one) to 65535")
        if self.allow_urls and self.contact is None:
            raise InputError(
                "--allow-urls: give --contact too, an e-mail address or a URL that site owners can "
                "write to"
            )

    @property
    def bytes_in_flight(self) -> int:
        """Returns the maximum bytes of bodies, or of their images, of all requests together.

        Parsers hold up to twice ``max_bytes`` more, and the parsed texts.
        """
        return 14 * self.max_bytes


def format_flag(name: str) -> str:
    """Spells a field as the flag that sets it."""
    return name.replace("_", "-")


def add_service_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of :class:`ServiceSettings`."""
    usual = ServiceSettings()
    add = parser.add_argument_group("serving").add_argument
    add(
        "--host",
        default=usual.host,
        help="address to listen on (default: %(default)s, reachable from this machine only)",
    )
    add(
        "--port",
        type=int,
        default=usual.port,
        help="port to listen on; 0: any free port (default: %(default)s)",
    )
    add(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the token that every request must send (default: the variable "
        "VLMILL_TOKEN; without either, no token is needed)",
    )
    add("--allow-urls", action="store_true", help="download images that requests name by URL")
    add(
        "--contact",
        metavar="ADDRESS",
        help="e-mail address or URL for site owners (needed with --allow-urls)",
    )
    add("--allow-address", action="append", default=[], metavar="CIDR", help=argparse.SUPPRESS)
    add = parser.add_argument_group("limits").add_argument
    add(
        "--max-bytes",
        type=int,
        default=usual.max_bytes,
        metavar="N",
        help="largest request body in bytes; the memory for all requests is 16 times this "
        "size, plus 96 MiB for texts (default: %(default)s)",
    )
    add(
        "--max-images",
        type=int,
        default=usual.max_images,
        metavar="N",
        help="largest number of images in a request (default: %(default)s)",
    )
    add(
        "--max-connections",
        type=int,
        default=usual.max_connections,
        metavar="N",
        help="largest number of open connections; beyond it idle ones are closed, and if "
        "all have requests the response is 503 (default: %(default)s)",
    )
    add(
        "--queue",
        type=int,
        default=usual.queue,
        metavar="N",
        help="largest number of waiting images; further requests get 429 (default: %(default)s)",
    )
    add(
        "--batch-wait",
        type=float,
        default=1_000 * usual.batch_wait,
        metavar="MS",
        help="time in milliseconds that a batch waits for more requests (default: %(default)g)",
    )
    add(
        "--seconds",
        type=float,
        default=usual.seconds,
        metavar="S",
        help="time limit of a request in seconds, including waiting; a request that would "
        "exceed it gets 429 (default: %(default)g)",
    )


def add_name_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the names that a service's page shows."""
    names = parser.add_argument_group("names, for the page")
    for what in NAME_FLAGS:
        names.add_argument(
            f"--{what}", metavar="FILE", help=f"file with the names of all {what}, one per line"
        )


def read_name_lists(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Reads the flags of :func:`add_name_arguments`. Raises InputError."""
    from vlmill.runtime.readers.class_names import first_names

    return {what: first_names(getattr(arguments, what), f"--{what}") for what in NAME_FLAGS}


def read_service_settings(
    arguments: argparse.Namespace, *, batch: int, batch_seconds: float | None = None
) -> ServiceSettings:
    """Reads the flags of :func:`add_service_arguments`. Raises InputError."""
    return make_options(
        ServiceSettings,
        arguments,
        token=read_token(arguments.token_file),
        batch=batch,
        batch_seconds=batch_seconds,
        batch_wait=arguments.batch_wait / 1_000,
        header_seconds=min(ServiceSettings.header_seconds, arguments.seconds),
        allowed_addresses=tuple(arguments.allow_address),
    )


def read_token(file: Path | None) -> str | None:
    """Reads the token of a file, else of VLMILL_TOKEN; None without both. Raises InputError."""
    if file is None:
        text, where = os.environ.get("VLMILL_TOKEN"), "VLMILL_TOKEN"
        if text is None:
            return None
    else:
        where = f"--token-file {file}"
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise InputError(f"{where}: {error.strerror}; give a readable file") from None
    token = text.strip()
    if not token:
        raise InputError(f"{where} is empty; write a token to it, or remove it to require none")
    if not TOKEN.fullmatch(token):
        raise InputError(f"{where}: expected one word of 8 to 512 letters, digits or marks")
    return token
