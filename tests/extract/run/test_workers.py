"""Images that cost too much, and processes that end, cost no other image."""

import multiprocessing

from worlds.hostile_images import IMAGES, photograph

from vlmill.extract.config import InputLimits
from vlmill.extract.images.plan import HeldImage
from vlmill.extract.run.workers import open_source
from vlmill.models.detector.config import DetectorConfig
from vlmill.schemas.rejects import Reason, Rejected


def held(name: str, data: bytes) -> HeldImage:
    return HeldImage(path="", data=data, image_id=name)


def test_killed_process_is_replaced_and_costly_images_are_rejects() -> None:
    good, costly = photograph("JPEG", 200), IMAGES["JPEG, 3,000 scans"].make()
    with open_source(DetectorConfig(), InputLimits(), 1, resize=False) as source:
        (first,) = source([held("a", good)])
        for process in multiprocessing.active_children():
            process.kill()
        prepared = list(source([held("b", good), held("c", costly), held("d", good)]))
    assert not isinstance(first.result, Rejected)
    assert [ready.image_id for ready in prepared] == ["b", "c", "d"]
    reasons = [
        ready.result.reason if isinstance(ready.result, Rejected) else None for ready in prepared
    ]
    assert reasons == [None, Reason.TOO_EXPENSIVE, None]
