"""The service of a model whose worker makes its answers up: no network, no torch.

Run as ``python -m``, with the methods that it has, or all, and ``--images=TABLE``.
"""

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.extract.service.stub import CLASSES, TOP, WIDTH, drawn

from vlmill.inference.service.app import model_service
from vlmill.inference.service.questions import Question
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.runtime.service.json_rows import plain_row
from vlmill.runtime.service.server import run_service
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.runtime.service.workers import Plan, WorkerContext

IMAGES = "--images="


def compute(questions: Sequence[Question]) -> list[dict[str, Any]]:
    """Answers all of a question's methods at once."""
    return [answered(question) for question in questions]


def answered(question: Question) -> dict[str, Any]:
    """Makes an answer up."""
    if question.method == "search":
        names = ("image-0", "image-9")
        rows = [{"score": 0.5 - 0.1 * at, "image_id": name} for at, name in enumerate(names)]
        return {"answers": [row | {"kind": "image"} for row in rows]}
    if question.method == "answer":
        return {"answer": "a kite"}
    if question.method == "score":
        return {"scores": [[1.25]]}
    row = drawn(question.images[0])
    assert isinstance(row, RegionRow)
    (plain,) = encode_regions([row], dtype="float16").to_pylist()
    arrays = region_arrays(dtype="float16", feature_dim=WIDTH, class_probs_dim=21, top_k=TOP)
    losses = [0.1 * number - 0.95 for number in range(len(row.boxes))]
    return {"score": 1.25, "losses": losses, "regions": [plain_row(plain)], "arrays": arrays}


def opened(methods: Sequence[str]) -> WorkerContext:
    """Is called in a worker."""
    return WorkerContext(compute=compute, about={"variant": "made up", "methods": list(methods)})


if __name__ == "__main__":
    from tests.inference.service import stub

    tables = [Path(word.removeprefix(IMAGES)) for word in sys.argv[1:] if word.startswith(IMAGES)]
    methods = [word for word in sys.argv[1:] if not word.startswith(IMAGES)]
    settings = ServiceSettings(port=0, token=os.environ.get("VLMILL_TOKEN"))
    shell, application = model_service(settings, images=next(iter(tables), None), classes=CLASSES)
    opener = functools.partial(stub.opened, methods or ["answer", "attend", "score", "search"])
    plan = Plan(name="stub", module="vlmill.inference.service.engine", open=opener)
    sys.exit(run_service(shell, application, [plan], "stub"))
