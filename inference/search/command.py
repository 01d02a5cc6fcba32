"""Declares the arguments of ``train-vl embed`` and ``train-vl search``, and runs them."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vlmill.runtime.console.command import add_count, add_lock_seconds, make_options, path_or_url
from vlmill.runtime.console.cost import add_cost_arguments, print_estimate
from vlmill.runtime.net.flags import add_allow_address
from vlmill.runtime.weights.names import path_or_name
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.folders import find_checkpoint
from vlmill.train.checkpoints.named import CHECKPOINT_HELP

if TYPE_CHECKING:
    from vlmill.inference.search.embedding_inputs import EmbedOptions

EMBED_HELP = """\
Write the vectors of a checkpoint as a table, `vectors`.

examples:
  train-vl embed --checkpoint runs/vlmo --pairs own --images own --output own-vectors
  train-vl embed --checkpoint demo/trained --pairs demo/pairs --regions demo/regions \\
      --output demo/vectors

VLMo with its contrastive head encodes every image of --images and every text of --pairs
separately. The other models read a text together with its image and give one vector per pair, the
input of their matching head. BERT encodes texts only. All vectors have length 1, so inner
products are cosines. The inputs are prepared as in the checkpoint's training.

The same command continues a killed run, shard by shard. Memory: the texts, about 500 bytes each,
and one shard of vectors.
"""
SCORE_HELP = """\
Score image-text pairs with a checkpoint: how well each text describes its image.

examples:
  train-vl score --checkpoint runs/vlmo --pairs mined --images mined --output scored
  train-vl score --checkpoint demo/trained --pairs demo/pairs --regions demo/regions \\
      --output demo/scored
  python -m vlmill.pipelines.tables filter scored --min-score 0.8 --output better

Writes the table pairs with the column `score` replaced: by the probability of the matching head (0
to 1), or by the cosine of text and image (-1 to 1) if the checkpoint has a contrastive head. Pairs
that cannot be scored are listed in `rejects`. The inputs are prepared as in the checkpoint's
training. `tables filter --min-score` keeps the pairs from a score on.

The same command continues a killed run, shard by shard. Memory: the texts, about 500 bytes each,
and one shard of pairs.
"""
SEARCH_HELP = """\
Find the nearest vectors of `train-vl embed`.

examples:
  train-vl search --vectors own-vectors --text "a dog on a beach" --top 5
  train-vl search --vectors own-vectors --type hnsw --save-index own-index
  train-vl search --index own-index --image query.jpg --images own --output answers
  train-vl search --vectors demo/vectors --queries demo/vectors --output items
  train-vl search --vectors item-vectors --type pq --columns category --columns-from items \\
      --neighbours 20 --save-index items-index
  train-vl search --index items-index --item 17 --item 3 --where category=dress
  train-vl search --index items-index --append new-vectors --columns-from new-items \\
      --delete sold-out.txt --save-index items-index-2

Each query gives one line of JSON with its results, the nearest first, on standard output, or in
DIR/answers.jsonl with --output. With --images there is also DIR/report.html, which shows the
images. --queries are vectors of the same checkpoint. If the table has vectors of another kind
than the index, these are the queries (texts search for images). A row is never its own result.

