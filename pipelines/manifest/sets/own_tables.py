"""Reads LAIT and TaoMultimodal, which were never released, from user files with the columns that
the papers imply.

LAIT (ImageBERT, arXiv:2001.07966, section 3) has the columns of ``web_pairs`` output; TaoMultimodal
(InterBERT, arXiv:2003.13198) has item titles in Chinese, cleaned by its rules, with the item's
image.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmill.pipelines.filters.flags import add_word_arguments, word_flags
from vlmill.pipelines.manifest.cleaning import NamedClaims, clean_text, note_repairs, validate_text
from vlmill.pipelines.manifest.entries import DataSet, Entry, ListedImage, Reading, first_paths
from vlmill.pipelines.manifest.reading.rows import (
    column_names,
    find_column_indices,
    read_rows,
    table_file,
)
from vlmill.pipelines.manifest.reading.sources import Folder, Source, file_source
from vlmill.pipelines.web.texts.lists import TextLists, describe_lists, read_lists
from vlmill.pipelines.web.texts.words import chinese_words
from vlmill.runtime.console.command import path_or_url
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import compute_image_id, compute_pair_id
from vlmill.schemas.rejects import MAX_KEY, Reason
from vlmill.schemas.tables import PAIRS

MAX_CHARACTERS = 36  # characters of a title, without spaces
_CHINESE = re.compile("[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff]")

ENDINGS = (".tsv", ".csv", ".parquet")
LAIT_COLUMNS = ("image", "text", "text_source", "score", "page_url", "image_url")
TAO_COLUMNS = ("item_id", "title", "image", "category", "split")
WEB = ("http://", "https://")

Values = dict[str, str | None]


@dataclass(frozen=True, kw_only=True)
class TitleRules:
    """Holds the rules of titles; ``lists`` has the words and phrases of spam, if any."""

    lists: TextLists


def clean_title(title: str, rules: TitleRules) -> str | Drop:
    """Returns a title's first words, up to 36 characters, or why the title is dropped.

    The paper's segmenter is AliNLP; this function uses jieba's. A longer first word is cut.
    """
    if not _CHINESE.search(title):
        return Drop(Reason.OTHER_LANGUAGE, "no Chinese character")
    blocked = rules.lists.blocks(title, "zh")
    if blocked is not None:
        return Drop(Reason.BLOCKED_WORD, blocked)
    words = [word for part in title.split() for word in chinese_words(part)]
    return " ".join(first_words(words))


def first_words(words: list[str]) -> list[str]:
    """Returns the first words with at most 36 characters together."""
    if words and len(words[0]) > MAX_CHARACTERS:
        return [words[0][:MAX_CHARACTERS]]
    prefix, length = [], 0
    for word in words:
        length += len(word)
        if length > MAX_CHARACTERS:
            break
        prefix.append(word)
    return prefix


def _sources(folder: Folder) -> list[Source]:
    paths = folder.files(*ENDINGS)
    if not paths:
        raise folder.lacks(f"file that ends in {', '.join(ENDINGS)}")
    return list(map(file_source, paths))


def _columns(source: Source, known: tuple[str, ...], required: tuple[str, ...]) -> list[str]:
    """Returns the known columns of the file. Raises InputError if a required one is missing."""
    names = column_names(table_file(source.path))
    missing = [name for name in required if name not in names]
    if missing:
        there = ", ".join(names)[:300]
        raise InputError(f"--input {source.path}: no column {', '.join(missing)}; it has {there}")
    source.remarks.check(names, frozenset(known))
    return [name for name in known if name in names]


def _rows(
    source: Source, columns: list[str], make: Callable[[Values, str], Entry]
) -> Iterator[Entry]:
    table = table_file(source.path)
    column_indices = find_column_indices(table, [("column", name) for name in columns])
    for number, (_, fields) in enumerate(read_rows(table, column_indices)):
        key = f"{source.name}:{number}"
        if isinstance(fields, Drop):
            reason = Reason.BAD_ROW if fields.reason is Reason.BAD_RECORD else fields.reason
            drop = Drop(reason, fields.detail)
            yield Entry(key=key, group=source.name, rows=drop)
        else:
            yield make(dict(zip(columns, fields, strict=True)), key)


# LAIT


def _open_lait(folder: Folder, _: argparse.Namespace) -> Reading:
    if any(folder.root.glob("pairs-*.parquet")) and any(folder.root.glob("images-*.parquet")):
        return _open_web_pairs(folder.root)
    sources = _sources(folder)
    columns = {s.name: _columns(s, LAIT_COLUMNS, ("image", "text")) for s in sources}

    def entries() -> Iterator[Entry]:
        claims = NamedClaims()
        for source in sources:
            yield from _rows(
                source, columns[source.name], lambda v, key: _lait_entry(folder, claims, v, key)
            )

    return Reading(sources=tuple(sources), entries=entries, own_images=True)


def _lait_entry(folder: Folder, claims: NamedClaims, values: Values, key: str) -> Entry:
    """Returns a row's entry; image_id is the SHA-256 of the bytes, so a missing image has none."""
    group = key.rpartition(":")[0]
    published, location = values["text"] or "", (values["image"] or "").strip()
    text, content = validate_text(published), folder.image((location,))
    drop = next((value for value in (text, content) if isinstance(value, Drop)), None)
    score = _number(values.get("score"))
    drop = drop or (score if isinstance(score, Drop) else None)
    if drop is not None:
        return Entry(key=key, group=group, rows=drop)
    assert isinstance(content, bytes) and isinstance(text, str)
    image_id = compute_image_id(content)
    pair_id = compute_pair_id(image_id, text)
    drop = claims.claim(pair_id, text)
    if drop is not None:
        return Entry(key=key, group=group, rows=drop)
    url = _text(values.get("image_url"))
    pair = {
        "pair_id": pair_id,
        "image_id": image_id,
        "text": text,
        "source": "lait",
        "split": "train",
        "text_source": _text(values.get("text_source")),
        "score": score,
        "page_url": _text(values.get("page_url")),
        "image_url": url,
    }
    image = ListedImage(image_id=image_id, paths=(location,), url=url)
    notes = note_repairs(text, published)
    return Entry(key=key, group=group, rows=((PAIRS, pair),), images=(image,), notes=notes)


