"""Writes and reads the files of a run's prepared samples.

They are made once for a run and mapped by all of its processes; a continued run reuses them.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.files.shards import SOFTWARE, Shard
from vlmill.schemas.ids import key64
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.tables import NEGATIVES
from vlmill.train.loading.arrays import Ids, Keys
from vlmill.train.loading.random import mix

ROWS = 4096  # of each record batch, so that a row's batch is known without a search
SAMPLES = pa.schema(
    [
        ("pair_id", pa.string()),
        ("image_id", pa.string()),
        ("source", pa.string()),
        ("split", pa.string()),
    ]
)
HARD = pa.schema([("row", pa.int64()), ("negatives", pa.list_(pa.int64()))])
Numbers = dict[str, npt.NDArray[Any]]  # the prepared columns of numbers
NUMBERS: dict[str, np.dtype[Any]] = {
    "pair_key": np.dtype(np.uint64),
    "text_key": np.dtype(np.uint64),
    "image_key": np.dtype(np.uint64),
    "image_row": np.dtype(np.int64),
    "num_tokens": np.dtype(np.int32),
    "num_regions": np.dtype(np.int32),
    "tokens": np.dtype(np.int32),  # of all texts, concatenated
}
DERIVED = {"token_ends": np.dtype(np.int64), "known": np.dtype(np.uint64)}
NO_IMAGE = 0  # the image key of a text without an image


PreparedPair = tuple[dict[str, Any], list[int], int, int]  # row, tokens, image's row, regions


def make_numbers(pairs: Sequence[PreparedPair]) -> Numbers:
    """Returns the columns of numbers of pairs."""
    numbers: dict[str, list[int]] = {
        "pair_key": [key64(row["pair_id"]) for row, *_ in pairs],
        # As the model sees it: case is ignored.
        "text_key": [key64(" ".join(map(str, tokens))) for _, tokens, *_ in pairs],
        "image_key": [
            NO_IMAGE if row["image_id"] is None else key64(row["image_id"]) for row, *_ in pairs
        ],
        "image_row": [image_row for _, _, image_row, _ in pairs],
        "num_tokens": [len(tokens) for _, tokens, *_ in pairs],
        "num_regions": [count for *_, count in pairs],
        "tokens": [token for _, tokens, *_ in pairs for token in tokens],
    }
    return {name: np.array(values, dtype=NUMBERS[name]) for name, values in numbers.items()}


def derive_numbers(numbers: Numbers) -> Numbers:
    """Returns the columns that depend on all rows: where each text ends, and the sorted keys of
    matching texts and images.
    """
    keys = mix(numbers["text_key"], numbers["image_key"])
    ends = np.cumsum(numbers["num_tokens"], dtype=np.int64)
    return {"token_ends": ends, "known": np.sort(np.asarray(keys, dtype=np.uint64))}


class Columns:
    """Writes kept pairs: an Arrow file with the data of each row and a task's ``labels``, and a
    file for each number.
    """

    def __init__(self, folder: Path, labels: pa.Schema) -> None:
        self._schema = pa.schema([*SAMPLES, *labels])
        self._samples = _Writer(folder / "samples.arrow", self._schema)
        self._files = {name: (folder / name).open("wb") for name in NUMBERS}

    def __enter__(self) -> "Columns":
        return self

    def write(self, pairs: Sequence[PreparedPair]) -> None:
        """Appends pairs."""
        names = self._schema.names
        self._samples.write([{name: row[name] for name in names} for row, *_ in pairs])
        for name, values in make_numbers(pairs).items():
            self._files[name].write(values.tobytes())

    def __exit__(self, *error: object) -> None:
        self._samples.__exit__(*error)
        for file in self._files.values():
            file.close()


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

    def __exit__(
        self,
        kind: object,
        error: object,
        trace: object,
    ) -> None:
        if self._pending:
            self._flush()
        self._out.close()
        self._file.close()


def write_known(folder: Path) -> None:
    """Writes the columns that depend on all rows."""
    for name, values in derive_numbers(map_numbers(folder, NUMBERS)).items():
        (folder / name).write_bytes(values.tobytes())


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinedNegatives:
    """Holds the facts about a table of hard negatives for the pairs that are trained on."""

    num_rows: int  # of the table
    num_met: int  # rows whose pair is trained on
    num_negatives: int  # negatives that are trained on too, in all of these rows
    sample: str  # the table's first pair_id


def prepare_negatives(folder: Path, negatives: str) -> JoinedNegatives:
    """Writes each kept pair's negatives as row numbers, without negatives that are not kept."""
    keys = map_column(folder, "pair_key")
    order = np.argsort(keys, kind="stable")
    ordered, total, num_rows, num_met, sample = keys[order], 0, 0, 0, ""
    with _Writer(folder / "hard.arrow", HARD) as writer:
        for batch in iter_batches(negatives, NEGATIVES, batch_rows=ROWS, flag="--negatives"):
            for row in batch.to_pylist():
                num_rows, sample = num_rows + 1, sample or row["pair_id"]
                pair_rows = _find([row["pair_id"]], ordered, order)
                rows = _find(row["negative_pair_ids"], ordered, order)
                num_met += len(pair_rows)
                if len(pair_rows) and len(rows):
                    total += len(rows)
                    writer.write([{"row": int(pair_rows[0]), "negatives": rows}])
    return JoinedNegatives(num_rows=num_rows, num_met=num_met, num_negatives=total, sample=sample)


def _find(pair_ids: list[str], ordered: Keys, order: Ids) -> Ids:
    keys = np.array([key64(i) for i in pair_ids], dtype=np.uint64)
    positions = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    rows: Ids = order[positions[ordered[positions] == keys]]
    return rows


def map_numbers(folder: Path, names: Iterable[str]) -> Numbers:
    """Maps prepared columns of numbers into memory."""
    return {name: map_column(folder, name) for name in names}


def map_column(folder: Path, name: str) -> Any:
    """Maps a prepared column of numbers into memory."""
    path, kind = folder / name, (NUMBERS | DERIVED)[name]
    if not path.stat().st_size:
        return np.empty(0, dtype=kind)
    return np.memmap(path, dtype=kind, mode="r").view(np.ndarray)


DONE = "done.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preparation:
    """Holds the results of preparing a run: counts, the rejects' shard, the tokenizer as JSON."""

    counts: Counter[str]
    rejects: Shard
    tokenizer: str


def write_preparation(folder: Path, preparation: Preparation) -> None:
    """Records next to the samples that they are complete, for a continued run."""
    plain = dataclasses.asdict(preparation)
    write_json(folder / DONE, {"software": SOFTWARE, **plain, "counts": dict(preparation.counts)})


def read_preparation(folder: Path, output: Path) -> Preparation | None:
    """Reads the record of :func:`write_preparation`, if the samples and the rejects in ``output``
    still exist.
    """
    try:
        noted = read_json(folder / DONE)
        if noted.pop("software") != SOFTWARE:
            return None
        rejects = Shard(**noted["rejects"])
        if (output / rejects.name).stat().st_size != rejects.bytes:
            return None
        return Preparation(
            counts=Counter(noted["counts"]), rejects=rejects, tokenizer=noted["tokenizer"]
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
