"""Unpickles every step of staged pipelines, as a worker does: python unpickle.py pipeline.pb ...

Prints a line of JSON for each file: the classes of its steps, and what in their pickles looks like
a path of this machine. The process has nothing of the tests.
"""

import base64
import bz2
import json
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apache_beam.internal import pickler
from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2 as api
from google.protobuf.wrappers_pb2 import BytesValue

PATH = re.compile(rb"(?<![\w:/.])/[\w.+-]+(?:/[\w.+*-]+)+")


def pickles_of(pipeline: api.Pipeline) -> Iterator[tuple[bytes, bool]]:
    """Yields the pickled function of each step, and every pickled coder; and whether zlib has
    packed it, or bz2.
    """
    for transform in pipeline.components.transforms.values():
        if transform.spec.urn == common_urns.primitives.PAR_DO.urn:
            do_fn = api.ParDoPayload.FromString(transform.spec.payload).do_fn
            assert do_fn.urn == python_urns.PICKLED_DOFN_INFO, do_fn.urn
            yield do_fn.payload, False
        elif transform.spec.urn == common_urns.composites.COMBINE_PER_KEY.urn:
            combine_fn = api.CombinePayload.FromString(transform.spec.payload).combine_fn
            assert combine_fn.urn == python_urns.PICKLED_COMBINE_FN, combine_fn.urn
            yield combine_fn.payload, False
    for coder in pipeline.components.coders.values():
        if coder.spec.urn == python_urns.PICKLED_CODER:
            named = BytesValue.FromString(coder.spec.payload).value
            yield named.partition(b"$")[2], True


def name_of(step: Any) -> str:
    """The class of an unpickled step; of a DoFn comes a tuple that it leads."""
    first = step[0] if isinstance(step, tuple) else step
    return f"{type(first).__module__}.{type(first).__name__}"


def main() -> None:
    for path in sys.argv[1:]:
        pipeline = api.Pipeline.FromString(Path(path).read_bytes())
        names, paths = [], set()
        for payload, by_zlib in pickles_of(pipeline):
            names.append(name_of(pickler.loads(payload, use_zlib=by_zlib)))
            unpack = zlib.decompress if by_zlib else bz2.decompress
            pickled = unpack(base64.b64decode(payload))
            paths |= {match.decode() for match in PATH.findall(pickled)}
        print(
            json.dumps({"steps": len(names), "names": sorted(set(names)), "paths": sorted(paths)})
        )


if __name__ == "__main__":
    main()
