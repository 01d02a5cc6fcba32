"""A job is loaded (``loading``) and started with the ``options`` of its runner.

``flink_worker`` starts Python workers on Flink, ``dataflow`` says what Dataflow needs, ``failures``
what a worker elsewhere died of.
"""
