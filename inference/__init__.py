"""Uses checkpoints: loads, searches, serves, converts, shows and publishes them.

Reading order: ``load`` (``vlmill.load``), ``search`` (embeddings and their index), ``convert``
(checkpoints of other projects), ``show`` (how a run was made), ``push`` (to the hub), ``service``
(scores, vectors and search over HTTP).
"""
