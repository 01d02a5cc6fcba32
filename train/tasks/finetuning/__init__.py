"""Fine-tunes any task.

Reading order: ``job`` (from tables, a recipe and a starting checkpoint to a run; the model's
start; several seeds), ``learning`` (the step on a task's batches, and the measurement of held-out
examples), ``choice`` (the recipe that fits the data), ``dry_run`` and ``command``.
"""
