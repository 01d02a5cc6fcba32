"""Defines the Arrow schemas of every table that one stage writes and another reads.

Missing values are null, never NaN. Boxes are float32 (x1, y1, x2, y2) in pixels of the original
image. The large arrays of training (features, class probabilities) are ``large_binary``: row-major,
little-endian, with dtype and width in the file's metadata, because nested Arrow lists of them read
an order of magnitude more slowly.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from vlmill.schemas.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table's contract. ``version`` is MAJOR.MINOR; readers refuse another major version.

    ``later`` names columns that an earlier minor version has not: missing, they are read as nulls.
    """

    name: str
    version: str
    schema: pa.Schema
    later: frozenset[str] = frozenset()

    @cached_property
    def fields(self) -> dict[str, pa.Field]:
        """Returns the schema's fields by name, at a tenth of the cost of asking it."""
        return {field.name: field for field in self.schema}


def _field(name: str, kind: pa.DataType, *, required: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=not required)


def _table(
    name: str, version: str, *fields: pa.Field, later: frozenset[str] = frozenset()
) -> Table:
    return Table(name=name, version=version, schema=pa.schema(list(fields)), later=later)


_STRING, _INT32, _FLOAT32, _BYTES = pa.string(), pa.int32(), pa.float32(), pa.large_binary()

IMAGES = _table(
    "images",
    "1.0",
    _field("image_id", _STRING, required=True),
    _field("bytes", _BYTES),
    _field("uri", _STRING),
    _field("width", _INT32),
    _field("height", _INT32),
    _field("format", _STRING),
    _field("sha256", _STRING),
    _field("source_url", _STRING),
)

PAIRS = _table(
    "pairs",
    "1.5",
    _field("pair_id", _STRING, required=True),
    _field("image_id", _STRING),  # null: a text without an image (since 1.1)
    _field("text", _STRING, required=True),
    _field("language", _STRING),
    _field("source", _STRING),
    _field("split", _STRING),
    _field("text_source", _STRING),
    _field("score", pa.float64()),
    _field("page_url", _STRING),
    _field("image_url", _STRING),
    _field("license", _STRING),  # as on the page: a URL, or words (since 1.2)
    _field("fold", _INT32),  # of COCO's test images, 0..4 (these since 1.3)
    _field("caption_no", _INT32),  # which of its image's captions, from 0
    _field("doc", _INT32),  # which of its file's documents a text is of, from 0
    _field("category", _STRING),  # of an item, from its shop (since 1.4)
    # Of the image filters that were on, 0 to 1 (since 1.5)
    _field("nsfw_score", pa.float64()),
    _field("realism_score", pa.float64()),
    later=frozenset(
        {"license", "fold", "caption_no", "doc", "category", "nsfw_score", "realism_score"}
    ),
)

CANDIDATES = _table(
    "candidates",
    "1.1",
    _field("pair_id", _STRING, required=True),
    _field("image_id", _STRING, required=True),
    _field("text", _STRING, required=True),
    _field("rank", _INT32, required=True),  # among its image's texts; 0 is in ``pairs``
    _field("language", _STRING),
    _field("split", _STRING),
    _field("text_source", _STRING),
    _field("score", pa.float64()),
    _field("page_url", _STRING),
    _field("image_url", _STRING),
    _field("license", _STRING),
    _field("features", _STRING),  # JSON: names and values of the score's components
    _field("nsfw_score", pa.float64()),  # of its image (since 1.1)
    _field("realism_score", pa.float64()),
    later=frozenset({"nsfw_score", "realism_score"}),
)

NEGATIVES = _table(
    "negatives",
    "1.0",
    _field("pair_id", _STRING, required=True),
    _field("negative_pair_ids", pa.list_(_STRING), required=True),
    _field("similarities", pa.list_(_FLOAT32), required=True),
)

# Sorted by falling number of captions, then by code point: the row number is the word's number.
VOCABULARY = _table(
    "vocabulary",
    "1.0",
    _field("word", _STRING, required=True),
    _field("captions", pa.int64(), required=True),  # that have the word
    _field("idf", pa.float64(), required=True),
)

REGIONS = _table(
    "regions",
    "1.0",
    _field("image_id", _STRING, required=True),
    _field("width", _INT32, required=True),
    _field("height", _INT32, required=True),
    _field("num_boxes", _INT32, required=True),
    _field("boxes", pa.list_(pa.list_(_FLOAT32, 4)), required=True),
    _field("features", _BYTES),
    _field("class_ids", pa.list_(pa.int16())),
    _field("class_scores", pa.list_(_FLOAT32)),
    _field("class_probs", _BYTES),
    _field("class_prob_ids", _BYTES),  # uint16 class numbers of a top-k class_probs
    _field("attribute_ids", pa.list_(pa.int16())),
    _field("attribute_scores", pa.list_(_FLOAT32)),
    _field("global_feature", _BYTES),
)

