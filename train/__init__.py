"""Training goes from tables to checkpoints and reports.

``cli`` is the command. ``recipes`` define runs, ``loading`` makes batches of tables,
``objectives`` are the losses, ``optim`` the steps of the optimiser, ``devices`` and ``checkpoints``
what their names say; ``run`` combines them, ``tasks`` fine-tune and evaluate, ``detector`` trains
the detector. The use of a checkpoint afterwards is in ``vlmill.inference``. Read
``run/loop``, ``objectives/pretraining`` and ``objectives/losses`` first.
"""
