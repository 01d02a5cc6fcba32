"""Extraction takes images and writes rows of the table of regions.

``cli`` is the command, ``extraction`` its ``run``, ``flags`` the arguments of both and
``from_flags`` the settings and the detector that they choose, ``weights`` the files that
``--weights`` means. ``images`` finds, decodes and
resizes, ``detect`` runs the network and selects regions, ``run`` brings both to many images on
several devices, ``image_level`` gives vectors of full images, ``service`` answers over HTTP,
``formats`` reads and writes the files of other projects; ``show``, ``verify`` and ``compare`` look
at what was written. ``extract-rois train`` is in ``vlmill.train.detector``. Read ``config``,
``detect/predict`` and then ``run/job``.
"""
