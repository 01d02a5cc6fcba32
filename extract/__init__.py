"""Extraction takes pictures and writes rows of ``regions``.

``cli`` is the command and ``flags`` its arguments. ``pictures`` finds, decodes and resizes,
``detect`` runs the network and selects regions, ``run`` brings both to many pictures on several
devices, ``formats`` reads and writes the files of other projects; ``show`` and ``verify`` look at
what was written. Read ``config``, ``detect/predict`` and then ``run/job``.
"""
