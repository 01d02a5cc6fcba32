"""Trains a detector end to end, with the network that extracts.

Reading order: ``command`` and ``run`` (the command), ``settings`` (of a run, and the recipes),
``targets`` (of anchors and regions), ``losses``, ``step`` (the two on a batch), ``examples`` (the
rows of the table), ``batches``, ``start`` (from other weights), ``job``, ``learning`` (rates and
groups of the optimiser, and all of it as the loop of ``train/run`` drives it, and its report) and
``saving``; it is measured in ``evaluation`` and ``vg_scores``.
"""
