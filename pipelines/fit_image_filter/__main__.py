"""Runs the job: ``python -m vlmill.pipelines.fit_image_filter --help``."""

import sys

from vlmill.pipelines.fit_image_filter.command import main

if __name__ == "__main__":
    sys.exit(main())