def _text(value: str | None) -> str | None:
    return clean_text(value or "") or None


def _number(value: str | None) -> float | Drop | None:
    if not (value or "").strip():
        return None
    try:
        number = float(value or "")
    except ValueError:
        number = float("nan")
    finite = abs(number) < float("inf")
    return number if finite else Drop(Reason.BAD_ROW, f"score {value!a}, expected a number"[:200])


def _open_web_pairs(folder: Path) -> Reading:
    """Opens the output of web_pairs, which is used as LAIT unchanged."""
    images = ImageReader(folder, flag="--input")
    paths = sorted([*folder.glob("pairs-*.parquet"), *folder.glob("images-*.parquet")])

    def entries() -> Iterator[Entry]:
        for batch in iter_batches(folder, PAIRS, flag="--input"):
            for row in batch.to_pylist():
                yield _web_pair(images, row)

    return Reading(
        sources=tuple(map(file_source, paths)),
        entries=entries,
        own_images=True,
    )


def _web_pair(images: ImageReader, row: dict[str, Any]) -> Entry:
    image_id = row["image_id"]
    content = images[image_id] if image_id in images else None  # noqa: SIM401  (no mapping)
    image = ListedImage(
        image_id=image_id, content=content, paths=(f"{image_id}",), url=row["image_url"]
    )
    pair = row | {"source": "lait", "split": row["split"] or "train"}
    return Entry(key=row["pair_id"], group="pairs", rows=((PAIRS, pair),), images=(image,))


# TaoMultimodal


