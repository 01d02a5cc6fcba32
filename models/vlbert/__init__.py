"""This is VL-BERT (arXiv:1908.08530).

Reading order: ``row``, ``config``, ``regions`` (what a region's embedding is made of), ``encoder``,
``model`` (its pretraining heads), ``tasks``, then ``region_cnn``, ``backbone`` (what that starts
from) and ``end_to_end`` for training from pixels, ``from_bert``, and ``published_settings``
and ``published`` for its checkpoints.
"""
