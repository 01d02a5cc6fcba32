"""Runs jobs on clusters: loads Beam (``loading``) and sets its ``options``.

``flink_worker`` starts Python workers on Flink; ``clusters`` checks the requirements of jobs,
``failures`` explains the end of remote workers.
"""
