"""RefCOCO, RefCOCO+ and RefCOCOg find the box that an expression names.

Reading order: ``row``, ``task`` (what is read and learnt), ``recipes``, ``evaluation``,
``metrics``.
"""
