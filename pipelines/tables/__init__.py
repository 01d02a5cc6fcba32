"""This job puts tables together, and takes rows out of them: concat, filter, sample, remove.

Reading order: ``command``, ``where`` (conditions), ``choice`` (which rows stay), ``job`` (writing).
"""
