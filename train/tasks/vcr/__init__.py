"""Visual commonsense reasoning: four answers to a question about a picture, four rationales.

Reading order: ``task`` (what is read and learnt), ``examples`` and ``texts`` (the texts of a row),
``collated`` (a batch of them), ``recipes``, ``evaluation``, ``metrics`` and ``submission``.
"""
