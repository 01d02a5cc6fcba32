"""The service of a model whose worker makes its answers up: no network, no torch.

Run as ``python -m``, with the methods that it has, or all; ``--images=TABLE``, ``--pairs=TABLE``.
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
from vlmill.inference.service.served_index import Captions
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.runtime.service.json_rows import plain_row
from vlmill.runtime.service.metrics import Metrics
from vlmill.runtime.service.server import run_service
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.runtime.service.workers import Plan, WorkerContext

IMAGES, PAIRS = "--images=", "--pairs="
METHODS = ("answer", "attend", "classify", "embed", "entail", "score", "search")


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
        return {"scores": [[1.25 for _ in question.texts] for _ in question.images]}
    if question.method == "embed":
        vectors = [[0.6, 0.8]]
        return {"pictures": vectors * len(question.images), "texts": vectors * len(question.texts)}
    if question.method in ("classify", "entail"):
        shares = {"kite": 0.75, "balloon": 0.125, **{f"other {at}": 0.01 for at in range(12)}}
        return {"labels": ["kite"], "probabilities": shares}
    row = drawn(question.images[0])
    assert isinstance(row, RegionRow)
    (plain,) = encode_regions([row], dtype="float16").to_pylist()
    arrays = region_arrays(dtype="float16", feature_dim=WIDTH, class_probs_dim=21, top_k=TOP)
    losses = [0.1 * number - 0.95 for number in range(len(row.boxes))]
    return {"score": 1.25, "losses": losses, "regions": [plain_row(plain)], "arrays": arrays}


class MadeUpIndex:
    """Stands for an index: every search and every item has the same answers."""

    about: ClassVar[dict[str, Any]] = {
        "type": "flat",
        "vectors": 10,
        "of": "image",
        "columns": ["category"],
        "variant": "made up",
    }

    def __init__(self, captions: Captions | None) -> None:
        self.captions = captions

    def watch(self, metrics: Metrics) -> None:
        """Shows nothing."""

    async def ask(self, question: Question, deadline: float, *, vector: Any = None) -> Response:
        """Makes answers up."""
        rows: list[dict[str, Any]] = [
            {"score": round(0.62 - 0.07 * at, 3), "kind": "image", "image_id": f"image-{at}"}
            for at in range(min(question.top, 10))
            if f"image-{at}" not in question.items
        ]
        if question.where:
            rows = rows[:3]
        if self.captions is not None:
            rows = self.captions.add_to(rows)
        content: dict[str, Any] = {"answers": rows}
        if question.method == "similar":
            known = [item for item in question.items if item.startswith("image-")]
            missing = [item for item in question.items if item not in known]
            found = [
                {**row, "near": question.items[-1], "item_id": row["image_id"]} for row in rows
            ]
            content = {"answers": found, "missing": missing}
        return JSONResponse(content)


def opened(methods: Sequence[str]) -> WorkerContext:
    """Is called in a worker."""
    about = {
        "variant": "made up",
        "methods": sorted(methods),
        "scales": {"score": "logit"},
    }
    return WorkerContext(compute=compute, about=about)


if __name__ == "__main__":
    from tests.inference.service import stub

    words = sys.argv[1:]
    tables = {
        name: next((Path(word.removeprefix(flag)) for word in words if word.startswith(flag)), None)
        for name, flag in (("images", IMAGES), ("pairs", PAIRS))
    }
    methods = [word for word in words if not word.startswith("--")]
    settings = ServiceSettings(port=0, token=os.environ.get("VLMILL_TOKEN"))
    index: Any = None
    if not methods or {"search", "similar"} & set(methods):
        pairs = tables["pairs"]
        index = MadeUpIndex(None if pairs is None else Captions(pairs))
    methods = [name for name in methods or METHODS if name != "similar"]
    shell, application = model_service(
        settings, index=index, images=tables["images"], classes=CLASSES
    )
    opener = functools.partial(stub.opened, methods)
    plan = Plan(name="stub", module="vlmill.inference.service.questions", open=opener)
    sys.exit(run_service(shell, application, [plan], "stub"))
