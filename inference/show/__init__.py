"""Prints the contents of a run or a checkpoint (``train-vl show``) without loading a model.

Reading order: ``command`` (arguments), ``folder`` (reads DIR) and ``lines`` (the printed text).
"""
