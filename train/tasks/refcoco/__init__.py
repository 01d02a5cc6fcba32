"""RefCOCO, RefCOCO+ and RefCOCOg find the box that an expression names.

Reading order: ``row``, ``task`` (inputs, head, losses and evaluation), ``settings``, ``metrics``.
"""
