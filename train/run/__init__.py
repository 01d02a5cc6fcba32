"""This is a pretraining run.

Reading order: ``job`` (the stages of a recipe), ``inputs`` (tables and starting checkpoints),
``settings`` (what decides the output), ``preparing`` and ``planning`` (its samples and stages),
``sizes`` and ``model`` (what a run begins with), ``learning`` and ``pretraining`` (what is learnt;
of tasks it stands in ``tasks/finetuning``), ``runner``, ``batches``, ``loop`` (the step),
``graphs`` (a step replayed), ``diverged``, ``rejecting``, ``validation``, ``saving``, ``lineage``
and ``report``; ``cost`` and ``dry_run`` tell it before. Log, trackers and stopping are those of
every command, in ``runtime/console``.
"""
