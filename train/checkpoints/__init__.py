"""A run leaves checkpoints behind, and continues from them.

Reading order: ``folders`` (where they lie), ``files`` (written and read whole) and ``state`` (what
continuing needs).
"""
