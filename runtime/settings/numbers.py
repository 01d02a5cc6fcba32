"""Limits the numbers of flags, recipes and files."""

MAX_WHOLE = (1 << 63) - 1  # what tensors, files and operating systems count with
