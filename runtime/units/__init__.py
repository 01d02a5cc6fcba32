"""The one engine of the jobs: steps over units of work, on this machine or on a Beam runner.

Reading order: ``unit`` (its result, and its record with the SHA-256 of every file that it wrote),
``step`` (a job is a list of steps), ``run_here`` and its ``pool`` of processes, ``run_beam`` with
the ``stored`` job that its graph names, ``runner`` (which of the two a command asks for, by
``flags``), ``share`` (the units of one of several machines), then ``numbers``, ``counts`` and
``funnel`` (what is counted). ``launch`` starts jobs on clusters.

What one step leaves for the next is in files of ``--output``, and no record goes through a runner's
shuffle, only units: every runner gives the same bytes with any number of workers.
"""
