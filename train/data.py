"""From tables to training samples: joined, tokenised and checked once, then read at random.

``prepare_samples`` writes an Arrow file that training maps into memory, so what a run keeps in
memory is its batches, some 40 bytes for each pair, and the index of the regions.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from vlmill.schemas.atomic import atomic_path
from vlmill.schemas.ids import key64
from vlmill.schemas.reading import iter_batches
from vlmill.schemas.regions import RegionReader
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.shards import ShardWriter
from vlmill.schemas.tables import NEGATIVES, PAIRS, REGIONS
from vlmill.train.sampling import Ids, Keys, mix

HELD_OUT_SPLITS = frozenset({"val", "dev", "test"})
COLUMNS = ("pair_id", "image_id", "text", "source", "split")
ROWS = 4096  # of each record batch, so that a row's batch is known without a search
SAMPLES = pa.schema(
    [
        ("pair_id", pa.string()),
        ("image_id", pa.string()),
        ("source", pa.string()),
        ("tokens", pa.list_(pa.int32())),
        ("pair_key", pa.uint64()),
        ("text_key", pa.uint64()),
        ("image_key", pa.uint64()),
    ]
)
HARD = pa.schema([("row", pa.int64()), ("negatives", pa.list_(pa.int64()))])


def pair_rows(pairs: str, flag: str = "--pairs") -> Iterator[list[dict[str, Any]]]:
    """The pairs table in batches of rows."""
    for batch in iter_batches(pairs, PAIRS, columns=COLUMNS, batch_rows=ROWS, flag=flag):
        yield batch.to_pylist()


def pairs_digest(pairs: str) -> tuple[int, str]:
    """Number of pairs, and SHA-256 over the ids and texts that training reads, in their order."""
    digest, count = hashlib.sha256(), 0
    for rows in pair_rows(pairs):
        count += len(rows)
        for row in rows:
            line = "\0".join(str(row[name]) for name in COLUMNS)
            digest.update(f"{line}\n".encode("utf-8", "surrogatepass"))
    return count, digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class RegionFacts:
    """What one pass over the regions table tells: pictures without a box, and the classes."""

    empty: frozenset[str]
    num_classes: int  # the highest class id plus one; 0 without classes
    num_pictures: int


def region_facts(regions: str) -> RegionFacts:
    """Read the small columns of the regions table."""
    empty: set[str] = set()
    highest, count = -1, 0
    columns = ("image_id", "num_boxes", "class_ids")
    for batch in iter_batches(regions, REGIONS, columns=columns, flag="--regions"):
        count += batch.num_rows
        classes = batch.column("class_ids").flatten()
        if len(classes) > classes.null_count:
            highest = max(highest, int(np.max(classes.drop_null().to_numpy())))
        zero = batch.column("num_boxes").to_numpy() == 0
        empty.update(batch.column("image_id").filter(pa.array(zero)).to_pylist())
    return RegionFacts(empty=frozenset(empty), num_classes=highest + 1, num_pictures=count)


def prepare_samples(
    folder: Path,
    *,
    pairs: str,
    regions: RegionReader,
    facts: RegionFacts,
    negatives: str | None,
    tokenizer: Tokenizer,
    max_tokens: int,
    rejects: ShardWriter,
) -> Counter[str]:
    """Write ``samples.arrow`` (and ``hard.arrow``); count ``kept`` and each reason of a reject.

    Pairs are rejected that are held out for validation or test, whose picture has no regions, and
    whose text has no word.
    """
    tokenizer.enable_truncation(max_tokens)
    counts: Counter[str] = Counter()
    with atomic_path(folder / "samples.arrow") as temporary, _Writer(temporary, SAMPLES) as writer:
        for rows in pair_rows(pairs):
            kept, rejected = [], []
            encodings = tokenizer.encode_batch([row["text"] for row in rows])
            for row, encoding in zip(rows, encodings, strict=True):
                reason = _reject_reason(row, len(encoding.ids), regions, facts)
                if reason is None:
                    kept.append(_sample(row, encoding.ids))
                else:
                    rejected.append(reject("pretrain", row["pair_id"], reason, row["image_id"]))
                counts["kept" if reason is None else reason.value] += 1
            rejects.write(rejected)
            writer.write(kept)
    tokenizer.no_truncation()
    (folder / "hard.arrow").unlink(missing_ok=True)
    if negatives is not None and counts["kept"]:
        counts["hard_negatives"] = _prepare_negatives(folder, negatives)
    return counts


def is_held_out(row: dict[str, Any]) -> bool:
    """Whether a pair is kept for validation or test; pairs without a split are not."""
    return row["split"] in HELD_OUT_SPLITS


def _reject_reason(
    row: dict[str, Any], num_tokens: int, regions: RegionReader, facts: RegionFacts
) -> Reason | None:
    if is_held_out(row):
        return Reason.HELD_OUT
    if row["image_id"] not in regions:
        return Reason.NO_REGIONS
    if row["image_id"] in facts.empty:
        return Reason.NO_BOXES
    if num_tokens <= 2:  # [CLS] and [SEP] alone
        return Reason.NO_TEXT
    return None


def _sample(row: dict[str, Any], tokens: list[int]) -> dict[str, Any]:
    return {
        "pair_id": row["pair_id"],
        "image_id": row["image_id"],
        "source": row["source"],
        "tokens": tokens,
        "pair_key": key64(row["pair_id"]),
        "text_key": key64(" ".join(map(str, tokens))),  # as the model sees it: case does not count
        "image_key": key64(row["image_id"]),
    }


class _Writer:
    """Writes rows to an Arrow file in record batches of exactly ROWS, the last one excepted."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema, self._pending = schema, list[dict[str, Any]]()
        self._file = pa.OSFile(str(path), "wb")
        self._out = pa.ipc.new_file(self._file, schema)

    def __enter__(self) -> "_Writer":
        return self

    def write(self, rows: list[dict[str, Any]]) -> None:
        self._pending += rows
        while len(self._pending) >= ROWS:
            self._flush()

    def _flush(self) -> None:
        rows, self._pending = self._pending[:ROWS], self._pending[ROWS:]
        self._out.write_batch(pa.RecordBatch.from_pylist(rows, schema=self._schema))

    def __exit__(self, *error: object) -> None:
        if self._pending:
            self._flush()
        self._out.close()
        self._file.close()


