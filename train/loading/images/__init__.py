"""Turns images into pixels for the models that read them.

Reading order: ``crop`` (decoding, crops, jitter, RandAugment), ``boxed`` (images with boxes) and
``tokenizer`` (image tokens).
"""
