"""What one does with a checkpoint.

Reading order: ``hub`` (checkpoints of the Hugging Face hub), ``load`` (``vlmill.load``), ``search``
(embeddings and their index), ``convert`` (checkpoints of other projects), ``show`` (how a run was
made), ``push`` (to the hub), ``service`` (the same over HTTP).
"""
