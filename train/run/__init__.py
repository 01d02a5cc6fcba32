"""This is a pretraining run.

Reading order: ``job`` (the stages of a recipe), ``inputs`` (tables and starting checkpoints),
``settings`` (what decides the output), ``model`` (what a run begins with), ``runner``, ``loop``
(the step), ``validation``, ``saving``, ``log`` and ``report``.
"""
