"""Exports a checkpoint to ONNX, for runtimes without PyTorch.

Reading order: ``command``, ``graphs`` (the exported modules and their inputs), ``job``.
"""
