"""Exports a checkpoint to ONNX, for runtimes without PyTorch.

Reading order: ``command``, ``job`` (the exported modules, their inputs, and the files).
"""
