"""Published checkpoints are read and written by this machinery, which no paper owns.

Reading order: ``keymap`` (links between names), ``family`` (what a family of checkpoints has to
say), ``names`` (names that several share), ``files``, ``plain_pickle`` and
``unpickling`` (untrusted pickles as plain data), and ``caffe_file`` (Caffe's binary format).
"""
