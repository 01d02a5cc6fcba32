#!/bin/sh
# Installs vlmill with the extras that the argument names (demo,cloud) and the exact versions of
# constraints.txt into the Python that PYTHON names; every image runs this, and so can a machine.
# --requirements before the extras installs only what vlmill requires: images do so before they copy
# the source, so that this layer stays in the cache until setup.py or constraints.txt changes.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
only=
if [ "${1:-}" = --requirements ]; then
	only=1
	shift
fi
extras=${1:-}

if [ -n "$only" ]; then
	list=$(mktemp)
	"$python" "$root/docker/requirements.py" "$extras" >"$list"
	"$python" -m pip install --no-cache-dir --disable-pip-version-check \
		--constraint "$root/constraints.txt" --requirement "$list"
	rm "$list"
	exit
fi
"$python" -m pip install --no-cache-dir --disable-pip-version-check \
	--constraint "$root/constraints.txt" "$root${extras:+[$extras]}"
"$python" -m pip check
cd / && "$python" -m vlmill.train.cli --version
