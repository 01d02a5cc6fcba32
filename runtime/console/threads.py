"""Bounds the threads of FAISS, which searches vectors for several jobs, and runs it on a GPU."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vlmill.schemas.errors import InputError

MOST_ON_GPU = 2_048  # results of a query


@contextmanager
def faiss_threads(count: int | None) -> Iterator[None]:
    """Sets FAISS's number of threads to ``count`` inside the block (None: unchanged).

    The number applies to the whole process: it affects the last bits of PyTorch's sums.
    """
    import faiss  # only jobs that search load it

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def gpu_number(device: str) -> int | None:
    """Returns the number of the GPU that ``--search-device`` names, None for `cpu`.

    Raises InputError for another device, and if this FAISS has no such GPU.
    """
    if device == "cpu":
        return None
    match = re.fullmatch(r"cuda(?::(\d{1,3}))?", device)
    if match is None:
        raise InputError(f"--search-device {device}: expected cpu, cuda, cuda:1, ...")
    import faiss

    if not hasattr(faiss, "StandardGpuResources"):
        raise InputError(
            f"--search-device {device}: the installed FAISS has no support for GPUs; replace "
            "faiss-cpu by faiss-gpu (docs/install.md), or use cpu"
        )
    number, count = int(match[1] or 0), int(faiss.get_num_gpus())
    if number >= count:
        raise InputError(f"--search-device {device}: FAISS finds {count} GPUs; use cpu")
    return number


def move_to_gpu(index: Any, number: int) -> Any:
    """Returns a copy of a FAISS index in the memory of a GPU."""
    import faiss

    return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), number, index)


def nearest_vectors(queries: Any, vectors: Any, count: int, gpu: int | None) -> tuple[Any, Any]:
    """Returns the squared distances and positions of each query's nearest vectors, both [Q, count].

    On the GPU with this number, except for more results than it can return.
    """
    import faiss

    if gpu is None or count > MOST_ON_GPU:
        results: tuple[Any, Any] = faiss.knn(queries, vectors, count)
    else:
        results = faiss.knn_gpu(faiss.StandardGpuResources(), queries, vectors, count, device=gpu)
    return results
