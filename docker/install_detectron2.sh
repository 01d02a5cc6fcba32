#!/bin/sh
# Builds Detectron2 from a folder of its source, next to a vlmill that install.sh has installed, into
# the Python that PYTHON names: needs g++. A compiler takes up to 2.5 GB; MAX_JOBS is the number that
# run at once. detectron2.txt has the tested commit and versions.
set -eu

source=${1:?"usage: install_detectron2.sh SOURCE: a folder of Detectron2's source"}
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
export MAX_JOBS="${MAX_JOBS:-2}"

test -f "$source/detectron2/__init__.py" || {
	echo "$source: no source of Detectron2 there; clone it, and give its folder" >&2
	exit 2
}
command -v "${CXX:-g++}" >/dev/null || {
	echo "no C++ compiler: Detectron2 is built with one; on Debian and Ubuntu: apt-get install g++" >&2
	exit 2
}
versions=$(mktemp)
grep -v '^setuptools==' "$root/constraints.txt" >"$versions"
"$python" -m pip install --no-cache-dir --disable-pip-version-check --constraint "$versions" \
	--requirement "$root/docker/detectron2.txt"
rm "$versions"
"$python" -m pip install --no-cache-dir --disable-pip-version-check --no-build-isolation --no-deps \
	"$source"
"$python" -m pip check
cd / && "$python" -c 'import detectron2.modeling'
