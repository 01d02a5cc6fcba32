"""CPU seconds a GB of importing and exporting each format, compared with copying the same files.

Regions of 36 boxes x 2048 float32, as published, in files of every format. The limit is what no
program can avoid: to read and write the same files (one an image, where the format has these), with
the codes that the format prescribes: base64 (Python's own), the CRC-32 of a zip, the transposition
of OpenVQA's features, and for an import the SHA-256 that every table has. ``limit`` is in the same
unit, measured in turns with the format, and the bar is twice the limit. What every run costs is not
counted: the seconds are those of all images less those of the first 16, for both.

The median of the rounds counts. In a virtual machine the same work takes 0.7 to 1.5 times as long
in another round, for the format and for its limit: other machines use the processor's other thread,
and the host has to provide memory again. ``ratio_of_least`` is of the least seconds of both.

    python benchmarks/formats.py --full
"""

import base64
import contextlib
import hashlib
import io
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from shell import add_counts, new_parser, parse_form, print_lines, result_line

from vlmill.extract.formats.export_file import export_file
from vlmill.extract.formats.folders import walk_files
from vlmill.extract.formats.import_file import Import, import_file
from vlmill.extract.formats.names import FORMATS
from vlmill.runtime.console.progress import without_progress
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.memory import keep_some_freed_memory
from vlmill.runtime.readers.region_rows import RegionRow, RowGroup, encode_regions, region_arrays
from vlmill.schemas.tables import REGIONS

SHORT = {"images": 100, "rounds": 1}
FULL = {"images": 1_000, "rounds": 16}  # even: each is first as often as its limit
BOXES, WIDTH, CLASSES, ATTRIBUTES = 36, 2048, 16, 8
FEW = 16  # images whose seconds are subtracted
BLOCK = 1 << 20
BAR = 2.0  # times the limit
IN_BASE64 = {"tsv", "tsv6", "tsv7", "lmdb", "oscar", "oscar-retrieval", "vl-bert"}
TRANSPOSED = {"npz-openvqa"}


def make_row(number: int, random: np.random.Generator) -> RegionRow:
    """Returns one image's regions; a third of the features are zeros, as after a ReLU."""
    corners = random.uniform(0, 200, (BOXES, 2))
    features = np.maximum(random.standard_normal((BOXES, WIDTH), np.float32) + 0.4, 0)
    probs = random.dirichlet(np.ones(CLASSES + 1), BOXES).astype(np.float32)
    return RegionRow(
        image_id=f"COCO_train2014_{number:012}",
        width=640,
        height=480,
        boxes=np.hstack([corners, corners + 100]).astype(np.float32),
        features=features,
        class_ids=probs[:, 1:].argmax(axis=1).astype(np.int16),
        class_scores=probs[:, 1:].max(axis=1),
        class_probs=probs,
        attribute_ids=random.integers(0, ATTRIBUTES, BOXES).astype(np.int16),
        attribute_scores=random.random(BOXES, np.float32),
    )


def write_regions(folder: Path, images: int) -> Path:
    """Writes a table of regions."""
    arrays = region_arrays(dtype="float32", feature_dim=WIDTH, class_probs_dim=CLASSES + 1)
    random = np.random.default_rng(0)
    with ShardWriter(folder, REGIONS, 0, 1, arrays=arrays) as writer:
        group = RowGroup("none")
        for number in range(images):
            if group.add(make_row(number, random)) or number == images - 1:
                writer.write(encode_regions(group.take(), dtype="float32"))
    assert writer.shard is not None
    write_manifest(folder, [writer.shard], job="benchmark", settings={})
    return folder


def cpu_seconds(work: Callable[[], object]) -> float:
    """Returns the CPU seconds of a function, of all threads of this process."""
    before = time.process_time()
    work()
    return time.process_time() - before


def read_all(files: Sequence[Path], *, checked: bool) -> None:
    """Reads files; ``checked``: with the CRC-32 of their bytes, as every zip has it."""
    block = memoryview(bytearray(BLOCK))
    for file in files:
        with file.open("rb", buffering=0) as source:
            while count := source.readinto(block):
                if checked:
                    zlib.crc32(block[:count])


def write_all(sizes: Sequence[int], folder: Path, *, checked: bool, hashed: bool) -> None:
    """Writes a file of each size; ``hashed``: with the SHA-256 that every table has."""
    content, digest = memoryview(os.urandom(BLOCK)), hashlib.sha256()
    for number, size in enumerate(sizes):
        with (folder / str(number)).open("wb", buffering=0) as target:
            for start in range(0, size, BLOCK):
                block = content[: min(BLOCK, size - start)]
                target.write(block)
                if hashed:
                    digest.update(block)
                if checked:
                    zlib.crc32(block)


def do_least(
    name: str, step: str, files: Sequence[Path], sizes: Sequence[int], target: Path, images: int
) -> None:
    """Does what no export or import of a format can avoid: reads its files and writes files of some
    sizes, with the codes that the format prescribes. Values are neither parsed nor checked.
    """
    is_export = step == "export"
    checked = FORMATS[name].reader in ("npz", "vl-bert")
    if name in IN_BASE64:
        code_base64(images, decode=not is_export)
    if name in TRANSPOSED:
        transpose(images)
    read_all(files, checked=checked and not is_export)
    write_all(sizes, target, checked=checked and is_export, hashed=not is_export)


def code_base64(images: int, *, decode: bool) -> None:
    """Decodes or encodes the payload of one image, once for each of ``images``."""
    payload = np.random.default_rng(0).standard_normal((BOXES, WIDTH), np.float32).tobytes()
    data = base64.b64encode(payload) if decode else payload
    for _ in range(images):
        if decode:
            base64.b64decode(data, validate=True)
        else:
            base64.b64encode(data)


