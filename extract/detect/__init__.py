"""Runs detection from the network's input to rows of regions.

Reading order: ``detector`` (the network with its weights), ``query`` (its inputs),
``predict``, ``transfer`` (to the device and back), ``selection``, ``rows``, ``config_file``,
``checkpoint``, ``names`` (of classes and attributes), ``trained_folder`` (an output of
``extract-rois train``), ``precision`` and ``detectron2`` (its files and their networks).
"""
