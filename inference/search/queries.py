"""Encodes queries as vectors: texts and image files by the checkpoint, or rows of a table.

Q queries, P width of the vectors.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmill.inference.search.embedding_inputs import find_embedding_mode, weights_digest
from vlmill.inference.search.index import SearchIndex
from vlmill.inference.search.table import (
    IMAGE,
    TEXT,
    Vectors,
    count_kinds,
    get_row_key,
    read_vectors,
)
from vlmill.runtime.console.command import print_status
from vlmill.runtime.readers.images import HeldImages
from vlmill.schemas.errors import InputError, with_article
from vlmill.schemas.plurals import format_count
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint
from vlmill.train.checkpoints.folders import find_checkpoint
from vlmill.train.devices.setup import device_named
from vlmill.train.loading.images.crop import DecodePixels, evaluation_image
from vlmill.train.loading.vocabulary import SPECIALS, encode_texts
from vlmill.train.tasks.retrieval.checks import find_feeding, longest_text
from vlmill.train.tasks.retrieval.inputs import PixelImages
from vlmill.train.tasks.retrieval.vectors import image_vectors, text_vectors

QUERIES = 1_024  # queries per block


@dataclass(frozen=True, kw_only=True)
class Query:
    """Holds a query by its kind and name; ``error`` is the reason for having no ``vector`` [P].

    ``row_key`` names the vector's own row (kind, id), which is not a result; ``content`` holds an
    image's bytes.
    """

    kind: str
    name: str
    text: str | None = None
    vector: NDArray[np.float32] | None = None
    error: str | None = None
    row_key: tuple[str, str] | None = None
    content: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class AnsweredQuery:
    """Holds a query and its answers, the best first, as rows with their ``score``."""

    query: Query
    answers: Sequence[dict[str, Any]]

    def line(self) -> str:
        """Returns the result as a line of JSON."""
        query = self.query
        query_record = {"kind": query.kind, "name": query.name}
        if query.error is not None:
            return json.dumps({"query": query_record, "error": query.error}, ensure_ascii=False)
        return json.dumps({"query": query_record, "answers": self.answers}, ensure_ascii=False)


@dataclass(frozen=True, kw_only=True)
class QueryEncoder:
    """Encodes queries with the checkpoint that computed an index's vectors."""

    loaded: LoadedCheckpoint
    device: str
    batch_size: int = 64
    decode: DecodePixels = evaluation_image

    def texts(self, texts: Sequence[str]) -> list[Query]:
        """Embeds texts. Raises InputError for a text without a word."""
        longest = longest_text(self.loaded, find_feeding(self.loaded))
        encoded = encode_texts(self.loaded.tokenizer, texts, longest)
        for text, tokens in zip(texts, encoded.tokens, strict=True):
            if len(tokens) <= SPECIALS:
                raise InputError(f"--text {text!r} has no word; give one")
        if encoded.cut:
            print_status(f"note: cut {format_count(encoded.cut, 'text')} to {longest} tokens")
        vectors = text_vectors(
            self.loaded.model,
            encoded.tokens,
            device=device_named(self.device),
            batch_size=self.batch_size,
        )
        return [
            Query(kind=TEXT, name=text, text=text, vector=vector)
            for text, vector in zip(texts, vectors, strict=True)
        ]

    def images(self, contents: Mapping[str, bytes]) -> list[Query]:
        """Encodes images by their names; an unreadable one becomes a query with an error."""
        numbered = {str(number): content for number, content in enumerate(contents.values())}
        embedded = image_vectors(
            self.loaded.model,
            list(numbered),
            PixelImages(HeldImages(numbered), find_feeding(self.loaded), self.decode),
            device=device_named(self.device),
            batch_size=self.batch_size,
        )
        return [
            Query(
                kind=IMAGE,
                name=name,
                vector=embedded.vectors.get(number),
                error=embedded.faults.get(number),
                content=content,
            )
            for name, (number, content) in zip(contents, numbered.items(), strict=True)
        ]


def load_query_encoder(
    index: SearchIndex, checkpoint: Path | None, device: str, *, flag: str = "--text"
) -> QueryEncoder:
    """Loads the checkpoint of the index's vectors.

    Raises InputError if it differs, or cannot encode single texts or images.
    """
    if checkpoint is None:
        checkpoint_name = index.settings["checkpoint"]
        if checkpoint_name is None:
            raise InputError("--checkpoint is missing: the vectors do not record it")
        try:
            checkpoint = find_checkpoint(checkpoint_name)
        except InputError:
            raise InputError(
                f"--checkpoint is missing: the vectors name {checkpoint_name}, and this "
                "folder does not exist from here; give --checkpoint DIR, the checkpoint "
                "that computed them"
            ) from None
    return make_query_encoder(index, load_checkpoint(checkpoint), device, flag=flag)


def make_query_encoder(
    index: SearchIndex, loaded: LoadedCheckpoint, device: str, *, flag: str
) -> QueryEncoder:
    """Checks that a checkpoint computed the index's vectors, and can encode the queries.

    Raises InputError otherwise.
    """
    if (mode := find_embedding_mode(loaded)) == "text" and flag != "--text":
        raise InputError(
            f"{flag}: {with_article(loaded.variant)} reads only texts; give --text or --queries"
        )
    if mode == "pair":
        raise InputError(
            f"{flag}: {with_article(loaded.variant)} reads text and image together, and has no "
            "vector of one alone; give `train-vl search` vectors of pairs, --queries"
        )
    require_weights(loaded, index.settings)
    loaded.model.to(device_named(device))
    return QueryEncoder(loaded=loaded, device=device)


def require_weights(loaded: LoadedCheckpoint, settings: Mapping[str, Any]) -> None:
    """Raises InputError for a checkpoint that did not compute the vectors of an index."""
    if weights_digest(loaded) != settings["weights_sha256"]:
        raise InputError(
            f"--checkpoint {loaded.path} is not the checkpoint that computed the "
            "vectors; give that checkpoint, or embed again with this one"
        )


def table_queries(argument: str, index: SearchIndex) -> Iterator[list[Query]]:
    """Yields the vectors of a table as queries, in blocks.

    If it holds kinds that the index lacks, these are used: texts search images, and images search
    texts. Raises InputError for vectors of another checkpoint or width.
    """
    kinds = count_kinds(argument, "--queries")
    other_kinds = {kind: count for kind, count in kinds.items() if kind != index.settings["of"]}
    for kind, count in (other_kinds or kinds).items():
        vectors = read_vectors(argument, kind, count, "--queries")
        require_same(vectors, index)
        for start in range(0, count, QUERIES):
            rows = vectors.about.slice(start, QUERIES).to_pylist()
            yield [
                Query(kind=kind, name=row_key[1], text=row["text"], vector=vector, row_key=row_key)
                for row, vector in zip(rows, vectors.matrix[start : start + QUERIES], strict=True)
                if (row_key := get_row_key(row))
            ]


def require_same(vectors: Vectors, index: SearchIndex) -> None:
    """Raises InputError for vectors that are not of the index's checkpoint and width."""
    width = vectors.matrix.shape[1]
    if width != index.width:
        raise InputError(
            f"--queries are {width} wide, the index {index.width}; embed both with the same "
            f"checkpoint"
        )
    index_digest, query_digest = index.settings["weights_sha256"], vectors.origin["weights_sha256"]
    if index_digest != query_digest:
        raise InputError(
            f"--queries are of checkpoint {vectors.origin['checkpoint']}, the index of "
            f"{index.settings['checkpoint']}, with other weights; embed them with one"
        )
