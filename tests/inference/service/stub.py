"""The service of a model whose worker makes its answers up: no network, no torch.

Run as ``python -m``, with the methods that it has, or all, and ``--images=TABLE``.
"""

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from fastapi.responses import JSONResponse, Response
from tests.extract.service.stub import CLASSES, TOP, WIDTH, drawn

from vlmill.inference.service.app import model_service
from vlmill.inference.service.questions import Question
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.runtime.service.json_rows import plain_row
from vlmill.runtime.service.metrics import Metrics
from vlmill.runtime.service.server import run_service
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.runtime.service.workers import Plan, WorkerContext

IMAGES = "--images="


def compute(questions: Sequence[Question]) -> list[Any]:
    """Answers all of a question's methods at once."""
    return [answered(question) for question in questions]


def answered(question: Question) -> Any:
    """Makes an answer up."""
    if question.method == "search":
        return np.zeros(WIDTH, dtype=np.float32)
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


class MadeUpIndex:
    """Stands for an index: every search and every item has the same two answers."""

    about: ClassVar[dict[str, Any]] = {"type": "flat", "vectors": 2, "columns": ["category"]}

    def watch(self, metrics: Metrics) -> None:
        """Shows nothing."""

    async def ask(self, question: Question, deadline: float, *, vector: Any = None) -> Response:
        """Makes answers up."""
        names = ("image-0", "image-9")
        rows = [{"score": 0.5 - 0.1 * at, "image_id": name} for at, name in enumerate(names)]
        content: dict[str, Any] = {"answers": [row | {"kind": "image"} for row in rows]}
        if question.method == "similar":
            near = {"near": question.items[-1]}
            found = [{**row, **near, "item_id": row["image_id"]} for row in content["answers"]]
            content = {"answers": found, "missing": []}
        return JSONResponse(content)


def opened(methods: Sequence[str]) -> WorkerContext:
    """Is called in a worker."""
    return WorkerContext(compute=compute, about={"variant": "made up", "methods": list(methods)})


if __name__ == "__main__":
    from tests.inference.service import stub

    tables = [Path(word.removeprefix(IMAGES)) for word in sys.argv[1:] if word.startswith(IMAGES)]
    methods = [word for word in sys.argv[1:] if not word.startswith(IMAGES)]
    settings = ServiceSettings(port=0, token=os.environ.get("VLMILL_TOKEN"))
    index: Any = MadeUpIndex() if not methods or "search" in methods else None
    table = next(iter(tables), None)
    shell, application = model_service(settings, index=index, images=table, classes=CLASSES)
    opener = functools.partial(stub.opened, methods or ["answer", "attend", "score", "search"])
    plan = Plan(name="stub", module="vlmill.inference.service.engine", open=opener)
    sys.exit(run_service(shell, application, [plan], "stub"))
