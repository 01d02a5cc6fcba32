# Images of vlmill's commands; --target says which:
#   docker build -f docker/vlmill.Dockerfile --target train -t vlmill-train .
#   docker build -f docker/vlmill.Dockerfile --target extract -t vlmill-extract .
#   docker build -f docker/vlmill.Dockerfile --target detectron2 \
#       --build-context detectron2-source=../detectron2 -t vlmill-detectron2 .
# torch as published for Linux brings the CUDA libraries along: with the NVIDIA container toolkit and
# `docker run --gpus all` the same images compute on a GPU.
FROM python:3.11-slim-bookworm AS base

ENV PYTHONUNBUFFERED=1 OMP_WAIT_POLICY=PASSIVE VLMILL_CACHE=/cache
RUN useradd --create-home --uid 1000 vlmill \
    && mkdir -p /data /cache \
    && chown vlmill /data /cache
COPY . /src
RUN /src/docker/install.sh cloud
USER 1000
WORKDIR /data

# Health: torch loads, and computes on the GPU if the container was given one.
HEALTHCHECK --interval=5m --timeout=1m --start-period=1m \
    CMD ["python", "/src/docker/healthy.py"]

FROM base AS train
ENTRYPOINT ["train-vl"]
CMD ["--help"]

FROM base AS extract
ENTRYPOINT ["extract-rois"]
CMD ["--help"]

# With a compiler, and Detectron2 beside vlmill, for extract-rois run --backend detectron2. Its source
# is the build context detectron2-source. On a processor alone, unless a base image with nvcc and
# --build-arg FORCE_CUDA=1 are given.
FROM base AS detectron2
ARG FORCE_CUDA=0
ARG MAX_JOBS=2
USER 0
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libgl1 libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*
# hadolint ignore=DL3022
COPY --from=detectron2-source . /detectron2
RUN FORCE_CUDA="$FORCE_CUDA" MAX_JOBS="$MAX_JOBS" /src/docker/install_detectron2.sh /detectron2
USER 1000
ENTRYPOINT ["extract-rois"]
CMD ["--help"]
