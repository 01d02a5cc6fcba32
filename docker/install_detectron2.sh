#!/bin/sh
# Builds Detectron2 from a folder of its source beside a vlmill that install.sh has installed, into
# the Python that PYTHON names. A compiler takes up to 2.5 GB; MAX_JOBS says how many run at once.
set -eu

source=${1:?"usage: install_detectron2.sh SOURCE: a folder of Detectron2's source"}
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
export MAX_JOBS="${MAX_JOBS:-2}"

test -f "$source/detectron2/__init__.py" || {
	echo "$source: no source of Detectron2 there; clone it, and give its folder" >&2
	exit 2
}
# Its model zoo imports pkg_resources, which newer setuptools lack.
versions=$(mktemp)
grep -v '^setuptools==' "$root/constraints.txt" >"$versions"
"$python" -m pip install --no-cache-dir --disable-pip-version-check --constraint "$versions" \
	'setuptools<81' wheel ninja omegaconf 'hydra-core>=1.1' fvcore iopath pycocotools yacs \
	tabulate cloudpickle termcolor black
rm "$versions"
"$python" -m pip install --no-cache-dir --disable-pip-version-check --no-build-isolation --no-deps \
	"$source"
cd / && "$python" -c 'import detectron2.modeling'
