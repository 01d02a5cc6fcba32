"""Implements the lock of an output in a store as an object that only one run can create.

It records its creator, and is rewritten every quarter of ``seconds``. If it was not rewritten for
``seconds``, its run was killed: the next run replaces it, on the condition that no other run has. A
run that finds its lock replaced writes nothing more.
"""

import json
import os
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from vlmill.runtime.files import stores
from vlmill.runtime.files.remote import BEFORE_UPLOADS, RemotePath
from vlmill.schemas.errors import InputError, StoreFailed
from vlmill.schemas.plain_json import parse_json

SECONDS = 120.0
RENEWALS = 4  # in this time
LEAST_SECONDS = 1.0  # between two of them
_ATTEMPTS = 20
_held: dict[str, "_Lock"] = {}  # locks of this process, by output


def require_held(url: str) -> None:
    """Raises StoreFailed if another run has taken over the output that is or holds ``url``."""
    for folder, lock in tuple(_held.items()):
        if f"{url}/".startswith(f"{folder}/"):
            lock.require()


@contextmanager
def hold_lock_object(
    path: RemotePath, display_name: str, owner: dict[str, Any], seconds: float
) -> Iterator[None]:
    """Holds the lock object at ``path``, renewing it in a thread.

    Raises InputError if another run holds it.
    """
    if stores.parse_scheme(path.url) == "hdfs":
        warnings.warn(
            f"{display_name} is in a store without file locks; do not start a second run",
            RuntimeWarning,
            stacklevel=4,
        )
        yield
        return
    lock = _Lock(path, display_name, owner, seconds)
    lock.take()
    folder = str(path.parent)
    _held[folder] = lock
    renewing = threading.Thread(target=lock.keep, daemon=True)
    renewing.start()
    try:
        yield
    finally:
        lock.ended.set()
        renewing.join()
        _held.pop(folder, None)
        lock.give_back()


class _Lock:
    def __init__(
        self, path: RemotePath, display_name: str, owner: dict[str, Any], seconds: float
    ) -> None:
        self.path, self.said, self.seconds = path, display_name, seconds
        self._every = max(LEAST_SECONDS, seconds / RENEWALS)
        self.owner = {**owner, "id": uuid.uuid4().hex}
        self.ended, self._writing = threading.Event(), threading.Lock()
        self.version, self.renewed, self.lost_to = "", 0.0, ""

    def take(self) -> None:
        """Creates the object, or replaces one that was not renewed."""
        for _ in range(_ATTEMPTS):
            if self._put(None):
                return
            lock = _read(self.path)
            if lock is None:
                continue  # it was just deleted
            holder, version, age = lock
            if holder.get("id") == self.owner["id"]:  # the response was lost
                self.version, self.renewed = version, time.monotonic()
                return
            if age < self.seconds:
                raise InputError(
                    f"{self.said} is being written by {describe_holder(holder)}; wait until it "
                    "has ended "
                    f"(its lock was renewed {age:.0f} s ago and counts for {self.seconds:.0f} s), "
                    "or give another"
                )
            if self._put(version):
                print(
                    f"note: {self.said}: took over the lock of {describe_holder(holder)}, which "
                    "has not "
                    f"renewed it for {age:.0f} s",
                    file=sys.stderr,
                )
                return
        raise InputError(f"{self.said}: other runs take its lock all the time; give another")

    def _put(self, version: str | None) -> bool:
        """Writes the object, a new one or instead of ``version``; returns whether it succeeded."""
        begun = time.monotonic()
        renewed = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f UTC")
        content = json.dumps({**self.owner, "renewed": renewed}).encode()
        try:
            url = self.path.url
            self.version = stores.retry_write(url, lambda: _put_if(url, content, version))
        except stores.ConditionFailed:
            return False
        self.renewed = begun
        return True

    def keep(self) -> None:
        """Renews the lock repeatedly, until the run ends or another run has replaced it."""
        while not self.ended.wait(self._every) and not self.lost_to:
            try:
                self._renew()
            except (
                OSError,
                InputError,
                StoreFailed,
            ) as error:  # the next try may succeed, and `require` retries
                print(f"warning: {self.said}: the lock is not renewed ({error})", file=sys.stderr)

    def _renew(self) -> None:
        with self._writing:
            if self.lost_to or self._put(self.version):
                return
            lock = _read(self.path)
            if lock is not None and lock[0].get("id") == self.owner["id"]:
                self.version = lock[1]  # the response was lost
                return
            self.lost_to = "another run" if lock is None else describe_holder(lock[0])
            print(f"warning: {self.said}: {self.lost_to} has taken over", file=sys.stderr)

    def require(self) -> None:
        """Raises StoreFailed if another run has the lock; renews it if that may have happened."""
        if time.monotonic() - self.renewed > 2 * self._every:  # the process was suspended
            self._renew()
        if self.lost_to:
            raise StoreFailed(
                f"{self.said}: {self.lost_to} has taken over this output; this run writes no more"
            )

    def give_back(self) -> None:
        """Deletes the object, if it is still ours."""
        if not self.lost_to:
            lock = _read(self.path)
            if lock is not None and lock[0].get("id") == self.owner["id"]:
                self.path.unlink(missing_ok=True)


