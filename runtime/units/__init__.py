"""Runs the steps of jobs over units of work, on this machine or on a Beam runner.

Reading order: ``unit`` (its result, and its record with the SHA-256 of every file that it wrote),
``step`` (a job is a list of steps), ``run_here`` and its ``pool`` of processes, ``run_beam`` with
the ``stored`` job that its graph refers to, ``runner`` (selects one of the two by ``flags``),
``share`` (the units of one of several machines), then ``numbers`` and ``funnel`` (counters).
``launch`` starts jobs on clusters.

Each step writes its results for the next to files of ``--output``. Only units go through a runner's
shuffle, no records, so every runner gives the same bytes with any number of workers.
"""
