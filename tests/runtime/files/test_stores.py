"""A store that fails: what is tried again, and what the user is told in one line."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.object_stores import forget_stores, names_below

from vlmill.runtime.console.command import run_command
from vlmill.runtime.files.atomic import atomic_path, write_text
from vlmill.runtime.files.lock import lock_output
from vlmill.runtime.files.paths import matches, to_path
from vlmill.runtime.files.reading import find_shards
from vlmill.runtime.files.stores import PATIENCE, retry_request
from vlmill.schemas.errors import InputError, StoreFailed
from vlmill.schemas.tables import PAIRS

SIZE = 100


@contextmanager
def failing(
    monkeypatch: pytest.MonkeyPatch, s3: dict[str, str], *answers: str, patience: str = "2"
) -> Iterator[None]:
    """An S3 whose first answers are these ("500", "cut"), and the last one of them ever after."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"x" * SIZE
            kind = "whole" if self.command == "HEAD" else left.pop(0) if left[1:] else left[0]
            self.send_response(500 if kind == "500" else 200)
            self.send_header("Content-Length", str(SIZE))
            self.send_header("ETag", '"e"')
            self.send_header("Last-Modified", "Mon, 23 Nov 2026 05:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: SIZE // 2] if kind == "cut" else body)
                self.close_connection = True

        do_HEAD = do_PUT = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv(PATIENCE, patience)
    forget_stores()
    try:
        yield
    finally:
        forget_stores()
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_error_that_passes_is_not_seen(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing(monkeypatch, s3, "500", "500", "500", "whole", patience="60"):
        assert to_path("s3://bucket/x").read_bytes() == b"x" * SIZE


@pytest.mark.parametrize("answer", ["500", "cut"])
def test_a_store_that_goes_on_failing_is_named(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    with (
        failing(monkeypatch, s3, answer),
        pytest.raises(StoreFailed, match=r"s3://bucket/x: the store has failed for .*continues"),
        to_path("s3://bucket/x").open("rb") as file,
    ):
        file.read()


def test_a_bucket_that_is_missing_is_named(bucket: str) -> None:
    for act in (
        lambda: write_text(to_path("s3://vlmill-nowhere/x/y"), "x"),
        lambda: find_shards("s3://vlmill-nowhere/x", PAIRS, "--pairs"),
        lambda: lock_output("s3://vlmill-nowhere/x").__enter__(),
        lambda: matches("s3://vlmill-nowhere/*.gz"),
    ):
        with pytest.raises(InputError, match="the bucket vlmill-nowhere does not exist; create it"):
            act()


def test_a_full_disk_is_that_of_this_machine(bucket: str, capsys: Any) -> None:
    def fill(_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write(_: object) -> int:
        with atomic_path(f"{bucket}/x"):
            return fill(_)

    for command in (lambda _: int(bool(retry_request(bucket, lambda: fill(_)))), write):
        assert run_command(command, []) == 1
        said = capsys.readouterr().err
        assert "VLMILL_CACHE" in said and os.environ["VLMILL_CACHE"] in said
    assert names_below(bucket) == []


def test_missing_credentials_are_named(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    forget_stores()
    with pytest.raises(InputError, match=r"no credentials .*set AWS_ACCESS_KEY_ID and"):
        to_path(f"{bucket}/x").exists()
    forget_stores()


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (PermissionError("AccessDenied"), InputError, "refuses access .* rights of the cred"),
        (FileNotFoundError("x"), FileNotFoundError, "s3://b/x"),
        (OSError(22, "The specified bucket is not valid."), InputError, "not valid"),
        (TypeError("ours"), TypeError, "ours"),
        (TimeoutError("slow"), StoreFailed, "has failed for"),
    ],
)
def test_errors_have_one_line_each(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], said: str
) -> None:
    monkeypatch.setenv(PATIENCE, "0")

    def fail() -> None:
        raise error

    with pytest.raises(kind, match=said):
        retry_request("s3://b/x", fail)
