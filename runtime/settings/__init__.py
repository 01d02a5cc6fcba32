"""Reads and writes settings as plain data.

Reading order: ``plain_yaml`` (YAML without anchors or tags), ``numbers`` (their limits) and
``plain_fields`` (dataclasses to plain fields and back).
"""
