# The image that Beam's workers start from, on Dataflow or on Flink with --environment_type=DOCKER:
#   docker build -f docker/worker.Dockerfile -t REGION-docker.pkg.dev/PROJECT/vlmill/worker:1 .
#   docker push REGION-docker.pkg.dev/PROJECT/vlmill/worker:1
# With Detectron2, for `regions --backend detectron2`; its source is the build context detectron2-source:
#   docker build -f docker/worker.Dockerfile --target detectron2 \
#       --build-context detectron2-source=../detectron2 -t .../vlmill/worker-detectron2:1 .
# The versions of Beam and of Python here and where the job is started must be the same: constraints.txt
# has Beam's, and Python is 3.11. Dataflow mounts a folder that only root may write, in which Beam keeps
# what a job sends along: build for it with --build-arg WORKER_UID=0.
#
# Beam's image is named by its tag; README.md has the command that pins it by its digest.
ARG BEAM_IMAGE=apache/beam_python3.11_sdk:2.77.0
FROM ${BEAM_IMAGE} AS base

# Beam's boot would make an environment of its own under /opt/apache, where only root may; what steps
# need lies in the image's.
ENV PYTHONUNBUFFERED=1 OMP_WAIT_POLICY=PASSIVE RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
# What vlmill requires, before its source: a change of the source leaves this layer in the cache.
COPY setup.py constraints.txt /src/
COPY docker/install.sh docker/requirements.py /src/docker/
RUN /src/docker/install.sh --requirements all,gcp
COPY . /src
RUN /src/docker/install.sh all,gcp \
    && useradd --create-home --uid 1000 vlmill
HEALTHCHECK --interval=1m --timeout=10s --start-period=1m \
    CMD ["python", "/src/docker/healthy.py"]

# A detector's weights can lie in the image, under the path that --weights names:
# COPY detector.pth /models/detector.pth

FROM base AS detectron2
ARG WORKER_UID=1000
ARG MAX_JOBS=2
# hadolint ignore=DL3008,DL3022
RUN --mount=type=bind,from=detectron2-source,target=/detectron2,readwrite \
    apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && FORCE_CUDA=0 MAX_JOBS="$MAX_JOBS" /src/docker/install_detectron2.sh /detectron2 \
    && rm -rf /var/lib/apt/lists/*
USER ${WORKER_UID}
# Where boot writes the job's options.
WORKDIR /home/vlmill

# The last stage is the one that is built without --target.
FROM base AS worker
ARG WORKER_UID=1000
USER ${WORKER_UID}
# Where boot writes the job's options.
WORKDIR /home/vlmill
