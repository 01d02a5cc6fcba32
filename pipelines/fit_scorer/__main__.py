"""Runs the job: ``python -m vlmill.pipelines.fit_scorer --help``."""

import sys

from vlmill.pipelines.fit_scorer.command import main

if __name__ == "__main__":
    sys.exit(main())
