"""Settings as plain data.

Reading order: ``plain_yaml`` (YAML without anchors or tags), ``plain_fields`` (dataclasses to plain
fields and back).
"""
