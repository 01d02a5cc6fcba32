"""Detection goes from the network's input to rows of regions.

Reading order: ``detector`` (the network with its weights), ``query`` (what it is asked),
``predict``, ``transfer`` (to the device and back), ``selection``, ``rows``, ``config_file``,
``checkpoint``, ``trained_folder`` (a detector that ``extract-rois train`` wrote), ``precision``
and ``detectron2`` (its files and their networks).
"""
