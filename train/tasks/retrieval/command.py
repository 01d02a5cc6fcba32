"""Runs ``train-vl evaluate retrieval``."""

import argparse
from dataclasses import fields

from vlmill.schemas.errors import InputError


def run_retrieval(args: argparse.Namespace) -> int:
    """Evaluates retrieval by the arguments of `vlmill.train.tasks.command`; returns the exit
    status.
    """
    if args.pairs is None:
        raise InputError("--pairs is missing: retrieval ranks image-text pairs")
    # pyarrow and torch load slowly: not before the arguments are known to be valid.
    from vlmill.runtime.files.reading import require_tables

    require_tables({"--pairs": args.pairs, "--regions": args.regions, "--images": args.images})
    from vlmill.train.tasks.retrieval.evaluation import evaluate_retrieval
    from vlmill.train.tasks.retrieval.job import RetrievalOptions

    names = {field.name for field in fields(RetrievalOptions)}
    evaluate_retrieval(RetrievalOptions(**{n: v for n, v in vars(args).items() if n in names}))
    return 0
