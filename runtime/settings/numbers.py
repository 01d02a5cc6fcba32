"""How large a number may be that a flag, a recipe or a file gives."""

MAX_WHOLE = (1 << 63) - 1  # what tensors, files and operating systems count with
