"""BERT (Devlin et al. 2018).

Reading order: ``row``, ``config``, ``model``, ``tasks``, then ``published`` (its checkpoints'
names).
"""
