"""Runs the job: ``python -m vlmill.pipelines.crawl --help``.

Functions for Beam's workers are in other modules, because workers import them by name.
"""

import sys

from vlmill.pipelines.crawl.command import main

if __name__ == "__main__":
    sys.exit(main())
