"""Pictures become pixels for the models that read them.

Reading order: ``crop`` (decoding, crops, jitter), ``augment``, ``boxed`` (pictures with boxes) and
``tokenizer`` (picture tokens).
"""
