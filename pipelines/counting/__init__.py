"""Jobs count how many records they take, pass on and drop.

Reading order: ``funnel`` names the stages, ``steps`` counts a unit of work, ``numbers`` are shown
while the job runs. ``kept_values`` remembers values of earlier rows, on the disk.
"""
