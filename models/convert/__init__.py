"""Published checkpoints are read and written by this machinery, which no paper owns.

Reading order: ``keymap`` (links between names), ``family`` (what a family of checkpoints has to
say), ``names`` (names that several share), ``files``, ``plain_pickle`` and
``unpickling`` (untrusted pickles as plain data), ``inert_objects`` (pickled modules as state
dicts), ``foreign`` (what a file is that cannot be read) and ``caffe_file`` (Caffe's binary
format).
"""