def _prepare_negatives(folder: Path, negatives: str) -> int:
    """Write each kept pair's negatives as row numbers; those not kept are left out."""
    keys = SampleTable(folder).pair_keys
    order = np.argsort(keys, kind="stable")
    ordered, total = keys[order], 0
    with atomic_path(folder / "hard.arrow") as temporary, _Writer(temporary, HARD) as writer:
        for batch in iter_batches(negatives, NEGATIVES, batch_rows=ROWS, flag="--negatives"):
            for row in batch.to_pylist():
                place = _find([row["pair_id"]], ordered, order)
                found = _find(row["negative_pair_ids"], ordered, order)
                if len(place) and len(found):
                    total += len(found)
                    writer.write([{"row": int(place[0]), "negatives": found}])
    return total


def _find(pair_ids: list[str], ordered: Keys, order: Ids) -> Ids:
    wanted = np.array([key64(i) for i in pair_ids], dtype=np.uint64)
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    found: Ids = order[at[ordered[at] == wanted]]
    return found


class SampleTable:
    """The prepared samples, mapped into memory; rows count from 0."""

    def __init__(self, folder: Path) -> None:
        self._batches = _mapped(folder / "samples.arrow")
        hard = folder / "hard.arrow"
        self._hard = _mapped(hard) if hard.exists() else []
        self.pair_keys = _column(self._batches, "pair_key")
        self._text_keys = _column(self._batches, "text_key")
        self._image_keys = _column(self._batches, "image_key")
        self._known = np.sort(mix(self._text_keys, self._image_keys))
        self._hard_place = np.full(len(self.pair_keys), -1, dtype=np.int64)
        rows = _column(self._hard, "row").astype(np.int64)
        self._hard_place[rows] = np.arange(len(rows))

    def __len__(self) -> int:
        return len(self.pair_keys)

    def _value(self, name: str, row: int) -> Any:
        return self._batches[row // ROWS].column(name)[row % ROWS]

    def pair_id(self, row: int) -> str:
        """The pair's id."""
        return str(self._value("pair_id", row))

    def image_id(self, row: int) -> str:
        """The pair's picture."""
        return str(self._value("image_id", row))

    def tokens(self, row: int) -> Ids:
        """The text's word-piece ids with [CLS] and [SEP]."""
        return np.asarray(self._value("tokens", row).values, dtype=np.int64)

    def matches(self, text_row: int, image_row: int) -> bool:
        """Whether the text of one row is a caption of the picture of another."""
        key = mix(self._text_keys[text_row], self._image_keys[image_row])
        at = int(np.searchsorted(self._known, key))
        return at < len(self._known) and bool(self._known[at] == key)

    def hard_negatives(self, row: int) -> Ids:
        """Rows of the pair's hard negatives, maybe none."""
        place = int(self._hard_place[row])
        if place < 0:
            return np.empty(0, dtype=np.int64)
        values = self._hard[place // ROWS].column("negatives")[place % ROWS].values
        return np.asarray(values, dtype=np.int64)

    def rows_of(self, sources: tuple[str, ...]) -> Ids:
        """The rows whose source is one of these; all rows for none."""
        if not sources:
            return np.arange(len(self), dtype=np.int64)
        wanted = pa.array(sources, pa.string())
        flags = [pa.compute.is_in(b.column("source"), value_set=wanted) for b in self._batches]
        return np.flatnonzero(pa.chunked_array(flags, pa.bool_()).to_numpy())

    def sources(self) -> dict[str, int]:
        """How many pairs each source has; a missing source counts as ``null``."""
        counts: Counter[str] = Counter()
        for batch in self._batches:
            counts.update(str(s or "null") for s in batch.column("source").to_pylist())
        return dict(sorted(counts.items()))


def _mapped(path: Path) -> list[pa.RecordBatch]:
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    return [reader.get_batch(i) for i in range(reader.num_record_batches)]


def _column(batches: list[pa.RecordBatch], name: str) -> Any:
    arrays = [batch.column(name).to_numpy() for batch in batches]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.uint64)
