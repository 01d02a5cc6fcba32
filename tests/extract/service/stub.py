"""The service of regions with a worker that draws its rows by chance: no network, no torch."""

import hashlib
import io
import sys
from collections.abc import Sequence

import numpy as np
from PIL import Image

from vlmill.extract.service.app import regions_service
from vlmill.extract.service.rows import Outcome, RejectedImage
from vlmill.runtime.readers.regions import RegionRow, region_arrays
from vlmill.runtime.service.server import run_service
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.runtime.service.workers import Plan, WorkerContext
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.rejects import Reason

CLASSES = [f"thing {number}" for number in range(20)]
ATTRIBUTES = [f"kind of {number}" for number in range(5)]
REGIONS, WIDTH, TOP = 12, 16, 4
PRODUCER = {"weights": "random weights, seed 0", "detector_fingerprint": "0" * 32}


def compute(contents: Sequence[bytes]) -> list[Outcome]:
    """Draws rows that depend on the image's bytes."""
    return [drawn(content) for content in contents]


def drawn(content: bytes) -> Outcome:
    """Draws an image's row."""
    try:
        width, height = Image.open(io.BytesIO(content)).size
    except OSError:
        return RejectedImage(reason=Reason.UNSUPPORTED_FORMAT, detail="none of JPEG, PNG")
    chance = np.random.default_rng(int.from_bytes(hashlib.sha256(content).digest()[:8], "big"))
    corners = np.sort(chance.random((2, REGIONS, 2)), axis=0) * (width, height)
    probs = np.sort(chance.dirichlet(np.ones(8), REGIONS), axis=1)[:, ::-1][:, :TOP]
    probs[-3:] *= 0.2  # which the page does not show at first
    ids = np.stack([chance.permutation(20)[:TOP] + 1 for _ in range(REGIONS)])
    return RegionRow(
        image_id=compute_image_id(content),
        width=width,
        height=height,
        boxes=np.concatenate(list(corners), axis=1).astype(np.float32),
        features=chance.normal(size=(REGIONS, WIDTH)).astype(np.float16),
        class_ids=(ids[:, 0] - 1).astype(np.int16),
        class_scores=probs[:, 0].astype(np.float32),
        class_probs=probs.astype(np.float16),
        class_prob_ids=ids.astype(np.uint16),
        attribute_ids=chance.integers(0, 5, REGIONS).astype(np.int16),
        attribute_scores=chance.random(REGIONS).astype(np.float32),
    )


def arrays() -> dict[str, dict[str, object]]:
    """Says what the rows' arrays are."""
    return region_arrays(dtype="float16", feature_dim=WIDTH, class_probs_dim=21, top_k=TOP)


def opened() -> WorkerContext:
    """Is called in a worker."""
    about = {"producer": PRODUCER, "arrays": arrays(), "dtype": "float16", "compression": "none"}
    return WorkerContext(compute=compute, about=about)


def main(words: Sequence[str]) -> int:
    """Serves; a word is the token."""
    settings = ServiceSettings(port=0, token=words[0] if words else None)
    shell, application = regions_service(settings, CLASSES, ATTRIBUTES)
    plan = Plan(name="stub", module="vlmill.extract.service.rows", open=opened)
    return run_service(shell, application, [plan], "stub")


if __name__ == "__main__":
    from tests.extract.service.stub import main as main_of_module

    sys.exit(main_of_module(sys.argv[1:]))