NEIGHBOURS = _table(
    "neighbours",
    "1.0",
    _field("image_id", _STRING, required=True),
    _field("neighbour_ids", pa.list_(_STRING), required=True),  # the nearest first
    _field("distances", pa.list_(_FLOAT32)),  # null: not stated by the writer of the file
)

# One vector of length 1 a row, of an image, a text or a pair by one checkpoint: inner products are
# cosines. `kind` states the source: `image` (image_id), `text` or `pair` (pair_id).
VECTORS = _table(
    "vectors",
    "1.0",
    _field("kind", _STRING, required=True),
    _field("image_id", _STRING),
    _field("pair_id", _STRING),
    _field("text", _STRING),
    _field("vector", _BYTES, required=True),  # float32
)

# One row for each URL of a crawl, listed or found; sorted by URL.
OUTCOMES = _table(
    "outcomes",
    "1.0",
    _field("url", _STRING, required=True),
    _field("host", _STRING, required=True),
    _field("stage", _STRING, required=True),  # how it became known, as in the funnel
    _field("referrer", _STRING),  # the page or the redirect that has led to it first
    _field("outcome", _STRING, required=True),  # fetched, redirected, ... or a reason
    _field("detail", _STRING),
    _field("status", _INT32),  # of HTTP; null where no answer came
    _field("redirect_url", _STRING),
    _field("media_type", _STRING),  # as in the response
    _field("num_bytes", pa.int64()),  # of the content without its encodings
    _field("sha256", _STRING),  # of the same
    _field("etag", _STRING),
    _field("last_modified", _STRING),
    _field("fetched_at", pa.timestamp("ms", tz="UTC")),  # when the last request began
    _field("seconds", _FLOAT32),  # until the end of its answer
    _field("attempts", _INT32, required=True),  # number of requests; 0 if none was made
    _field("address", _STRING),  # the server's
    _field("warc", _STRING),  # the file in the same folder that has the response
    _field("warc_offset", pa.int64()),
    _field("warc_length", pa.int64()),
)

_TAGS = pa.list_(pa.list_(_INT32))

QUESTIONS = _table(
    "questions",
    "1.1",
    _field("question_id", _STRING, required=True),
    _field("image_id", _STRING, required=True),
    _field("question", _STRING, required=True),
    _field("question_type", _STRING),
    _field("answer_type", _STRING),  # yes/no, number, other
    _field("answer", _STRING),  # the most frequent one, as published
    _field("answers", pa.list_(_STRING)),  # of each annotator, as typed; null: not public
    _field("label_ids", pa.list_(_INT32)),  # indices in the list of labels
    _field("label_scores", pa.list_(_FLOAT32)),  # 0..1, of each of label_ids
    _field("split", _STRING),
    _field("source", _STRING),  # vqa1, vqa2, vgqa, vizwiz, okvqa, gqa, own
    # These since 1.1. Of GQA: questions that a correct answer to this one answers, too.
    _field("entailed_ids", pa.list_(_STRING)),
    _field("is_balanced", pa.bool_()),  # of GQA: in the balanced part, which is scored
    _field("answerable", pa.bool_()),  # of VizWiz
    later=frozenset({"entailed_ids", "is_balanced", "answerable"}),
)

# Classes of images, of texts, or of both together. Several labels a row: the classes overlap.
LABELS = _table(
    "labels",
    "1.0",
    _field("example_id", _STRING, required=True),
    _field("image_ids", pa.list_(_STRING), required=True),  # any number, in order
    _field("text", _STRING),
    _field("labels", pa.list_(_STRING)),  # null: not public; empty: none of the classes
    _field("label_ids", pa.list_(_INT32)),  # rising indices in the list of labels
    _field("split", _STRING),
    _field("source", _STRING),  # own, hateful-memes
)

CHOICES = _table(
    "choices",
    "1.0",
    _field("example_id", _STRING, required=True),
    _field("image_id", _STRING, required=True),
    _field("question", _STRING, required=True),  # an object is the token [i], from 0
    _field("choices", pa.list_(_STRING), required=True),
    _field("label", pa.int8(), required=True),  # correct choice; -1: not public
    _field("task", _STRING, required=True),  # q2a, qa2r
    _field("object_names", pa.list_(_STRING), required=True),
    _field("boxes", pa.list_(_FLOAT32), required=True),  # 4 a named object
    _field("box_scores", pa.list_(_FLOAT32)),
    _field("segms", _STRING),  # JSON: for each object its polygons [[x, y], ...]
    # For each word of the text the objects it names, -1 for a plain word.
    _field("question_tags", _TAGS, required=True),
    _field("choice_tags", pa.list_(_TAGS), required=True),
    _field("split", _STRING),
    _field("source", _STRING),
)

