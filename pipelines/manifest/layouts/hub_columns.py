"""Finds the columns to read in a Parquet file, and the split in a file's name."""

import argparse
import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from vlmill.pipelines.manifest.reading.columns import (
    IMAGES,
    guess_column,
    split_column,
    text_columns,
)
from vlmill.pipelines.manifest.reading.sources import Source
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import parse_json
from vlmill.schemas.splits import find_use

FILE_NAMES = ("filename",)  # columns of images if none has a usual name


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Holds the columns to read. ``split_names`` are the names of a split that is a class label.

    ``by_end``: paths of another machine are looked up below --images by their last parts.
    """

    texts: tuple[str, ...]
    image: str
    id: str | None
    split: str | None
    split_names: tuple[str, ...] = ()
    by_end: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Returns all columns, each once."""
        optional = [name for name in (self.id, self.split) if name is not None]
        return tuple(dict.fromkeys((*self.texts, self.image, *optional)))


def find_columns(schema: pa.Schema, source: Source, args: argparse.Namespace) -> Columns:
    """Returns the columns that the flags name, or that have usual names. Raises InputError."""
    names, display_name = schema.names, source.display_name
    texts = text_columns(names, args.text_column, display_name)
    usual = IMAGES if any(name in names for name in IMAGES) else FILE_NAMES
    if args.image_column is None and not any(name in names for name in usual):
        usual = IMAGES  # the message lists their names
    image = guess_column(names, usual, args.image_column, "--image-column", display_name)
    if args.id_column is not None:
        guess_column(names, (), args.id_column, "--id-column", display_name)
        _check_type(schema, args.id_column, "--id-column", display_name, numbers=True)
    split = None
    if not args.no_split_column:
        excluded = [*texts, image, *([args.id_column] if args.id_column else [])]
        split = split_column(names, args.split_column, excluded, display_name)
    labels = () if split is None else read_label_names(schema, split)
    if split is not None:
        _check_type(schema, split, "--split-column", display_name, numbers=bool(labels))
        if args.split is not None and args.split_column is None:
            raise InputError(
                f"--split {args.split}: {display_name} has the column {split}, which gives each "
                "row's "
                f"split; add --split-column {split} (then only rows where it is empty are "
                f"{args.split}) or --no-split-column (then all are)"
            )
    return Columns(texts=texts, image=image, id=args.id_column, split=split, split_names=labels)


def _check_type(
    schema: pa.Schema, name: str, flag: str, display_name: str, *, numbers: bool
) -> None:
    kind = schema.field(name).type
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = pa.types.is_string(inner) or pa.types.is_large_string(inner)
    if not texts and not (numbers and pa.types.is_integer(inner)):
        expected = "text or whole numbers" if numbers else "text, or a class label with its names"
        remedy = " or --no-split-column" if flag == "--split-column" else ""
        raise InputError(
            f"{display_name}: the column {name} is {kind}; expected {expected}: name "
            "another column with "
            f"{flag} NAME"
            f"{remedy}"
        )


def read_label_names(schema: pa.Schema, name: str) -> tuple[str, ...]:
    """Returns the names of a class label from the schema's metadata; () for other columns."""
    try:
        about = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"))
        names = about["info"]["features"][name]["names"]
    except (ValueError, KeyError, TypeError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def resolved_options(columns: Columns) -> dict[str, Any]:
    """Returns the columns as the values of the options that name them."""
    return {
        "text_column": list(columns.texts),
        "image_column": columns.image,
        "id_column": columns.id,
        "split_column": columns.split,
    }


def format_columns(columns: Columns) -> str:
    """Returns a line about the columns that are read."""
    columns_by_use = {"captions": ", ".join(columns.texts), "images": columns.image}
    columns_by_use |= {"image_id": columns.id or "", "splits": columns.split or "the files' names"}
    return (
        f"columns: {'; '.join(f'{what}: {name}' for what, name in columns_by_use.items() if name)}"
    )


def split_of_name(source: Source) -> str | None:
    """Returns the split that is a word of the name of a file or of its folders: test for
    ``test-00000-of-00001.parquet``. Raises InputError if the name has several.
    """
    words = re.split(r"[^A-Za-z0-9]+", source.name.rpartition(".")[0])
    forms = [(w, w.rstrip("0123456789"), w.lower().removesuffix("ing")) for w in words if w]
    known = [next((form for form in word_forms if find_use(form)), None) for word_forms in forms]
    splits = {word.lower(): word for word in known if word is not None}
    if len(splits) > 1:
        raise InputError(
            f"{source.display_name}: its name has the splits "
            f"{' and '.join(splits.values())}; name the split of its rows with --split "
            "NAME, or a column with --split-column NAME"
        )
    return next(iter(splits.values()), None)


def split_or_none(source: Source) -> str | None:
    """Returns the split of a file's name, for rows with an empty split; None if it has several."""
    try:
        return split_of_name(source)
    except InputError:
        return None
