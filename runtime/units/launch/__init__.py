"""Jobs on clusters: Beam is loaded (``loading``) and given its ``options``, and shows ``metrics``.

``flink_worker`` starts Python workers on Flink, and ``flink_watch`` ends jobs that none of them can
do; ``clusters`` asks for what their jobs need, ``failures`` what a worker elsewhere died of.
"""
