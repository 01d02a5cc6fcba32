"""Runs the job: ``python -m vlmill.pipelines.web_pairs --help``.

Beam workers load classes and functions by module name, so they are defined in other modules.
"""

import sys

from vlmill.pipelines.web_pairs.command import main

if __name__ == "__main__":
    sys.exit(main())