def transpose(images: int) -> None:
    """Transposes the features of one image, once for each of ``images``."""
    features = np.zeros((WIDTH, BOXES), np.float32)
    for _ in range(images):
        np.ascontiguousarray(features.T)


def empty_files(folder: Path) -> None:
    """Returns the space of files. They are not deleted yet: ext4 without a journal looks at all
    numbers of files that were deleted in the last minutes whenever it creates one.
    """
    for file in walk_files(folder, ""):
        os.truncate(file, 0)


class Files:
    """Holds the files of one format, and measures its export and the import of that export."""

    def __init__(self, name: str, source: Path, folder: Path, images: int) -> None:
        folder.mkdir()
        self.name, self.source, self.images, self.folder = name, source, images, folder
        self.names: dict[str, Any] = {}
        self.sizes: dict[str, list[int]] = {}  # of the files that a step writes
        if FORMATS[name].reader == "oscar":
            for what, count in (("classes", CLASSES), ("attributes", ATTRIBUTES)):
                file = folder / f"{what}.txt"
                file.write_text("\n".join(f"{what} {number}" for number in range(count)))
                self.names[what] = str(file)

    def begin(self, number: int) -> None:
        """Begins a round, which writes into a folder of its own."""
        self.round = self.folder / str(number)
        self.output, self.imported = self.round / "out" / "features", self.round / "in"
        self.root = self.output.parent if self.name == "npz-cocobu" else self.output
        self.limits = self.round / "limits"
        self.output.parent.mkdir(parents=True)

    def run_export(self) -> None:
        """Exports the source."""
        export_file(self.source, self.output, self.name, **self.names)

    def run_import(self) -> None:
        """Imports the export."""
        import_file(Import(files=[self.root], output=self.imported, background="first"))

    def do_least(self, step: str) -> None:
        """Does what the step cannot avoid."""
        folder, target = self.source if step == "export" else self.root, self.limits / step
        files = [file for file in walk_files(folder, "") if file.suffix != ".json"]
        target.mkdir(parents=True)
        do_least(self.name, step, files, self.sizes[step], target, self.images)

    def measure(self, rounds: int) -> dict[str, list[float]]:
        """Returns the CPU seconds of each round, of each step and of its limit, which is first in
        every other round. One round before these counts the files and is not measured.
        """
        self.begin(0)
        self.run_export()
        self.run_import()
        for step, folder in (("export", self.root), ("import", self.imported)):
            self.sizes[step] = [file.stat().st_size for file in walk_files(folder, "")]
        empty_files(self.round)
        works: dict[str, Callable[[], None]] = {
            "export": self.run_export,
            "export limit": partial(self.do_least, "export"),
            "import": self.run_import,
            "import limit": partial(self.do_least, "import"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for number in range(1, rounds + 1):
            self.begin(number)
            for step in ("export", "import"):
                pair = (step, f"{step} limit")
                for name in pair if number % 2 else reversed(pair):
                    seconds[name].append(cpu_seconds(works[name]))
                    empty_files(self.limits)  # else the export would flush them to the disk, too
            empty_files(self.round)
        return seconds


def measure(
    name: str, sources: Sequence[Path], folder: Path, images: int, rounds: int
) -> list[dict[str, Any]]:
    """Returns the result lines of one format: its export, then the import of that export.

    ``sources`` are tables of :data:`FEW` and of ``images`` images.
    """
    few, many = (
        Files(name, source, folder / str(count), count)
        for source, count in zip(sources, (FEW, images), strict=True)
    )
    fixed, seconds = few.measure(rounds), many.measure(rounds)
    gigabytes = (images - FEW) * BOXES * WIDTH * 4 / 1e9
    lines = []

    def per_gigabyte(of_rounds: Callable[[list[float]], float], key: str) -> float:
        return (of_rounds(seconds[key]) - of_rounds(fixed[key])) / gigabytes

    for step in ("export", "import"):
        value, limit = (per_gigabyte(median, key) for key in (step, f"{step} limit"))
        least, least_limit = (per_gigabyte(min, key) for key in (step, f"{step} limit"))
        codes = ["base64"] * (name in IN_BASE64)
        codes += ["CRC-32"] * (FORMATS[name].reader in ("npz", "vl-bert"))
        codes += ["SHA-256"] * (step == "import")
        codes += ["transposing"] * (name in TRANSPOSED)
        line = result_line(
            f"formats/{step}/{name}",
            round(value, 3),
            "CPU s/GB of features",
            peer=", ".join(["reading and writing the same files", *codes]),
            ratio=round(value / limit, 2),
            ratio_of_least=round(least / least_limit, 2),
            limit=round(limit, 3),
            fraction_of_limit=round(limit / value, 3),
            bar=BAR,
            files=len(list(walk_files(many.root, ""))),
            images=images,
        )
        lines.append(line)
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = new_parser(__doc__)
    add_counts(
        parser,
        images="images, each with 36 boxes x 2048 (0.3 MB)",
        rounds="rounds to measure; the median counts",
    )
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    args = parse_form(parser, argv, short=SHORT, full=FULL)
    keep_some_freed_memory()  # as the command
    with tempfile.TemporaryDirectory() as name, without_progress():
        counts = (FEW, args.images)
        sources = [write_regions(Path(name) / f"source-{count}", count) for count in counts]
        for format_ in args.formats:
            folder = Path(name) / format_
            folder.mkdir()
            with contextlib.redirect_stderr(io.StringIO()):
                lines = measure(format_, sources, folder, args.images, args.rounds)
            print_lines(lines)


if __name__ == "__main__":
    main()
