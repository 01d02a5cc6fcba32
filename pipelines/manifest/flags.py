"""Defines the titles and the common flags of the ``manifest`` subcommands."""

import argparse

from vlmill.runtime.console.command import add_count
from vlmill.runtime.cores import all_cores
from vlmill.runtime.units.flags import add_run_flags

MANY_WORKERS = 8
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
"""The titles of the subcommands: not in ``sets.SETS``, which loads slowly."""


def add_run_arguments(p: argparse.ArgumentParser, *, rows_per_shard: int) -> None:
    """Adds the flags for shards, threads, a dry run and the output of an earlier run."""
    add_count(p, "--rows-per-shard", "number of rows per shard", default=rows_per_shard)
    add_count(
        p,
        "--workers",
        "number of threads that read images and of processes that decode them; the rows stay the "
        "same",
        default=min(MANY_WORKERS, all_cores()),
    )
    add_run_flags(p)


def add_source(p: argparse.ArgumentParser, default: str) -> None:
    """Adds ``--source``, for data sets of the user's own files."""
    p.add_argument(
        "--source",
        default=default,
        metavar="NAME",
        help=f"value of the column source (default: {default})",
    )


def add_split_columns(p: argparse.ArgumentParser) -> None:
    """Adds the flags of the column of splits."""
    splits = p.add_mutually_exclusive_group()
    splits.add_argument(
        "--split-column",
        metavar="C",
        help="column of splits, kept unchanged (default: a column named split)",
    )
    splits.add_argument(
        "--no-split-column", action="store_true", help="ignore a column named split"
    )
