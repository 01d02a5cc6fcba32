"""Reads untrusted files: packed ones, archives, lines, large JSON, tables.

Reading order: ``unpacking`` and ``tars`` (members, and limits of their content), ``sources`` (the
files of a data set and of its archives), ``images`` (images that a table names), ``lines``,
``json_text`` and ``streams`` (JSON, one element at a time), ``text_rows``, ``parquet_files`` and
``rows`` (tables of any format), ``detected`` (separators and encodings) and ``columns`` (guessed
from their names).
"""
