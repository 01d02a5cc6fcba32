"""Builds the layers of the model variants.

Reading order: ``attention``, ``blocks`` (also of co-attention), ``experts``, ``embeddings``,
``heads``, ``pair_heads`` (the heads of pair models), ``packing`` (several lengths in one tensor),
``operators`` (selects the implementation of a product, dropout, attention) and
``relative_position``.
"""
