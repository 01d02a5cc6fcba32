"""Runs detection from the network's input to rows of regions.

Reading order: ``detector`` (the network with its weights), ``predict``, ``transfer`` (to the
device and back), ``selection``, ``rows`` (with the network's inputs), ``config_file``,
``checkpoint`` (also the output of ``extract-rois train``), ``names`` (of classes and attributes)
and ``detectron2`` (its files and their networks).
"""
