"""Runs the job: ``python -m vlmill.pipelines.nearest_images --help``."""

import sys

from vlmill.pipelines.nearest_images.command import main

if __name__ == "__main__":
    sys.exit(main())
