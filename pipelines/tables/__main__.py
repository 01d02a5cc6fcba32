"""Runs the job: ``python -m vlmill.pipelines.tables --help``."""

import sys

from vlmill.pipelines.tables.command import main

if __name__ == "__main__":
    sys.exit(main())
