"""This is BERT (Devlin et al. 2018).

Reading order: ``row``, ``config``, ``model``, ``tasks``, then ``published``, the
names of its checkpoints.
"""
