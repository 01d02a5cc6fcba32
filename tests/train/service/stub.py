"""The service of a model whose worker makes its answers up: no network, no torch.

Run as ``python -m``, with the methods that it has, or all.
"""

import functools
import sys
from collections.abc import Sequence
from typing import Any

from tests.extract.service.stub import CLASSES, TOP, WIDTH, drawn

from vlmill.schemas.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.service.plain import plain_row
from vlmill.schemas.service.server import run_service
from vlmill.schemas.service.settings import ServiceSettings
from vlmill.schemas.service.workers import Opened, Plan
from vlmill.train.service.app import model_service
from vlmill.train.service.questions import Question


def compute(questions: Sequence[Question]) -> list[dict[str, Any]]:
    """Answers all of a question's methods at once."""
    return [answered(question) for question in questions]


def answered(question: Question) -> dict[str, Any]:
    """Makes an answer up."""
    if question.method == "search":
        return {"answers": [{"score": 0.5, "image_id": "a", "kind": "image"}]}
    if question.method == "answer":
        return {"answer": "a kite"}
    if question.method == "score":
        return {"scores": [[1.25]]}
    row = drawn(question.pictures[0])
    assert isinstance(row, RegionRow)
    (plain,) = encode_regions([row], dtype="float16").to_pylist()
    arrays = region_arrays(dtype="float16", feature_dim=WIDTH, class_probs_dim=21, top_k=TOP)
    losses = [0.1 * number - 0.95 for number in range(len(row.boxes))]
    return {"score": 1.25, "losses": losses, "regions": [plain_row(plain)], "arrays": arrays}


def opened(methods: Sequence[str]) -> Opened:
    """Is called in a worker."""
    return Opened(compute=compute, about={"variant": "made up", "methods": list(methods)})


if __name__ == "__main__":
    from tests.train.service import stub

    shell, application = model_service(ServiceSettings(port=0), classes=CLASSES)
    opener = functools.partial(stub.opened, sys.argv[1:] or ["answer", "attend", "score", "search"])
    plan = Plan(name="stub", module="vlmill.train.service.engine", open=opener)
    sys.exit(run_service(shell, application, [plan], "stub"))