flat is exact. hnsw and ivf search only a part of the vectors, pq compares short codes of all, and
the best ones exactly. Their recall is measured on 1,000 queries when they are built, and printed.
pq takes as few candidates as give a recall of 0.99. Memory: 4 bytes per number of the vectors,
twice while an index is built or changed.
"""


def add_embed_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``train-vl embed``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--checkpoint", type=path_or_name, required=True, metavar="DIR", help=CHECKPOINT_HELP)
    add_allow_address(parser)
    add("--pairs", metavar="TABLE", help="table of texts, or of image-text pairs")
    _add_shared_arguments(parser)
    add(
        "--vectors-per-shard",
        type=int,
        default=10_000,
        metavar="N",
        help="number of vectors per shard; a killed run loses at most one unfinished shard "
        "(default: 10000)",
    )
    add_cost_arguments(parser)


def add_score_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``train-vl score``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--checkpoint", type=path_or_name, required=True, metavar="DIR", help=CHECKPOINT_HELP)
    add_allow_address(parser)
    add("--pairs", required=True, metavar="TABLE", help="table of image-text pairs")
    _add_shared_arguments(parser)
    add_count(
        parser,
        "--rows-per-shard",
        "number of pairs per shard; a killed run loses at most one unfinished shard",
        default=10_000,
        dest="vectors_per_shard",
    )


def run_score(args: argparse.Namespace) -> int:
    """Runs ``train-vl score``; returns the exit status."""
    options = _make_options(args)
    from vlmill.inference.search.pair_scores import score_pairs

    return score_pairs(options)


def _make_options(args: argparse.Namespace) -> "EmbedOptions":
    """Returns the options of ``embed`` and ``score``. Raises InputError for missing inputs."""
    find_checkpoint(args.checkpoint)
    # pyarrow and torch load slowly: import them only after the arguments are checked.
    from vlmill.runtime.files.reading import require_tables

    require_tables({"--pairs": args.pairs, "--regions": args.regions, "--images": args.images})
    from vlmill.inference.search.embedding_inputs import EmbedOptions

    return make_options(EmbedOptions, args)


def _add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that ``embed`` and ``score`` share."""
    add = parser.add_argument
    add(
        "--regions", metavar="TABLE", help="table of the images' regions, for models that read them"
    )
    add("--images", metavar="TABLE", help="table of images, for VLMo")
    add("--output", type=path_or_url, required=True, metavar="DIR", help="folder for the output")
    add("--device", default="cpu", help="device: cpu, cuda, cuda:1, ... (default: cpu)")
    add("--batch-size", type=int, default=64, help="number of rows in a forward pass (default: 64)")
    add(
        "--max-regions",
        type=int,
        metavar="N",
        help="largest number of regions per image; the first ones are kept (default: as in "
        "training)",
    )
    add("--fresh", action="store_true", help="delete the output of an earlier run and start over")
    add_lock_seconds(parser)


def run_embed(args: argparse.Namespace) -> int:
    """Runs ``train-vl embed``; returns the exit status."""
    options = _make_options(args)
    from vlmill.inference.search.embedding import embed, estimate

    if args.dry_run:
        return print_estimate(estimate(options), options.output)
    return embed(options, force=args.force)


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``train-vl search``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--index", type=path_or_url, metavar="DIR", help="saved index to search")
    source.add_argument(
        "--vectors", metavar="TABLE", help="table of vectors to build an index from"
    )
    add_index_arguments(parser)
    add_query_arguments(parser)
    add("--device", default="cpu", help="device: cpu, cuda, cuda:1, ... (default: cpu)")
    add(
        "--search-device",
        default="cpu",
        metavar="DEVICE",
        help="device of the search: cpu, or cuda, cuda:1, ... for flat and ivf with faiss-gpu "
        "(default: cpu)",
    )
    add_count(parser, "--threads", "number of FAISS threads (default: one per core)")
    add_allow_address(parser)


