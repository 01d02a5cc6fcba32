"""The undecodable pictures that a run has met: counted in its log, and rows of its rejects."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from vlmill.schemas.errors import InputError
from vlmill.schemas.files.atomic import write_bytes
from vlmill.schemas.files.reading import iter_batches
from vlmill.schemas.files.shards import Shard, ShardWriter
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import REJECTS
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.undecodable import Tolerance, Undecodable

Said = Undecodable | InputError  # of a step, by a process
UNDECODABLE = "undecodable.jsonl"  # until they are rows of the rejects table


class Rejecting:
    """Collects the undecodable pictures that the batches of all processes name.

    Every process knows all of them. The first one writes each when it is met, with its step, so
    that a run that is resumed ``after`` a step knows those up to it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        after: int,
        tolerance: Tolerance,
        accelerator: Accelerator,
        command: str,
    ) -> None:
        self._command = command
        self._path, self._tolerance = folder / UNDECODABLE, tolerance
        self._accelerator = accelerator
        lines = self._path.read_bytes().split(b"\n")[:-1] if self._path.exists() else []
        read = [json.loads(line) for line in lines]
        earlier = [row for row in read if row["step"] <= after]
        self.met = {row["image_id"]: _of_line(row) for row in earlier}
        accelerator.wait_for_everyone()  # all have read it
        if accelerator.is_main_process and len(earlier) < len(read):
            write_bytes(self._path, b"".join(_line(row["step"], _of_line(row)) for row in earlier))

    def note(self, step: int, read: Sequence[HostBatch] | InputError) -> int:
        """Takes in what the parts of a step name; returns how many pictures the run has met.

        All processes take part, also one that could read no parts. Raises InputError, in all of
        them, where undecodable pictures are too many, and what any of them could not read.
        """
        ours = [read] if isinstance(read, InputError) else _named(read)
        said = self._of_all(ours)
        for one in said:
            if isinstance(one, InputError):
                raise one
        undecodable = [one for one in said if isinstance(one, Undecodable)]
        news = {one.image_id: one for one in undecodable if one.image_id not in self.met}
        if news:
            self.met |= news
            if self._accelerator.is_main_process:
                with self._path.open("ab") as file:
                    file.write(b"".join(_line(step, one) for one in news.values()))
            self._tolerance.check(self.met)
        return len(self.met)

    def _of_all(self, ours: Sequence[Said]) -> Sequence[Said]:
        """What all processes say, in their order; a number is all that most steps exchange."""
        if self._accelerator.num_processes == 1:
            return ours
        count = torch.tensor(len(ours), device=self._accelerator.device)
        if not int(self._accelerator.reduce(count, reduction="sum")):
            return []
        everyones: list[Said] = gather_object(list(ours))
        return everyones

    def add_to(self, rejects: Shard) -> Shard:
        """Writes the shard of rejects again, with a row for each picture; returns the new one."""
        if not self.met:
            return rejects
        folder = self._path.parent
        with ShardWriter(
            folder, REJECTS, 0, 1, producer={"job": f"train-vl {self._command}"}
        ) as writer:
            for batch in iter_batches(folder / rejects.name, REJECTS):
                writer.write(batch.to_pylist())
            writer.write([_reject(self._command, one) for one in self.met.values()])
        assert writer.shard is not None
        return writer.shard

    def forget(self) -> None:
        """Deletes what was noted: the rejects table has it."""
        self._path.unlink(missing_ok=True)


def _named(parts: Sequence[HostBatch]) -> list[Said]:
    return [one for part in parts for one in part.undecodable]


def _line(step: int, one: Undecodable) -> bytes:
    return json.dumps({"step": step, **asdict(one)}).encode() + b"\n"


def _of_line(row: dict[str, str]) -> Undecodable:
    fields = {name: row[name] for name in ("pair_id", "image_id", "why")}
    return Undecodable(**fields, reason=Reason(row["reason"]))


def _reject(command: str, one: Undecodable) -> dict[str, object]:
    return reject(command, one.pair_id, one.reason, f"{one.image_id}: {one.why}")
