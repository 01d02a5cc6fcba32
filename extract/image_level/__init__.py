"""Computes features of full images with additional networks (ImageBERT, sec. 5.3).

Read ``settings`` (which networks exist), ``crop`` (their part of an image), ``networks``.
"""
