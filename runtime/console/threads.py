"""Bounds the threads of FAISS, which searches vectors for several jobs."""

from collections.abc import Iterator
from contextlib import contextmanager


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
