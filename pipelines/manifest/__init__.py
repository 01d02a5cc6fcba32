"""This job writes data sets as tables of pairs and images.

Reading order: ``job`` (the command) and its two halves, ``own`` (the user's own captions) and
``published`` (data sets, of which ``entries`` says what one is, ``sets`` has a file each, and
``listed`` their titles). Both take ``flags``, write ``part`` by part, here or ``on_beam``, take
files in by ``reading`` and ``layouts``, mend texts by ``cleaning``, ``titles`` and ``labels``, and
end with ``dropped``, ``report`` and ``cost``.
"""
