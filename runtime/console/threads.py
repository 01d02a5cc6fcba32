"""Bounds the threads of FAISS, which searches vectors for several jobs."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def faiss_threads(count: int | None) -> Iterator[None]:
    """Sets FAISS's number of threads to ``count`` inside the block (None: unchanged).

    The number is the process's: PyTorch's sums, which depend on it in their last bits, follow it.
    """
    import faiss  # only jobs that search have it loaded

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
