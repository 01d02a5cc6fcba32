"""Accesses object stores through fsspec: S3, Cloud Storage, HDFS; retries failures and names them.

Addresses and credentials come from the stores' own variables (docs/storage.md). No listing is
cached, so files of other processes are seen.
"""

import errno
import logging
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from vlmill.runtime.extras import install_command
from vlmill.runtime.files.copies import FULL, disk_full_error
from vlmill.schemas.errors import InputError, StoreFailed

Answer = TypeVar("Answer")

SCHEMES = ("s3", "gs", "hdfs")
PATIENCE = "VLMILL_STORE_SECONDS"  # for how long requests to a failing store are retried
PATIENCE_SECONDS = 60.0
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 15.0
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {
        "use_listings_cache": False,
        # Complete responses are requested again here, with their path in the error.
        "config_kwargs": {
            "retries": {"mode": "standard", "total_max_attempts": 2},
            "connect_timeout": 10,
            "read_timeout": 60,
        },
    },
    "gs": {"use_listings_cache": False},
    "hdfs": {},
}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "hdfs": "HADOOP_USER_NAME and CLASSPATH",
}
_OF_S3 = (
    *("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_ROLE_ARN", "AWS_SHARED_CREDENTIALS_FILE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
)
_NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "DefaultCredentialsError",
}
_UNMET = {"PreconditionFailed", "ConditionalRequestConflict", "412", 412}
_LATER = {errno.EREMOTEIO, errno.EBUSY, errno.EIO, errno.EPIPE}
_OURS = (TypeError, AttributeError, AssertionError, LookupError, NotImplementedError)
_log = logging.getLogger(__name__)


class ConditionFailed(Exception):
    """Raised if a conditional write failed because another write came first."""


def parse_scheme(url: str) -> str:
    """Returns the scheme of a URL, one of :data:`SCHEMES`. Raises InputError for another."""
    scheme, _, location = url.partition("://")
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise InputError(
            f"{url}: {scheme}:// is not one of {known}; give one of these or a local path"
        )
    if not location.strip("/"):
        raise InputError(f"{url} names no bucket; give {scheme}://BUCKET/FOLDER")
    return scheme


def filesystem(url: str) -> Any:
    """Returns the fsspec file system of a URL; fsspec keeps one for each process and scheme.

    Raises InputError if its library is not installed.
    """
    scheme = parse_scheme(url)
    try:
        import fsspec  # takes 0.2 s, and its libraries seconds, so only for remote paths

        return fsspec.filesystem(scheme, **_options(scheme, url))
    except ImportError as error:
        remedy = f"run {install_command('cloud')} in vlmill's checkout"
        raise InputError(f"{url}: {error}; {remedy}") from None


@cache
def _options(scheme: str, url: str) -> dict[str, Any]:
    if scheme != "hdfs":
        return _OPTIONS[scheme]
    host, _, port = url.partition("://")[2].partition("/")[0].partition(":")
    return {"host": host, "port": int(port or 8020)}


def retry_request(url: str, action: Callable[[], Answer]) -> Answer:
    """Returns the result of ``action``, a request for ``url``; retries while the store fails.

    Raises InputError for problems that a user can fix (no bucket, no credentials, no access),
    FileNotFoundError for a missing object, ConditionFailed for an unmet condition, and StoreFailed
    for a store that has failed for :data:`PATIENCE_SECONDS`.
    """
    start, wait = time.monotonic(), FIRST_WAIT_SECONDS
    patience = float(os.environ.get(PATIENCE, PATIENCE_SECONDS))
    while True:
        try:
            return action()
        except Exception as error:
            if (final_error := _translate_error(url, error)) is not None:
                raise final_error from None
            if time.monotonic() - start + wait > patience:
                raise StoreFailed(
                    f"{url}: the store has failed for {time.monotonic() - start:.0f} s "
                    f"({_in_a_line(error)}); the same command continues when it answers again"
                ) from None
            _log.warning("%s: %s; trying again in %.1f s", url, _in_a_line(error), wait)
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT_SECONDS)


def has_credentials() -> bool:
    """Returns whether S3 requests can be signed; without credentials only public ones are read."""
    has_variables = any(os.environ.get(name) for name in _OF_S3)
    return has_variables or Path("~/.aws/credentials").expanduser().is_file()


def bucket_missing_error(url: str) -> InputError:
    """Returns the error for a path with a missing bucket."""
    bucket = url.partition("://")[2].partition("/")[0]
    return InputError(f"{url}: the bucket {bucket} does not exist; create it, or give another")


def retry_write(url: str, action: Callable[[], Answer]) -> Answer:
    """Works like :func:`asked`, for a request that requires only that the bucket exists."""
    try:
        return retry_request(url, action)
    except FileNotFoundError:
        raise bucket_missing_error(url) from None


def _translate_error(url: str, error: Exception) -> Exception | None:
    """Returns the error to raise if a retry would not help; None if it may."""
    if isinstance(error, (InputError, StoreFailed, ConditionFailed, *_OURS)):
        return error
    if isinstance(error, OSError) and error.errno in FULL:  # on this machine, not in the store
        return disk_full_error(error)
    code, status = _read_error_code(error)
    if code in _UNMET or status in _UNMET or isinstance(error, FileExistsError):
        return ConditionFailed(url)
    scheme = parse_scheme(url)
    if type(error).__name__ in _NO_CREDENTIALS:
        return InputError(
            f"{url}: no credentials ({_in_a_line(error)}); set {_CREDENTIALS[scheme]} "
            "(docs/storage.md)"
        )
    if code == "NoSuchBucket" or "bucket does not exist" in str(error).lower():
        return bucket_missing_error(url)
    if isinstance(error, FileNotFoundError) or status == 404:
        return FileNotFoundError(errno.ENOENT, "no such file", url)
    if isinstance(error, PermissionError) or status in (401, 403):
        return InputError(
            f"{url}: the store refuses access ({_in_a_line(error)}); check the rights of the "
            f"credentials ({_CREDENTIALS[scheme]})"
        )
    # Some errors with a number are temporary errors of the store; the others concern the request.
    if type(error) is OSError and error.errno is not None and error.errno not in _LATER:
        return InputError(f"{url}: {_in_a_line(error)}; give another place")
    return None


def _read_error_code(error: Exception) -> tuple[str | None, int | None]:
    """Returns the store's own code of an error and its HTTP status, if it has them."""
    for cause in (error, error.__cause__):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return response.get("Error", {}).get("Code"), status
    code = getattr(error, "code", None)  # of gcsfs
    return None, code if isinstance(code, int) else None


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
