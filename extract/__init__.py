"""Extracts region features of images into the table of regions.

``cli`` is the command, ``flags`` the arguments of its detector, ``from_flags`` the resulting
settings and detector, and ``weights`` finds the files of ``--weights``. ``images`` finds,
decodes and resizes, ``detect`` runs the network and selects regions, ``run`` applies both to many
images on several devices, ``image_level`` computes vectors of full images, ``service`` serves over
HTTP, ``formats`` reads and writes the files of other projects; ``show``, ``verify`` and ``compare``
inspect outputs. ``extract-rois train`` is in ``vlmill.train.detector``. Read ``config``,
``detect/predict`` and then ``run/job``.
"""
