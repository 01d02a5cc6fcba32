"""Object stores on 127.0.0.1 for tests: moto's S3, and an emulator of Cloud Storage."""

import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq

from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.remote import RemotePath
from vlmill.runtime.files.stores import filesystem


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Runs moto's server; yields the variables by which any process finds it."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        server.stop()


@contextmanager
def gs_server() -> Iterator[dict[str, str]]:
    """Runs an emulator of Cloud Storage; yields the variables by which this process finds it.

    The emulator knows no conditions of uploads; they are looked at here.
    """
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers import objects
    from gcp_storage_emulator.server import create_server

    upload = objects._media_upload

    def upload_if(request: Any, response: Any, storage: Any) -> None:
        (asked,) = request.query.get("ifGenerationMatch", [None])
        bucket, name = request.params["bucket_name"], request.query["name"][0]
        try:
            now = storage.get_file_obj(bucket, name)["generation"]
        except NotFound:
            now = "0"
        if asked in (None, now):
            upload(request, response, storage)
        else:
            response.status = HTTPStatus.PRECONDITION_FAILED

    objects._media_upload = upload_if
    server = create_server("127.0.0.1", 0, in_memory=True)
    server.start()
    port = server._api._httpd.server_address[1]
    try:
        yield {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
            # Its second client, for another kind of bucket, would look for real credentials.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
    finally:
        server.stop()
        objects._media_upload = upload


def new_gs_bucket() -> str:
    """Makes a bucket of its own in the Cloud Storage of the environment; its URL."""
    name = f"vlmill-{uuid.uuid4().hex[:12]}"
    filesystem(f"gs://{name}").mkdir(name)
    return f"gs://{name}"


def forget_stores() -> None:
    """Lets go of connections, which are kept by a process, so that changed variables count."""
    for scheme in ("s3", "gs"):
        fsspec.get_filesystem_class(scheme).clear_instance_cache()


def new_bucket() -> str:
    """Makes a bucket of its own in the S3 of the environment; its URL."""
    name = f"vlmill-{uuid.uuid4().hex[:12]}"
    filesystem(f"s3://{name}").call_s3("create_bucket", Bucket=name)
    return f"s3://{name}"


def upload_folder(folder: Path, url: str) -> str:
    """Puts the files of a folder, and of those below it, into a store; returns ``url``."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            place = to_path(url) / file.relative_to(folder).as_posix()
            assert isinstance(place, RemotePath)
            place.upload(file)
    return url


def names_below(url: str) -> list[str]:
    """The names of all objects below a place."""
    place = to_path(url)
    assert isinstance(place, RemotePath)
    return [str(path).removeprefix(f"{place}/") for path, _ in place.below()]


def download_folder(url: str, folder: Path) -> Path:
    """Copies all objects below a place into a folder."""
    place = to_path(url)
    assert isinstance(place, RemotePath)
    for path, _ in place.below():
        to = folder / str(path).removeprefix(f"{place}/")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(path.read_bytes())
    return folder


def rows_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables that lie in a folder, by the names of their files."""
    return {path.name: pq.read_table(path).to_pylist() for path in sorted(folder.glob("*.parquet"))}


def environment(variables: dict[str, str]) -> dict[str, str]:
    """This process's environment with these variables, for another process."""
    return {**os.environ, **variables}
