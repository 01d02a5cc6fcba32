"""Checks what has to be seen on a GPU before the numbers of one are believed: ``make
gpu-check``.
"""
