"""Training goes from tables to checkpoints and reports.

``cli`` is the command. ``recipes`` say what a run is, ``loading`` makes batches of tables,
``objectives`` are the losses, ``optim`` the steps of the optimiser, ``devices`` and ``checkpoints``
what their names say; ``run`` brings them together, ``convert`` takes models in and out, ``tasks``
evaluate. Read ``run/loop``, ``objectives/pretraining`` and ``objectives/losses`` first.
"""
