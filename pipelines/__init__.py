"""Beam jobs over pure functions: ``python -m vlmill.pipelines.JOB --help``."""
