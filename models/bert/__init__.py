"""BERT (Devlin et al. 2018).

Reading order: ``row``, ``config``, ``model``, then ``published`` (its checkpoints' names).
"""
