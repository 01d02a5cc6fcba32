"""Reads and writes published checkpoints, with the parts that do not belong to one paper.

Reading order: ``keymap`` (links between names, and the description of a family of checkpoints),
``names`` (names that several share), ``files`` (also of a network inside other keys and prefixes),
``plain_pickle`` and ``unpickling`` (untrusted pickles as plain data),
``inert_objects`` (pickled modules as state dicts), ``foreign`` (identifies files that cannot be
read) and ``caffe_file`` (Caffe's binary format).
"""