EXPRESSIONS = _table(
    "expressions",
    "1.0",
    _field("expression_id", _STRING, required=True),
    _field("ref_id", _STRING),  # of the object in its data set: several texts name it
    _field("ann_id", _STRING),
    _field("image_id", _STRING, required=True),
    _field("text", _STRING, required=True),
    _field("box", pa.list_(_FLOAT32), required=True),  # x1, y1, x2, y2
    _field("category_id", _INT32),  # as published
    _field("split", _STRING),
    _field("source", _STRING),  # refcoco, refcoco+, refcocog, vg
    _field("split_by", _STRING),  # unc, google, umd: who has cut the splits
)

STATEMENTS = _table(
    "statements",
    "1.1",
    _field("example_id", _STRING, required=True),
    # Two of NLVR2, one of SNLI-VE and VSR, none of GLUE.
    _field("image_ids", pa.list_(_STRING), required=True),
    _field("text_a", _STRING, required=True),
    _field("text_b", _STRING),
    _field("label", _STRING),  # as published
    # -1: not public, or a score; else an index in the list of labels, where there is one
    _field("label_id", pa.int8(), required=True),
    _field("score", _FLOAT32),  # STS-B: 0..5
    _field("split", _STRING),
    _field("source", _STRING),  # nlvr2, glue/cola, snli-ve, vsr, own
    # Of NLVR2: balanced, unbalanced; null: neither. Of VSR: the relation. (since 1.1)
    _field("subset", _STRING),
    later=frozenset({"subset"}),
)

# Annotated objects of an image: what training a detector reads.
BOXES = _table(
    "boxes",
    "1.0",
    _field("image_id", _STRING, required=True),
    _field("width", _INT32, required=True),
    _field("height", _INT32, required=True),
    _field("boxes", pa.list_(pa.list_(_FLOAT32, 4)), required=True),
    # Lines of a vocabulary, from 0; of RefCOCO as published, 1 to 90.
    _field("class_ids", pa.list_(pa.int16()), required=True),
    _field("is_crowd", pa.list_(pa.bool_())),  # a box around many of a kind; null: none is
    _field("attribute_ids", pa.list_(pa.list_(pa.int16()))),  # of each box, any number
    _field("split", _STRING),
    _field("source", _STRING),
)

ALIASES = _table(
    "aliases",
    "1.0",
    _field("image_id", _STRING, required=True),
    _field("alias", _STRING, required=True),  # coco/..., flickr/..., url-sha256/...
)

REJECTS = _table(
    "rejects",
    "1.0",
    _field("stage", _STRING, required=True),
    _field("key", _STRING, required=True),
    _field("reason", _STRING, required=True),
    _field("detail", _STRING),
)

# Properties of a column's values that can break its contract.
NULLS, NO_UTF8 = "nulls", "texts that are not UTF-8"
LISTS = (pa.ListArray, pa.FixedSizeListArray)
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)

TASK_TABLES = (QUESTIONS, CHOICES, EXPRESSIONS, STATEMENTS, LABELS)  # what fine-tuning reads
TABLES = {
    t.name: t
    for t in (
        *(IMAGES, PAIRS, CANDIDATES, NEGATIVES, VOCABULARY, REGIONS, NEIGHBOURS, VECTORS),
        *(BOXES, ALIASES, OUTCOMES, REJECTS),
        *TASK_TABLES,
    )
}


def table_of_rows(rows: list[dict[str, object]], spec: Table) -> pa.Table:
    """Returns rows as a table with exactly the columns of ``spec``.

    Raises ValueError for a key that is not a column; Arrow alone would silently drop it.
    """
    values = _values_by_name(rows)
    if unknown := sorted(values.keys() - spec.fields.keys()):
        raise ValueError(f"{spec.name} has no column {', '.join(unknown)}")
    columns = [
        pa.array(values[field.name], field.type)
        if field.name in values
        else pa.nulls(len(rows), field.type)
        for field in spec.schema
    ]
    return conform(pa.Table.from_arrays(columns, schema=spec.schema), spec)


def _values_by_name(rows: list[dict[str, object]]) -> dict[str, list[object]]:
    """Returns the values of each key; rows of one producer mostly share their keys, and are then
    looked through once a key, not once more to collect the keys.
    """
    first = rows[0] if rows else {}
    if set(map(len, rows)) == {len(first)}:
        try:
            return {name: list(map(itemgetter(name), rows)) for name in first}
        except KeyError:  # as many keys, but others
            pass
    return {name: [row.get(name) for row in rows] for name in set[str]().union(*rows)}


