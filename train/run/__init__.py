"""This is a pretraining run.

Reading order: ``job`` (the stages of a recipe), ``inputs`` (tables and starting checkpoints),
``settings`` (what decides the output), ``preparing`` and ``planning`` (its samples and stages),
``model`` (the first weights), ``runner``, ``loop`` (the step), ``updates`` (of the
weights), ``graphs`` (a step replayed), ``diverged``, ``rejecting``, ``snapshot`` (a checkpoint's
content), ``learning`` (what a run learns: ``pair_learning`` for pretraining and tasks,
``train/detector`` for detectors), ``pretraining`` (its objective; those of tasks are in
``tasks/finetuning``), ``validation``, ``saving``, and ``lineage``; ``cost`` and ``dry_run``
estimate a run. Log, trackers and stopping are those of every command, in
``runtime/console``.
"""
