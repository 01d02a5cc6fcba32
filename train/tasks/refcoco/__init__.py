"""RefCOCO, RefCOCO+ and RefCOCOg find the box that an expression names.

Reading order: ``task`` (what is read and learnt), ``recipes``, ``evaluation`` and ``metrics``.
"""
