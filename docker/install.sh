#!/bin/sh
# Installs vlmill with the extras that the argument names (demo,cloud) and the exact versions of
# constraints.txt into the Python that PYTHON names; every image runs this, and so can a machine.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
extras=${1:-}

"$python" -m pip install --no-cache-dir --disable-pip-version-check \
	--constraint "$root/constraints.txt" "$root${extras:+[$extras]}"
"$python" -m pip check
cd / && "$python" -m vlmill.train.cli --version
