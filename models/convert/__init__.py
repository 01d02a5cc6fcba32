"""Published checkpoints are read and written by this machinery, which no paper owns.

Reading order: ``keymap`` (links between names), ``family`` (what a family of checkpoints has to
say), ``names`` (names that several share), ``files``, and ``plain_pickle`` and ``unpickling``
(strangers' pickles as plain data).
"""
