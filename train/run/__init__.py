"""Runs pretraining.

Reading order: ``job`` (the stages of a recipe), ``inputs`` (tables and starting checkpoints),
``settings`` (the settings that decide the output), ``preparing`` and ``planning`` (its samples and
stages), ``model`` (the first weights), ``runner``, ``loop`` (over steps), ``step``, ``updates`` (of
the weights), ``device_batch`` (the largest batch that fits), ``graphs`` (a step replayed),
``rejecting``, ``snapshot`` (a checkpoint's content), ``learning`` (the interface of an objective:
``pair_learning`` for pretraining and tasks, ``train/detector`` for detectors), ``pretraining`` (its
objective; tasks have theirs in ``tasks/finetuning``), ``validation``, ``saving``, and ``lineage``;
``cost`` and ``dry_run`` estimate a run. Log, trackers and stopping are shared by all commands, in
``runtime/console``.
"""
