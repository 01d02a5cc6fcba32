"""VL-BERT (arXiv:1908.08530).

Reading order: ``row``, ``config``, ``encoder`` (with the embedding of regions), ``model`` (its
pretraining heads), ``tasks``, then ``region_cnn``, ``backbone`` (its initial weights) and
``end_to_end`` for training from pixels, and ``published`` for its checkpoints and their settings.
"""
