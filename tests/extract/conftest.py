"""Small images on disk and a narrow detector, shared by the tests of this folder."""

import dataclasses
import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vlmill.extract.config import ExtractConfig, InputLimits, Selection, Storage
from vlmill.extract.detect.detector import Detector, open_detector
from vlmill.extract.images.plan import plan_images
from vlmill.extract.run.job import Job, run
from vlmill.models.detector.config import ARCHITECTURES


def encode_blobs(seed: int) -> bytes:
    blobs = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(blobs).resize((96, 72), Image.Resampling.BICUBIC).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def jpeg() -> Callable[[int], bytes]:
    """An image of coloured blobs, 96 x 72, another one for every number."""
    return encode_blobs


@pytest.fixture(scope="session")
def detector() -> Detector:
    return open_detector(
        dataclasses.replace(
            ARCHITECTURES["tiny"], post_nms_top=12, num_classes=50, num_attributes=9
        ),
        None,
        seed=3,
    )


@pytest.fixture(scope="session")
def config() -> ExtractConfig:
    return ExtractConfig(
        selection=Selection(threshold=0.0, min_boxes=8, max_boxes=8),
        limits=InputLimits(short_side=64, long_side=112),
        storage=Storage(images_per_shard=3),
    )


@pytest.fixture(scope="session")
def shared_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of seven good images, a duplicate of one, and two bad ones; not to be changed."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(7):
        (folder / f"{number}.jpg").write_bytes(encode_blobs(number))
    (folder / "5-again.jpg").write_bytes(encode_blobs(1))
    (folder / "3-empty.jpg").write_bytes(b"")
    (folder / "4-cut.jpg").write_bytes(encode_blobs(9)[:400])
    (folder / "notes.csv").write_text("not an image")
    return folder


@pytest.fixture
def images(shared_images: Path, tmp_path: Path) -> Path:
    """The same folder, to be changed."""
    return Path(shutil.copytree(shared_images, tmp_path / "pictures"))


@pytest.fixture(scope="session")
def first_run(
    shared_images: Path,
    detector: Detector,
    config: ExtractConfig,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The output of an undisturbed run over the folder; not to be changed."""
    output = tmp_path_factory.mktemp("first") / "out"
    plan = plan_images([str(shared_images)])
    assert run(Job(plan=plan, output=output, detector=detector, config=config)) == (7, 3)
    return output


@pytest.fixture
def finished(first_run: Path, tmp_path: Path) -> Path:
    """The same output, to be changed; ``out`` of the test's own folder."""
    return Path(shutil.copytree(first_run, tmp_path / "out"))
