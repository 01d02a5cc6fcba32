"""TLS: certificates are judged by the name that was asked for, wherever it leads."""

import socket
import ssl
import threading
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest
from tests.runtime.net.servers import at_once, ok, sends, serving
from tests.runtime.net.test_client import fetch
from worlds.certificates import write_certificate

from vlmill.runtime.net.client import Client
from vlmill.runtime.net.exchange import Answer, ClientSettings, Request
from vlmill.schemas.rejects import Reason

SETTINGS = ClientSettings(
    contact="tests@example.org",
    connect_seconds=20.0,
    seconds=30.0,
    allowed=(ip_network("127.0.0.0/8"),),
    names=at_once(lambda host: ["127.0.0.1"]),
)


def ask(host: str, served: Path, trusted: Path | None) -> Answer:
    """The answer of a server with the certificate ``served`` to a client that trusts another."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(served)
    settings = replace(SETTINGS, ca_file=str(trusted) if trusted else None)
    with serving(sends(ok()), tls=context) as server, Client(settings) as client:
        (answer,) = fetch(client, [Request(url=f"https://{host}:{server.port}/")])
        return answer


def test_a_trusted_certificate_of_the_name(tmp_path: Path) -> None:
    path = write_certificate(tmp_path, ["a.test", "*.b.test"])
    for host in ("a.test", "A.Test", "x.b.test"):
        answer = ask(host, path, path)
        assert (answer.failure, answer.content, answer.address) == (None, b"hello", "127.0.0.1")


@pytest.mark.parametrize("host", ["b.test", "x.a.test", "127.0.0.1", "x.y.b.test"])
def test_a_trusted_certificate_of_another_name(host: str, tmp_path: Path) -> None:
    path = write_certificate(tmp_path, ["a.test", "*.b.test"])
    assert ask(host, path, path).failure is Reason.TLS_ERROR


def test_certificates_that_nobody_signed_or_that_have_ended(tmp_path: Path) -> None:
    path = write_certificate(tmp_path, ["a.test"])
    assert ask("a.test", path, None).failure is Reason.TLS_ERROR
    path = write_certificate(tmp_path, ["a.test"], days=-1)
    assert ask("a.test", path, path).failure is Reason.TLS_ERROR


def test_no_tls_at_all() -> None:
    def greet() -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"220 mail.example.org ESMTP\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server, Client(SETTINGS) as client:
        thread = threading.Thread(target=greet)
        thread.start()
        (answer,) = fetch(client, [Request(url=f"https://a.test:{server.getsockname()[1]}/")])
        thread.join()
        assert answer.failure is Reason.TLS_ERROR
