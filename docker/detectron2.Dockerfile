# An image with Detectron2 beside vlmill, for extract-rois run --backend detectron2, on the processor:
#   docker build -f docker/detectron2.Dockerfile -t vlmill-detectron2 .
# Compiling Detectron2 takes a few minutes and up to 2.5 GB of memory for each of MAX_JOBS compilers.
FROM python:3.11-bookworm

ARG DETECTRON2=02b5c4e295e990042a714712c21dc79b731e8833
ENV FORCE_CUDA=0 MAX_JOBS=2 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /vlmill

COPY setup.py pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY schemas schemas
COPY models models
COPY extract extract
COPY pipelines pipelines
COPY train train
# Its model zoo imports pkg_resources, which newer setuptools lack.
RUN grep -v '^setuptools==' constraints.txt > /tmp/constraints.txt \
    && pip install --constraint /tmp/constraints.txt . 'setuptools<81' wheel ninja
RUN pip install --no-build-isolation --no-deps \
        "git+https://github.com/facebookresearch/detectron2@${DETECTRON2}" \
    && pip install --constraint /tmp/constraints.txt omegaconf 'hydra-core>=1.1' fvcore iopath \
        pycocotools yacs tabulate cloudpickle termcolor black \
    && python -c 'import detectron2.modeling'

RUN useradd --create-home --uid 1000 vlmill
USER vlmill
WORKDIR /data
ENTRYPOINT ["extract-rois"]
