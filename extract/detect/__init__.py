"""Detection goes from the network's input to rows of regions.

Reading order: ``detector`` (the network with its weights), ``predict``, ``selection``,
``predict_fixed`` and ``selection_fixed`` (the same for batches on other devices than the CPU),
``config_file``, ``checkpoint``, ``precision`` and ``detectron2``.
"""
