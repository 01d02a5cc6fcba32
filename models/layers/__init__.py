"""The variants are built from these blocks.

Reading order: ``attention``, ``blocks``, ``co_attention``, ``experts``, ``embeddings``, ``heads``,
``pair_heads`` (the heads of models of pairs), ``packing`` (several lengths in one tensor),
``operators`` (who computes a product, dropout, attention), ``packed_attention`` and
``relative_position``.
"""
