"""Defines the settings of runs; the numbers of papers are in `vlmill.train.recipes`.

Reading order: ``parts``, ``spec`` (stages and runs) and ``tasks`` (the runs of fine-tuning).
"""
