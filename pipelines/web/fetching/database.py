"""Defines a journal's SQLite file: its tables, how it is opened, and its errors."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TABLES = """
CREATE TABLE hosts (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, waiting INTEGER NOT NULL DEFAULT 0,
    active INTEGER NOT NULL DEFAULT 0, last_at REAL NOT NULL DEFAULT 0,
    not_before REAL NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0,
    backoffs INTEGER NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,
    pages INTEGER NOT NULL DEFAULT 0, left_out INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX hosts_waiting ON hosts (id) WHERE waiting > 0 AND active = 0;
CREATE TABLE urls (
    id INTEGER PRIMARY KEY, url TEXT NOT NULL UNIQUE, host INTEGER NOT NULL,
    source TEXT NOT NULL, referrer TEXT, follow INTEGER NOT NULL, hops INTEGER NOT NULL,
    times INTEGER NOT NULL DEFAULT 1, state INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0, old_etag TEXT, old_modified TEXT,
    outcome TEXT, detail TEXT, status INTEGER, target TEXT, media_type TEXT, bytes INTEGER,
    sha256 TEXT, etag TEXT, modified TEXT, at REAL, seconds REAL, address TEXT,
    part INTEGER, offset INTEGER, length INTEGER, alternatives TEXT
);
CREATE INDEX urls_waiting ON urls (host, id) WHERE state = 0;
CREATE INDEX urls_parts ON urls (part, offset) WHERE part IS NOT NULL;
CREATE TABLE origins (
    origin TEXT PRIMARY KEY, host INTEGER NOT NULL, robots BLOB, tdm BLOB,
    url TEXT, hops INTEGER NOT NULL DEFAULT 0, expires REAL NOT NULL DEFAULT 0
);
CREATE TABLE lines (
    line TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT, times INTEGER NOT NULL DEFAULT 1,
    UNIQUE (line, reason)
);
CREATE TABLE sent (
    id INTEGER PRIMARY KEY, bucket INTEGER NOT NULL, url TEXT NOT NULL, source TEXT NOT NULL,
    referrer TEXT, follow INTEGER NOT NULL, hops INTEGER NOT NULL, alternatives TEXT
);
CREATE INDEX sent_to ON sent (bucket, id);
CREATE TABLE pulled (bucket INTEGER PRIMARY KEY, last INTEGER NOT NULL);
"""
# Finished parts of the bucket's archive. Journals of older vlmill versions lack this table.
_PARTS = """
CREATE TABLE IF NOT EXISTS parts (
    part INTEGER PRIMARY KEY, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL
)
"""
# Rows of a table that name a URL.
_CAPTIONS = """
CREATE TABLE IF NOT EXISTS captions (
    row INTEGER PRIMARY KEY, url INTEGER NOT NULL, text TEXT NOT NULL
)
"""
_BUSY_S = 60.0
_CACHE_KIB = 4_096


def open_database(path: Path, *, new: bool = False, logged: bool = False) -> sqlite3.Connection:
    """Opens a journal's file; ``new`` creates it.

    ``logged``: committed changes stay in the log until :func:`checkpoint`.

    Raises OSError for a missing file: an empty journal instead would mean that no URL was ever
    listed.
    """
    if not new and not path.is_file():
        raise OSError(f"the journal {path} is missing; put it back, or use --fresh")
    database = sqlite3.connect(path, timeout=_BUSY_S)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    if logged:
        database.execute("PRAGMA wal_autocheckpoint = 0")
    if new:
        database.executescript(_TABLES)
    database.execute(_PARTS)
    database.execute(_CAPTIONS)
    for table in ("urls", "sent"):
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        if columns and "alternatives" not in columns:  # a journal of an older vlmill
            database.execute(f"ALTER TABLE {table} ADD COLUMN alternatives TEXT")
    return database


def checkpoint(database: sqlite3.Connection) -> bool:
    """Moves all committed changes from the log into the file; returns False if it is being read."""
    (is_busy, *_) = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not is_busy


@contextmanager
def journal_errors() -> Iterator[None]:
    """Raises OSError for journal errors in the block, such as a full disk."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise OSError(f"a journal cannot be written or read: {error}") from None
    except sqlite3.DatabaseError as error:
        raise OSError(f"a journal is damaged ({error}); use --fresh") from None
