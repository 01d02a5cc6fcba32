"""A checkpoint over HTTP: ``train-vl serve``.

Reading order: ``command``, ``questions``, ``engine`` (what a worker is), ``computing`` (in it;
images in processes that can be killed) and ``app``.
"""
