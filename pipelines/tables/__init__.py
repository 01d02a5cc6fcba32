"""This job puts tables together, and takes rows out of them: concat, filter, sample, remove.

Reading order: ``command``, ``inputs``, ``where`` (conditions), ``choice`` (which rows stay),
``removal`` (of what someone asks to be left out), ``job`` (writing) and ``on_beam``.
"""