def describe_holder(holder: dict[str, Any]) -> str:
    """Returns the holder of a lock in words."""
    try:
        return "process {pid} on {host} since {since} ({command})".format(**holder)
    except KeyError:
        return "another run"


def _read(path: RemotePath) -> tuple[dict[str, Any], str, float] | None:
    """Returns the object's content, version and age in seconds; None if it does not exist."""
    get = _get_s3 if stores.parse_scheme(path.url) == "s3" else _get_gs
    try:
        content, version, age = stores.retry_request(path.url, lambda: get(path.url))
    except FileNotFoundError:
        return None
    try:
        holder = parse_json(content)
    except ValueError:
        holder = {}
    return (holder if isinstance(holder, dict) else {}), version, age


def _put_if(url: str, content: bytes, version: str | None) -> str:
    put = _put_s3 if stores.parse_scheme(url) == "s3" else _put_gs
    return put(url, content, version)


def _bucket_and_key(url: str) -> tuple[str, str]:
    bucket, _, key = url.partition("://")[2].partition("/")
    return bucket, key


def _put_s3(url: str, content: bytes, version: str | None) -> str:
    bucket, key = _bucket_and_key(url)
    condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
    answer = stores.filesystem(url).call_s3(
        "put_object", Bucket=bucket, Key=key, Body=content, **condition
    )
    return str(answer["ETag"])


def _get_s3(url: str) -> tuple[bytes, str, float]:
    store = stores.filesystem(url)
    bucket, key = _bucket_and_key(url)
    head = store.call_s3("head_object", Bucket=bucket, Key=key)
    # By the store's clock: the local one may differ.
    date_header = head["ResponseMetadata"]["HTTPHeaders"].get("date")
    now = parsedate_to_datetime(date_header) if date_header else datetime.now(UTC)
    return store.cat_file(url), str(head["ETag"]), (now - head["LastModified"]).total_seconds()


def _put_gs(url: str, content: bytes, version: str | None) -> str:
    store = stores.filesystem(url)
    bucket, key = _bucket_and_key(url)
    answer = store.call(
        "POST",
        f"{_gs_location(store)}/upload/storage/v1/b/{bucket}/o",
        name=key,
        uploadType="media",
        ifGenerationMatch=version or "0",
        headers={"Content-Type": "application/octet-stream"},
        data=content,
        json_out=True,
    )
    return str(answer["generation"])


def _gs_location(store: Any) -> str:
    """Returns the address of Cloud Storage, which gcsfs has in a private attribute."""
    default = os.environ.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com"
    return str(getattr(store, "_location", default))


def _get_gs(url: str) -> tuple[bytes, str, float]:
    store = stores.filesystem(url)
    info = store.info(url)
    written = datetime.fromisoformat(info["updated"])
    return store.cat_file(url), str(info["generation"]), time.time() - written.timestamp()


BEFORE_UPLOADS.append(require_held)
# After a fork the parent holds the lock, and its thread renews it.
os.register_at_fork(after_in_child=_held.clear)
