"""A run leaves checkpoints behind, and continues from them.

Reading order: ``files`` (written whole, found again) and ``state`` (what continuing needs).
"""