def add_index_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares how an index is built, changed and saved."""
    add = parser.add_argument
    add(
        "--of",
        choices=("image", "text", "pair"),
        help="with --vectors: type of vectors to search (default: images, else pairs, else texts)",
    )
    add(
        "--type",
        choices=("flat", "hnsw", "ivf", "pq"),
        default="flat",
        help="with --vectors: type of index (default: flat, which is exact)",
    )
    add(
        "--effort",
        type=int,
        metavar="N",
        help="number of candidates of hnsw (default: 128), of cells of ivf (default: 32), or of "
        "candidates per result of pq (default: the fewest with a recall of 0.99); more is slower "
        "and finds more",
    )
    add(
        "--columns",
        type=column_names,
        default=[],
        metavar="NAMES",
        help="with --vectors: columns that results can be filtered by: category,brand",
    )
    add(
        "--columns-from",
        metavar="TABLE",
        help="table of --columns: a folder with the table pairs, or Parquet files with image_id or "
        "pair_id; with --append: that of the new rows",
    )
    add_count(
        parser,
        "--neighbours",
        "number of nearest rows to store for each row, so that similar items are looked up "
        "(default: 0)",
        least=0,
        metavar="K",
    )
    add(
        "--append",
        metavar="TABLE",
        help="with --index: table of vectors to add; they replace rows that have the same id",
    )
    add(
        "--delete",
        metavar="FILE",
        help="with --index: file with the image_id or pair_id of rows to remove, one per line",
    )
    add(
        "--save-index",
        type=path_or_url,
        metavar="DIR",
        help="folder to save the new or changed index in",
    )


def add_query_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the queries and the files of results."""
    add = parser.add_argument
    add("--text", action="append", default=[], metavar="T", help="text to search for (repeatable)")
    add(
        "--image",
        action="append",
        default=[],
        metavar="F",
        help="image file to search for (repeatable)",
    )
    add(
        "--item",
        action="append",
        default=[],
        metavar="ID",
        help="image_id of an item to find similar items of, or its pair_id if it has no image; "
        "repeat it for a user's history, the last one at the end",
    )
    add(
        "--where",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="only results with this value; repeat it for other values of the column, or columns",
    )
    add("--queries", metavar="TABLE", help="table of query vectors from the same checkpoint")
    add_count(parser, "--top", "number of results per query", default=10, metavar="K")
    add_count(parser, "--rerank", "rank the N best results of each text again, with --reranker")
    add(
        "--reranker",
        type=path_or_name,
        metavar="DIR",
        help="checkpoint with a matching head, which reads a text and an image together",
    )
    add("--regions", metavar="TABLE", help="table of the images' regions, for --reranker")
    add(
        "--images",
        metavar="TABLE",
        help="table of images, for --reranker, and to show them on a page in --output",
    )
    add(
        "--output", type=path_or_url, metavar="DIR", help="folder for answers.jsonl and report.html"
    )
    add(
        "--checkpoint",
        type=path_or_name,
        metavar="DIR",
        help="checkpoint that encodes --text and --image (default: that of the vectors)",
    )


def column_names(text: str) -> list[str]:
    """Parses names that are separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_where(words: Sequence[str]) -> dict[str, list[str]]:
    """Parses ``COLUMN=VALUE``, values by column. Raises InputError."""
    where = dict[str, list[str]]()
    for word in words:
        column, equals, value = word.partition("=")
        if not column or not equals:
            raise InputError(f"--where {word}: expected COLUMN=VALUE")
        where.setdefault(column, []).append(value)
    return where


def run_search(args: argparse.Namespace) -> int:
    """Runs ``train-vl search``; returns the exit status."""
    has_queries = bool(args.text or args.image or args.item or args.queries)
    changes = args.append is not None or args.delete is not None
    if args.index is not None and (args.of or args.effort or args.columns):
        raise InputError("--index is built already; --of, --effort and --columns go with --vectors")
    if args.index is not None and not changes and (args.save_index or args.neighbours is not None):
        raise InputError(
            "--index is built already; --save-index and --neighbours go with --vectors, --append "
            "or --delete"
        )
    if changes and (args.index is None or args.save_index is None):
        raise InputError(
            "--append and --delete need --index DIR and --save-index DIR, a new folder"
        )
    if args.columns and args.columns_from is None:
        raise InputError("--columns needs --columns-from TABLE, which has them")
    if not has_queries and args.save_index is None:
        raise InputError(
            "nothing to do: give --text, --image, --item or --queries, or --save-index"
        )
    if (args.rerank is None) != (args.reranker is None):
        raise InputError("--rerank N and --reranker DIR need each other")
    if args.rerank is not None and (args.image or args.item or not (args.text or args.queries)):
        raise InputError("--rerank ranks results of texts; give --text or --queries with texts")
    needs_page = args.images is not None and args.rerank is None
    if needs_page and (args.output is None or not has_queries):
        raise InputError("--images needs --output DIR and a query: the page is written there")
    if args.save_index is not None and args.save_index.exists():
        raise InputError(f"--save-index {args.save_index} exists already; give a new folder")
    # pyarrow and torch load slowly: import them only after the arguments are checked.
    from vlmill.runtime.files.reading import find_shards, require_tables
    from vlmill.schemas.tables import VECTORS

    tables = {"--vectors": args.vectors, "--images": args.images, "--regions": args.regions}
    require_tables(tables)
    if args.append is not None:
        find_shards(args.append, VECTORS, "--append")
    if args.queries is not None:
        find_shards(args.queries, VECTORS, "--queries")
    from vlmill.inference.search.answering import search
    from vlmill.inference.search.indexing import SearchOptions

    return search(make_options(SearchOptions, args, where=parse_where(args.where)))