def _add_tao_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--tao-clean",
        action="store_true",
        help="InterBERT's rules: drop titles without a Chinese character, split into "
        "words, keep at most 36 characters of full words, and drop titles that contain "
        "a blocked word",
    )
    add_word_arguments(p)
    p.add_argument(
        "--blocked-words",
        type=path_or_url,
        metavar="FILE",
        help="with --tao-clean: file of spam words and phrases, one per line",
    )


def _open_tao(folder: Folder, args: argparse.Namespace) -> Reading:
    kinds = word_flags(args)
    for flag in ("blocked_words", *(f"{kind}_words" for kind in kinds)):
        if getattr(args, flag) is not None and not args.tao_clean:
            name = flag.replace("_", "-")
            raise InputError(f"--{name}: only --tao-clean reads it; add that flag")
    blocked = [] if args.blocked_words is None else [str(args.blocked_words)]
    rules = TitleRules(lists=read_lists(blocked, None, kinds=kinds)) if args.tao_clean else None
    sources = _sources(folder)
    columns = {s.name: _columns(s, TAO_COLUMNS, ("item_id", "title", "image")) for s in sources}

    def entries() -> Iterator[Entry]:
        claims = NamedClaims()
        for source in sources:
            yield from _rows(
                source, columns[source.name], lambda v, key: _tao_entry(rules, claims, v, key)
            )

    return Reading(
        sources=tuple(sources),
        entries=entries,
        image_folders=("img", "images"),
        own_images=folder.has_any(first_paths(entries())),
        resolved=describe_lists(None, kinds) if args.tao_clean else {},
    )


def _tao_entry(rules: TitleRules | None, claims: NamedClaims, values: Values, key: str) -> Entry:
    group = key.rpartition(":")[0]
    item, location = clean_text(values["item_id"] or ""), (values["image"] or "").strip()
    published = values["title"] or ""
    text = validate_text(published)
    if not item or len(item) > MAX_KEY:
        text = Drop(Reason.BAD_ROW, "no item_id")
    if rules is not None and isinstance(text, str):
        text = clean_title(text, rules)
    drop = text if isinstance(text, Drop) else claims.claim(item, f"{text}\0{location}")
    if drop is not None:
        return Entry(key=key, group=group, rows=drop)
    assert isinstance(text, str)
    url = location if location.startswith(WEB) else None
    pair = {
        "pair_id": f"tao/{item}#0",
        "image_id": f"tao/{item}",
        "text": text,
        "language": "zh",
        "source": "tao",
        "split": clean_text(values.get("split") or "") or "train",
        "text_source": "title",
        "image_url": url,
        "category": _text(values.get("category")),
    }
    paths = () if url else (location,)
    image = ListedImage(image_id=f"tao/{item}", paths=paths, url=url, alone=True)
    notes = note_repairs(text, published)
    return Entry(key=key, group=group, rows=((PAIRS, pair),), images=(image,), notes=notes)


LAIT = DataSet(
    about="""\
LAIT (ImageBERT, arXiv:2001.07966) was never released: this reads the output of web_pairs, or TSV,
CSV and Parquet files with the columns image (a file under DIR) and text, and optionally
text_source, score, page_url, image_url. image_id is the SHA-256 of the image's bytes.""",
    tables=(PAIRS,),
    open=_open_lait,
    papers=(("ImageBERT", "10M pairs, 2M of them used; texts of 13 words on average"),),
)
TAO = DataSet(
    about="""\
TaoMultimodal (InterBERT, arXiv:2003.13198) was never released: this reads TSV, CSV and Parquet
files with the columns item_id, title, image (a file under DIR, or a URL), and optionally category
and split (default: train). image_id is tao/<item_id>. For the paper's regions use
`extract-rois run --selection tao` with a detector of 33 classes.""",
    tables=(PAIRS,),
    open=_open_tao,
    add_arguments=_add_tao_arguments,
    options=("tao_clean", "blocked_words", "adult_words", "spam_words"),
    papers=(("InterBERT, section on TaoMultimodal", "3.1M pairs, 200K more for fine-tuning"),),
)
