"""A job is loaded (``loading``) and done on this machine's cores (``local``), or started with the
``options`` of a Beam runner, which shows its ``metrics``.

``flink_worker`` starts Python workers on Flink, and ``flink_watch`` ends jobs that none of them can
do; ``clusters`` asks for what their jobs need, ``failures`` what a worker elsewhere died of.
"""