def conform(table: pa.Table, spec: Table) -> pa.Table:
    """Returns ``table`` with ``spec``'s columns in order.

    Raises a ValueError that names the column at fault.
    """
    if fault := schema_fault(table.schema, spec):
        raise ValueError(fault)
    table = add_missing_columns(table, spec, spec.schema.names)
    if extra := [name for name in table.schema.names if name not in spec.schema.names]:
        raise ValueError(f"{spec.name} has no column {', '.join(extra)}")
    for field in spec.schema:
        column = table.column(field.name)
        if any(breaks_contract(chunk, field) for chunk in column.chunks):
            counts = sum((count_faults(c, field) for c in column.chunks), Counter[str]())
            if counts:
                raise ValueError(values_fault(counts, field, spec))
        if pa.types.is_floating(field.type) and pc.any(pc.is_nan(column)).as_py():
            raise ValueError(f"{spec.name}.{field.name} has NaN; use null for a missing value")
    if table.schema.equals(spec.schema):
        return table.replace_schema_metadata(spec.schema.metadata)
    return table.select(spec.schema.names).cast(spec.schema)


def add_missing_columns(rows: Rows, spec: Table, names: Sequence[str]) -> Rows:
    """Adds a column of nulls for each of ``names`` that an earlier minor version lacks."""
    for name in names:
        if name in spec.later and name not in rows.schema.names:
            nulls = pa.nulls(rows.num_rows, spec.fields[name].type)
            rows = rows.append_column(spec.fields[name], nulls)
    return rows


def schema_fault(schema: pa.Schema, spec: Table) -> str | None:
    """Returns which column of ``spec`` is missing or has another type, None if all fit."""
    for field in spec.schema:
        indices = schema.get_all_field_indices(field.name)
        if not indices and field.name in spec.later:
            continue
        if not indices:
            names = ", ".join(schema.names)[:200]
            return f"{spec.name} lacks the column {field.name} ({field.type}); its own are {names}"
        if len(indices) > 1:
            return f"{spec.name} has the column {field.name} {len(indices)} times, must have one"
        if (kind := schema.field(indices[0]).type) != field.type:
            return f"{spec.name}.{field.name} is {kind}, must be {field.type}"
    return None


def breaks_contract(values: pa.Array, field: pa.Field) -> bool:
    """Returns whether values of a column may break its contract; :func:`count_faults` counts them.

    Costs microseconds for columns without text, because the number of nulls is known.
    """
    if values.null_count and not field.nullable:
        return True
    while isinstance(values, LISTS):  # of lists, including values outside of a slice
        values = values.values
        if values.null_count:
            return True
    return isinstance(values, pa.StringArray) and not _is_text(values)


def count_faults(values: pa.Array, field: pa.Field) -> Counter[str]:
    """Counts the values of a column that break its contract, by the rule they break.

    Counts forbidden nulls, also inside lists, as NULLS, and texts that are not UTF-8 as NO_UTF8.
    """
    counts = Counter({NULLS: 0 if field.nullable else values.null_count})
    while isinstance(values, LISTS):
        values = values.flatten()
        counts[NULLS] += values.null_count
    if isinstance(values, pa.StringArray) and not _is_text(values):
        texts = values.cast(pa.binary()).to_pylist()
        counts[NO_UTF8] = sum(not _is_utf8(text) for text in texts)
    return +counts


def _is_text(values: pa.StringArray) -> bool:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_utf8(text: bytes | None) -> bool:
    try:
        return text is None or text.decode() is not None
    except UnicodeDecodeError:
        return False


def values_fault(counts: Mapping[str, int], field: pa.Field, spec: Table) -> str:
    """Returns the counts of :func:`count_faults` in words."""
    details = " and ".join(f"{count} {what}" for what, count in counts.items())
    return f"{spec.name}.{field.name} has {details}, must have none"


def check_version(metadata: dict[bytes, bytes] | None, spec: Table, path: str) -> None:
    """Raises InputError unless a file's metadata states ``spec`` in a known major version."""
    name = (metadata or {}).get(b"vlmill.table", b"").decode("utf-8", "replace")
    version = (metadata or {}).get(b"vlmill.version", b"").decode("utf-8", "replace")
    if name != spec.name:
        what = f"a table of {name}" if name else "no table of vlmill"
        raise InputError(f"{path} is {what}; give a table of {spec.name}")
    if version.split(".")[0] != spec.version.split(".")[0]:
        raise InputError(
            f"{path} is version {version} of {spec.name}, this vlmill reads {spec.version}; "
            "install the vlmill that wrote it or write the table again"
        )
