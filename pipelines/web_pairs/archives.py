"""Which archives a pattern names: of local files before Beam is loaded, of all by Beam."""

import glob
from pathlib import Path

from vlmill.schemas.errors import InputError
from vlmill.schemas.files.remote import is_remote, is_web
from vlmill.schemas.files.remote import matches as files_matching


def require_archive(pattern: str) -> None:
    """Raises InputError for a pattern of local files that matches none.

    Other places, and ``**``, which Beam reads in its own way, are left to Beam.
    """
    if "://" in pattern or "**" in pattern:
        return
    if not glob.glob(pattern, include_hidden=True):
        raise nothing_matches(pattern)


def nothing_matches(pattern: str) -> InputError:
    """The error of a pattern without archives."""
    return InputError(f"--warc {pattern}: no file matches; give a path or a quoted glob")


def find_archives(pattern: str) -> list[tuple[str, int]]:
    """Returns (path, bytes) of the files that match, sorted. Raises InputError without any."""
    if is_remote(pattern) and not is_web(pattern):
        archives = [(str(path), path.stat().st_size) for path in files_matching(pattern)]
        if not archives:
            raise nothing_matches(pattern)
        return archives
    from apache_beam.io.filesystems import FileSystems

    try:
        matches = FileSystems.match([pattern])[0].metadata_list
    except (ValueError, OSError) as error:
        raise InputError(f"--warc {pattern}: {error}") from None
    archives = sorted((m.path, m.size_in_bytes) for m in matches)
    if folders := [path for path, _ in archives if Path(path).is_dir()]:
        raise InputError(f"--warc {pattern}: {folders[0]} is a folder; give '{folders[0]}/*.gz'")
    if not archives:
        raise nothing_matches(pattern)
    return archives
