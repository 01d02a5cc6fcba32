"""Runs the job: ``python -m vlmill.pipelines.web_pairs --help``.

What Beam's workers load stands in other modules: they find it there by name, and not here.
"""

import sys

from vlmill.pipelines.web_pairs.command import main

if __name__ == "__main__":
    sys.exit(main())
