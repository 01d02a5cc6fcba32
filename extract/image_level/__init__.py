"""Computes features of full images with additional networks (ImageBERT, sec. 5.3).

Read ``crop`` (their part of an image), then ``networks``.
"""
