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
	setuptools==80.10.2 wheel==0.48.0 ninja==1.13.2 fvcore==0.1.5.post20221221 iopath==0.1.9 \
	omegaconf==2.3.1 hydra-core==1.3.8 antlr4-python3-runtime==4.9.3 yacs==0.1.8 \
	portalocker==4.4.2 tabulate==0.10.0 termcolor==3.3.0 black==26.10.1 pycocotools cloudpickle
rm "$versions"
"$python" -m pip install --no-cache-dir --disable-pip-version-check --no-build-isolation --no-deps \
	"$source"
"$python" -m pip check
cd / && "$python" -c 'import detectron2.modeling'
