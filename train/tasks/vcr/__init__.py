"""Visual commonsense reasoning: four answers to a question about an image, four rationales.

Reading order: ``row``, ``task`` (inputs, head and losses), ``examples`` and ``texts`` (the texts of
a row), ``categories``, ``outlines`` and ``named_objects`` (of its objects), ``batch_tensors`` (a
batch of them), ``heads``, ``settings``, ``evaluation`` and ``submission``.
"""
