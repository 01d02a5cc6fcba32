"""Records the undecodable images that a run has met, in its log and as rows of its rejects."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from vlmill.runtime.files.atomic import write_bytes
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.files.shards import Shard, ShardWriter
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import parse_json
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import REJECTS
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.undecodable import Tolerance, Undecodable

ReadFault = Undecodable | InputError  # of a step, by a process
UNDECODABLE = "undecodable.jsonl"  # until they are rows of the rejects table


class RejectCollector:
    """Collects the undecodable images that the batches of all processes name.

    Every process has all of them. The first process writes each when it occurs, with its step, so
    that a run that is resumed ``after`` a step has the images up to it.
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
        read = [parse_json(line) for line in lines]
        earlier = [row for row in read if row["step"] <= after]
        self.met = {row["image_id"]: _parse_line(row) for row in earlier}
        accelerator.wait_for_everyone()  # all have read it
        if accelerator.is_main_process and len(earlier) < len(read):
            write_bytes(
                self._path, b"".join(_line(row["step"], _parse_line(row)) for row in earlier)
            )

    def note(self, step: int, read: Sequence[HostBatch] | InputError) -> int:
        """Records the images that a step's parts name; returns how many the run has met.

        All processes take part, also one that could read no parts. Raises InputError in all of them
        for too many undecodable images, and for the error of any process.
        """
        local_faults = [read] if isinstance(read, InputError) else _collect_faults(read)
        faults = self._gather_faults(local_faults)
        for fault in faults:
            if isinstance(fault, InputError):
                raise fault
        undecodable = [fault for fault in faults if isinstance(fault, Undecodable)]
        news = {fault.image_id: fault for fault in undecodable if fault.image_id not in self.met}
        if news:
            self.met |= news
            if self._accelerator.is_main_process:
                with self._path.open("ab") as file:
                    file.write(b"".join(_line(step, fault) for fault in news.values()))
            self._tolerance.check(self.met)
        return len(self.met)

    def _gather_faults(self, local_faults: Sequence[ReadFault]) -> Sequence[ReadFault]:
        """Returns the faults of all processes, in their order; most steps exchange only a count."""
        if self._accelerator.num_processes == 1:
            return local_faults
        count = torch.tensor(len(local_faults), device=self._accelerator.device)
        if not int(self._accelerator.reduce(count, reduction="sum")):
            return []
        everyones: list[ReadFault] = gather_object(list(local_faults))
        return everyones

    def add_to(self, rejects: Shard) -> Shard:
        """Writes the shard of rejects again, with a row for each image; returns the new one."""
        if not self.met:
            return rejects
        folder = self._path.parent
        with ShardWriter(
            folder, REJECTS, 0, 1, producer={"job": f"train-vl {self._command}"}
        ) as writer:
            for batch in iter_batches(folder / rejects.name, REJECTS):
                writer.write(batch.to_pylist())
            writer.write([_reject(self._command, fault) for fault in self.met.values()])
        assert writer.shard is not None
        return writer.shard

    def forget(self) -> None:
        """Deletes the recorded faults: the rejects table has them."""
        self._path.unlink(missing_ok=True)


def _collect_faults(parts: Sequence[HostBatch]) -> list[ReadFault]:
    return [fault for part in parts for fault in part.undecodable]


def _line(step: int, fault: Undecodable) -> bytes:
    return json.dumps({"step": step, **asdict(fault)}).encode() + b"\n"


def _parse_line(row: dict[str, str]) -> Undecodable:
    fields = {name: row[name] for name in ("pair_id", "image_id", "why")}
    return Undecodable(**fields, reason=Reason(row["reason"]))


def _reject(command: str, fault: Undecodable) -> dict[str, object]:
    return reject(command, fault.pair_id, fault.reason, f"{fault.image_id}: {fault.why}")
