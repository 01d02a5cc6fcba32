"""Runs the job: ``python -m vlmill.pipelines.nearest_pictures --help``."""

import sys

from vlmill.pipelines.nearest_pictures.command import main

if __name__ == "__main__":
    sys.exit(main())
