"""Limits the numbers of flags, recipes and files."""

MAX_WHOLE = (1 << 63) - 1  # the counters of tensors, files and operating systems
