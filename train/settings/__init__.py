"""What a run's settings are made of; the numbers of papers are in `vlmill.train.recipes`.

Reading order: ``parts``, ``spec`` (stages and runs) and ``tasks`` (the runs of fine-tuning).
"""
