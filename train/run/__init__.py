"""This is a pretraining run.

Reading order: ``job`` (the stages of a recipe), ``inputs`` (tables and starting checkpoints),
``settings`` (what decides the output), ``sizes`` and ``model`` (what a run begins with),
``runner``, ``batches``, ``loop`` (the step), ``rejecting``, ``validation``, ``saving``,
``stopping``, ``log``, ``trackers`` and ``report``.
"""
