"""Networks that describe full images beside the detector's regions (ImageBERT, sec. 5.3).

Read ``settings`` (which networks there are), ``crop`` (what they see of an image), ``networks``.
"""
