"""Visual commonsense reasoning: four answers to a question about an image, four rationales.

Reading order: ``row``, ``task`` (inputs, losses, objects that texts name), ``examples`` and
``texts`` (the texts of a row), ``outlines`` (of its objects), ``batch_tensors`` (a batch of them,
and the heads' outputs for it), ``settings`` and ``evaluation``.
"""
