"""Declares the arguments of ``extract-rois import`` and ``export``, and runs both."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vlmill.extract.config import COMPRESSIONS, DTYPES, Storage
from vlmill.extract.formats.names import BACKGROUNDS, FORMATS, describe_formats
from vlmill.runtime.console.command import add_count, print_reading_hint, print_status
from vlmill.runtime.files.copies import full_disk_reason
from vlmill.runtime.memory import keep_some_freed_memory
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import format_rejects

IMPORT_EXAMPLES = f"""examples:
  extract-rois import train2014_obj36.tsv --output regions/ --id-prefix coco/
  extract-rois import karpathy_train.tsv.0 karpathy_train.tsv.1 --output regions/
  extract-rois import nlvr2/ --sizes images/ --output regions/

{describe_formats()}
The content of each file decides its format. Nothing in a file is executed: pickles are read as
plain data, and refused if they contain anything else. What a file lacks stays null. Every record is
counted: it has a row of regions or, with a reason, of rejects (a box outside its image is one).
Memory does not grow with the files. The same command continues an import that was killed."""
EXPORT_EXAMPLES = f"""examples:
  extract-rois export regions/ --format tsv --output train.tsv
  extract-rois export regions/ --format oscar --classes objects_vocab.txt --output vinvl/

{describe_formats()}
Features are widened to float32, which is exact. Columns that the format cannot hold are printed
first. PATH.json (npz: info, hdf5: attributes) states which detector and selection made the
features. Memory does not grow with the rows."""


def add_import(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``extract-rois import``."""
    command.description = "Turns feature files of other projects into tables of regions."
    command.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="feature files, folders of them or globs; all become one table",
    )
    command.add_argument(
        "--output", required=True, type=Path, metavar="DIR", help="folder for the tables"
    )
    command.add_argument(
        "--format",
        choices=tuple(FORMATS),
        help="format of the files (default: recognised by their content)",
    )
    command.add_argument(
        "--sizes",
        metavar="FILE",
        help="sizes of the images, for files that have none (UNITER, cocobu): a table of images, "
        "COCO's JSON, a JSON object {ID: [width, height]}, lines of id, width and height, "
        "Oscar's hw.tsv, or WIDTHxHEIGHT for all images",
    )
    for name in ("classes", "attributes"):
        command.add_argument(
            f"--{name}",
            metavar="FILE",
            help=f"names of {name}, one per line, for files with names instead of "
            f"numbers (Oscar, VinVL) (default: {name}.json in the file's folder, else "
            "names are numbered in the order of appearance)",
        )
    command.add_argument(
        "--id-prefix",
        default="",
        metavar="TEXT",
        help="prefix for the ids of the file, which are otherwise kept unchanged",
    )
    command.add_argument(
        "--background",
        choices=BACKGROUNDS,
        help="position of the background in class distributions (cls_prob) (default: as "
        "stated by the file or its format; else none for 1,600 columns and first for "
        "1,601; any other number needs this flag)",
    )
    command.add_argument(
        "--classes-from",
        type=int,
        choices=(0, 1),
        help="number of the first class in objects_id and attrs_id; 1 means that 0 is the "
        "background (default: 0, or 1 if an id of the file shows it)",
    )
    command.add_argument(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="data type of stored features (default: %(default)s)",
    )
    command.add_argument(
        "--compression",
        choices=COMPRESSIONS,
        default="none",
        help="compression of the shards (default: %(default)s)",
    )
    add_count(
        command,
        "--images-per-shard",
        "number of images per shard",
        default=Storage().images_per_shard,
    )
    command.add_argument(
        "--fresh", action="store_true", help="delete the output of an earlier import first"
    )


def add_export(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``extract-rois export``."""
    command.description = "Writes regions as a feature file of another project."
    command.add_argument(
        "regions", metavar="REGIONS", help="table of regions: a folder, a file or a glob"
    )
    command.add_argument(
        "--format", required=True, choices=tuple(FORMATS), help="format to write (described below)"
    )
    command.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="PATH",
        help="file to write (lmdb, npy, npz, oscar: folder); it must not exist yet",
    )
    for name in ("classes", "attributes"):
        command.add_argument(
            f"--{name}",
            metavar="FILE",
            help=f"names of the detector's {name}, one per line, for formats with names "
            "(oscar) (default: the names stored with the regions)",
        )
    command.add_argument(
        "--fresh",
        action="store_true",
        help="replace an earlier export, and delete an unfinished one; without it the same command "
        "continues an export that was killed",
    )


@contextmanager
def full_disk_named(output: Path) -> Iterator[None]:
    """Adds the output and the remedy to the error of a full disk, which often names no file."""
    try:
        yield
    except OSError as error:
        if (reason := full_disk_reason(error)) is None:
            raise
        raise OSError(
            f"--output {output}: {reason}; free disk space, and the same command continues"
        ) from None


def command_import(arguments: argparse.Namespace) -> int:
    """Runs ``extract-rois import``."""
    from vlmill.extract.formats.import_file import Import, import_file
    from vlmill.extract.formats.rows import DAMAGE
    from vlmill.runtime.files.reading import iter_batches, reject_counts
    from vlmill.schemas.tables import REJECTS

    job = Import(
        files=arguments.files,
        output=arguments.output,
        format=arguments.format,
        id_prefix=arguments.id_prefix,
        dtype=arguments.dtype,
        compression=arguments.compression,
        images_per_shard=arguments.images_per_shard,
        background=arguments.background,
        classes_from=arguments.classes_from,
        sizes=arguments.sizes,
        classes=arguments.classes,
        attributes=arguments.attributes,
    )
    keep_some_freed_memory()
    with full_disk_named(arguments.output):
        regions, rejects = import_file(job, fresh=arguments.fresh)
    print_reading_hint(arguments.output, "regions")
    counts = reject_counts(arguments.output)
    rows = format_count(regions, "row of regions", "rows of regions")
    print(f"{arguments.output}: {rows}, {format_rejects(counts)}")
    if not regions and not rejects:
        print_status(f"error: FILE {job.name} has no images; give a file that has some")
    elif not regions and not counts[DAMAGE]:
        first = next(iter_batches(arguments.output, REJECTS, batch_rows=1)).to_pylist()[0]
        print_status(
            f"error: FILE {job.name}: no image can be read; the first is {first['key']}: "
            f"{first['detail']}"
        )
    return 1 if counts[DAMAGE] or not regions else 0


def command_export(arguments: argparse.Namespace) -> int:
    """Runs ``extract-rois export``."""
    from vlmill.extract.formats.export_file import export_file

    with full_disk_named(arguments.output):
        rows = export_file(
            arguments.regions,
            arguments.output,
            arguments.format,
            fresh=arguments.fresh,
            classes=arguments.classes,
            attributes=arguments.attributes,
        )
    print(f"{arguments.output}: {format_count(rows, 'image')}")
    return 0
