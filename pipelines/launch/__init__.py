"""A job is started with these ``options`` of its runner."""
