"""Holds the options of ``train-vl search``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Holds the options of ``train-vl search``."""

    index: Path | None = None
    vectors: str | None = None
    of: str | None = None
    type: str = "flat"
    effort: int | None = None
    columns: Sequence[str] = ()
    columns_from: str | None = None
    neighbours: int | None = None
    append: str | None = None
    delete: str | None = None
    save_index: Path | None = None
    text: Sequence[str] = ()
    image: Sequence[str] = ()
    item: Sequence[str] = ()
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    queries: str | None = None
    top: int = 10
    rerank: int | None = None
    reranker: Path | None = None
    regions: str | None = None
    images: str | None = None
    output: Path | None = None
    checkpoint: Path | None = None
    device: str = "cpu"
    search_device: str = "cpu"
    threads: int | None = None
