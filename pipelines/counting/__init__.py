"""Jobs count what came in, went on and was dropped.

Reading order: ``funnel`` names the stages, ``steps`` counts a unit of work, ``numbers`` are what is
seen of it while the job runs. ``kept`` remembers what earlier rows have said, on the disk.
"""
