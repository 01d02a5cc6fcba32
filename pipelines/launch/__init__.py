"""A job is loaded (``loading``) and started with the ``options`` of its runner."""
