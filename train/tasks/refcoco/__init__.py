"""RefCOCO, RefCOCO+ and RefCOCOg find the box that an expression names.

Reading order: ``row``, ``task`` (inputs, head and losses), ``settings``, ``evaluation``,
``metrics``.
"""
