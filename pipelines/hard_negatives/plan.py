"""Defines a run: the source of its captions, its rules and its paths."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlmill.pipelines.hard_negatives.captions import JOB, Staged
from vlmill.pipelines.hard_negatives.rules import NegativeRules
from vlmill.pipelines.hard_negatives.source import Source
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.outputs import WORK
from vlmill.runtime.files.shards import shard_name
from vlmill.schemas.plain_json import parse_json
from vlmill.schemas.tables import NEGATIVES, VOCABULARY


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Describes one run for all workers."""

    source: Source
    rules: NegativeRules
    output: Path
    settings: dict[str, Any]
    shard_captions: int
    parts: int  # number of parts of the index
    threads: int  # threads of a searching process
    images: str | None = None  # a table of images, for the report
    inputs: Sequence[Input] = ()

    @property
    def work(self) -> Path:
        """Returns the folder of files that the finished run deletes."""
        return self.output / WORK

    @property
    def captions(self) -> Path:
        """Returns the folder of the staged captions."""
        return self.work / "captions"

    @property
    def words(self) -> Path:
        """Returns the folder of the words of chunks of captions."""
        return self.work / "words"

    @property
    def bags(self) -> Path:
        """Returns the folder of the captions' vectors."""
        return self.work / "bags"

    def part(self, number: int) -> Path:
        """Returns the folder of a part of the index."""
        return self.work / f"part-{number}"

    @property
    def vocabulary(self) -> Path:
        """Returns the path of the vocabulary's only shard."""
        return self.output / shard_name(VOCABULARY, 0, 1)

    @functools.cached_property
    def staged(self) -> Staged:
        """Returns the first step's results. Raises FileNotFoundError before it has finished."""
        return Staged(**parse_json((self.captions / "staged.json").read_text(encoding="utf-8")))

    @property
    def producer(self) -> dict[str, Any]:
        """Returns the producer metadata of shards."""
        return {"job": JOB, **self.settings}

    @property
    def num_shards(self) -> int:
        """Returns the number of shards of negatives, which cover all captions."""
        return -(-self.staged.captions // self.shard_captions)

    def shard(self, number: int) -> Path:
        """Returns the path of a shard of negatives."""
        return self.output / shard_name(NEGATIVES, number, self.num_shards)
