"""A run leaves checkpoints behind, and continues from them.

Reading order: ``folders`` (where they lie), ``named`` (those of the hub and the web), ``files``
(written and read whole), ``state`` (what continuing needs), ``detector`` (of whose regions) and
``trained_on`` (pairs that weights have seen).
"""
