"""Runs the job: ``python -m vlmill.pipelines.crawl --help``.

What Beam's workers load stands in other modules: they find it there by name, and not here.
"""

import sys

from vlmill.pipelines.crawl.command import main

if __name__ == "__main__":
    sys.exit(main())
