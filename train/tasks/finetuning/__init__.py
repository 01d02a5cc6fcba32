"""Any task is fine-tuned here.

Reading order: ``job`` (tables, a recipe and a starting checkpoint in; a run out; the
model's start), ``learning`` (the step on a task's batches, and what
is measured of held-out examples), ``seeds``, ``dry_run`` and ``command``.
"""
