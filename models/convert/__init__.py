"""Published checkpoints are read and written by this machinery, which no paper owns.

Reading order: ``keymap`` (links between names), ``family`` (what a family of checkpoints has to
say), ``names`` (names that several share) and ``files``.
"""
