"""VL-BERT (arXiv:1908.08530).

Reading order: ``row``, ``config``, ``regions`` (the parts of a region's embedding), ``encoder``,
``model`` (its pretraining heads), ``tasks``, then ``region_cnn``, ``backbone`` (its initial
weights) and ``end_to_end`` for training from pixels, ``from_bert``, and ``published_settings`` and
``published`` for its checkpoints.
"""
