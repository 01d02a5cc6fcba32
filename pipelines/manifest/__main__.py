"""Converts data sets to tables: python -m vlmill.pipelines.manifest --help"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from vlmill.runtime.console.command import Parser, run_command
from vlmill.runtime.files.lock import lock_output
from vlmill.runtime.units.flags import part_name, require_part
from vlmill.runtime.units.launch.loading import parse_job, require_flags
from vlmill.schemas.errors import InputError

TITLES: dict[str, str] = {
    "own": "your own captions, questions, statements or labels",
    "cc": "Conceptual Captions 3M",
    "cc3m": "Conceptual Captions 3M",
    "cc12m": "Conceptual 12M",
    "sbu": "SBU captioned photos",
    "laion": "LAION's lists of URLs",
    "coco": "COCO captions, official files",
    "coco-karpathy": "COCO captions, Karpathy's splits",
    "flickr30k": "Flickr30k",
    "vg": "Visual Genome, region descriptions",
    "vg-detector": "Visual Genome, boxes for detector training",
    "boxes": "your own boxes, for detector training",
    "lait": "LAIT, from your own files",
    "tao": "TaoMultimodal, from your own files",
    "text": "text corpora",
    "imagenet22k": "ImageNet-22k, images without texts",
    "webdataset": "WebDataset tars, img2dataset's output",
    "hf": "Parquet files with images and captions",
    "coco-json": "your own captions in COCO's format",
    "vqa1": "VQA v1: questions, answers, soft scores",
    "vqa2": "VQA v2: questions, answers, soft scores",
    "vgqa": "Visual Genome's questions, as additional data for VQA",
    "okvqa": "OK-VQA: questions that need outside knowledge",
    "vizwiz": "VizWiz: questions of blind people about their photographs",
    "gqa": "GQA: compositional questions about Visual Genome's images",
    "vcr": "VCR: questions with four answers, and their rationales",
    "refcoco": "RefCOCO: texts that refer to one object of an image",
    "refcoco+": "RefCOCO+: texts that refer to one object of an image",
    "refcocog": "RefCOCOg: texts that refer to one object of an image",
    "nlvr2": "NLVR2: true or false statements about two images",
    "snli-ve": "SNLI-VE: whether an image entails a sentence",
    "vsr": "VSR: true or false statements about spatial relations",
    "hateful-memes": "Hateful Memes: images with a text, hateful or not",
    "glue": "GLUE: eight text tasks",
}
"""A copy of the titles in ``sets.SETS``, by name; a test compares them."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Defines a subcommand: its title, its flags, and its function."""

    title: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def own() -> dict[str, Dataset]:
    """Returns the subcommand for the user's own captions, by name."""
    from vlmill.pipelines.manifest.own.command import run_own
    from vlmill.pipelines.manifest.own.flags import add_own_arguments

    return {"own": Dataset(title=TITLES["own"], add_arguments=add_own_arguments, run=run_own)}


def list_published() -> dict[str, Dataset]:
    """Returns the subcommands of published data sets, by name."""
    from vlmill.pipelines.manifest.published.command import add_arguments, run_published
    from vlmill.pipelines.manifest.sets import SETS

    return {
        name: Dataset(
            title=data_set.title,
            add_arguments=partial(add_arguments, name=name, data_set=data_set),
            run=partial(run_published, name, data_set),
        )
        for name, data_set in SETS.items()
    }


def datasets(arguments: Sequence[str]) -> dict[str, Dataset]:
    """Loads the subcommand that the arguments name, and perhaps others with it.

    Without a name argparse prints a help text, versions or an error, which needs no subcommand.
    """
    name = next((word for word in arguments if not word.startswith("-")), None)
    return {} if name is None else own() if name == "own" else list_published()


def parser(loaded: Mapping[str, Dataset] | None = None) -> Parser:
    """Returns the parser of all data sets, with the flags of the loaded ones (None: all)."""
    if loaded is None:
        loaded = {**own(), **list_published()}
    top = Parser(
        prog="python -m vlmill.pipelines.manifest",
        description="Converts data sets to tables of pairs, images and task examples.",
        epilog="example:\n  python -m vlmill.pipelines.manifest own --help",
    )
    commands = top.add_subparsers(dest="dataset", required=True, metavar="DATASET")
    for name, title in {**TITLES, **{name: one.title for name, one in loaded.items()}}.items():
        command = commands.add_parser(name, help=title, allow_abbrev=False)
        if name in loaded:
            loaded[name].add_arguments(command)
    return top


def run(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the data set's job."""
    loaded = datasets(arguments)
    args, beam_flags = parse_job(parser(loaded), arguments)
    require_flags(beam_flags)
    args.beam_flags = beam_flags
    require_part(args, beam_flags)
    if args.part is not None and getattr(args, "fetch", False):
        raise InputError("--part and --fetch do not go together; run --fetch on one machine")
    output = None if args.dry_run else args.output
    with lock_output(output, part=part_name(args), seconds=args.lock_seconds):
        return loaded[args.dataset].run(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    return run_command(run, argv)


if __name__ == "__main__":
    sys.exit(main())
