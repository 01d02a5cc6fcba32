"""Reads text corpora as pairs without an image, in the order of their lines.

Neighbouring lines belong together: VL-BERT fills a sample up with the lines that follow. Files are
VL-BERT's (``wiki.doc``, ``bc1g.doc``), VLMo's (``wikibk.0.txt``), BookCorpus's, or the user's.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from vlmill.pipelines.manifest.cleaning import note_repairs, validate_text
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, Reading
from vlmill.pipelines.manifest.reading.lines import read_lines
from vlmill.pipelines.manifest.reading.sources import Folder, Source, file_source
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS

# The source of a file by its name; other files have --source.
SOURCES = (
    (re.compile(r"wikibk[._].*", re.IGNORECASE), "wikibk"),
    (re.compile(r"wiki.*", re.IGNORECASE), "wikipedia"),
    (re.compile(r"(bc1g|books?).*", re.IGNORECASE), "books"),
)
ENDINGS = (".txt", ".doc", ".txt.gz", ".doc.gz")
BOOKS = ("books_large_p1.txt", "books_large_p2.txt")
NUM_BOOK_LINES = 74_004_228


def _add_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--source",
        metavar="NAME",
        help="value of the column source (default: wikipedia, books or wikibk from a "
        "file's name, else text)",
    )
    p.add_argument(
        "--language", default="en", metavar="CODE", help="language of the texts (default: en)"
    )


def _open(folder: Folder, args: argparse.Namespace) -> Reading:
    paths = [*folder.files(*ENDINGS), *folder.files("wikibk_val_0")]
    sources = list(map(file_source, paths))
    if not sources:
        raise folder.lacks("*.txt or *.doc")
    check_stems(folder.root, [source.name for source in sources])
    books = all(folder.find(name) for name in BOOKS)
    note = "note: BookCorpus is reported to have 74,004,228 lines in its two files"
    return Reading(
        sources=tuple(sources),
        entries=lambda: (e for s in sources for e in _entries(s, args.source, args.language)),
        expected={"books_large": Expected(rows=NUM_BOOK_LINES, source="BookCorpus", verified=False)}
        if books
        else {},
        messages=(note,) if books else (),
    )


def check_stems(root: Path, names: Sequence[str]) -> None:
    """Raises InputError for two files with the same stem, whose rows would share their ids."""
    stems: dict[tuple[str, str], str] = {}
    for name in names:
        key = get_stem(name), find_source(name)
        if key in stems:
            raise InputError(
                f"--input {root}: {stems[key]} and {name} would give their rows the same ids; "
                "rename one"
            )
        stems[key] = name


def get_stem(name: str) -> str:
    """Returns a file's name without its endings: ``wikibk.0`` of ``wikibk.0.txt.gz``."""
    bare = name.removesuffix(".gz")
    return bare.rpartition(".")[0] if bare.endswith((".txt", ".doc")) else bare


def find_source(name: str) -> str:
    """Returns the source of a file's rows, by its name."""
    return next((source for pattern, source in SOURCES if pattern.fullmatch(name)), "text")


def _entries(source: Source, source_name: str | None, language: str) -> Iterator[Entry]:
    stem, name = get_stem(source.name), source_name or find_source(source.name)
    split = "val" if "_val_" in source.name else "train"
    group = "books_large" if source.name in BOOKS else source.name
    doc, text_in_doc = 0, False
    for number, line in read_lines(source):
        if isinstance(line, str) and not line.strip():
            doc, text_in_doc = doc + text_in_doc, False  # empty lines separate documents
            continue
        text_in_doc = True
        key = f"{source.name}:{number}"
        text = line if isinstance(line, Drop) else validate_text(line)
        if isinstance(text, Drop):
            yield Entry(key=key, group=group, rows=text)
            continue
        pair = {
            "pair_id": f"{name}/{stem}/{number}",
            "text": text,
            "language": language,
            "source": name,
            "split": split,
            "doc": doc,
        }
        notes = note_repairs(text, str(line))
        yield Entry(key=key, group=group, rows=((PAIRS, pair),), notes=notes)


TEXTS = DataSet(
    about="""\
Texts without images as pairs whose image_id is null, in the order of their lines: every .txt and
.doc of DIR. VL-BERT's wiki.doc and bc1g.doc, VLMo's wikibk.N.txt, BookCorpus's books_large_p1.txt
and p2. pair_id is <source>/<file>/<line from 0>; empty lines separate documents (the
column doc). Lines of over 10,000 characters are remains of markup: `too_long`.""",
    tables=(PAIRS,),
    open=_open,
    add_arguments=_add_arguments,
    options=("source", "language"),
)
