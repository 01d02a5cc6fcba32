"""Settings as plain data.

Reading order: ``plain_yaml`` (YAML without anchors or tags), ``numbers`` (how large they may be)
and ``plain_fields`` (dataclasses to plain fields and back).
"""
