# Images of vlmill's commands; --target says which:
#   docker build -f docker/vlmill.Dockerfile --target train -t vlmill-train .
#   docker build -f docker/vlmill.Dockerfile --target extract -t vlmill-extract .
#   docker build -f docker/vlmill.Dockerfile --target detectron2 \
#       --build-context detectron2-source=../detectron2 -t vlmill-detectron2 .
#   docker build -f docker/vlmill.Dockerfile --target serve -t vlmill-serve .
#   docker build -f docker/vlmill.Dockerfile --target flink -t vlmill-flink .
# torch as published for Linux brings the CUDA libraries along: with the NVIDIA container toolkit and
# `docker run --gpus all` the same images compute on a GPU.
# The base images are pinned by the digests of their lists for all platforms (README.md has how to
# renew them).
FROM maven:3.9-eclipse-temurin-17@sha256:42a3ac393abbc64dae6c96703e5ead2e921fe9103371ac58b5b404b0d6a26502 AS jar
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/*
COPY docker/flink /src/docker/flink
RUN XDG_CACHE_HOME=/jar python3 /src/docker/flink/flink_jar.py \
    && mv /jar/vlmill/flink-job-server-*.jar /jar/flink-job-server.jar

FROM python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b AS base

ENV PYTHONUNBUFFERED=1 OMP_WAIT_POLICY=PASSIVE VLMILL_CACHE=/cache TRITON_CACHE_DIR=/cache/triton
# Triton compiles by gcc what starts its kernels on a GPU, and so does torch.compile.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 vlmill \
    && mkdir -p /data /cache \
    && chown vlmill /data /cache
# What vlmill requires, before its source: a change of the source leaves this layer in the cache.
COPY setup.py constraints.txt /src/
COPY docker/install.sh docker/requirements.py /src/docker/
RUN /src/docker/install.sh --requirements all
COPY . /src
RUN /src/docker/install.sh all
USER 1000
WORKDIR /data

# The main process runs, and the GPU's driver fits torch if the container was given one.
HEALTHCHECK --interval=1m --timeout=10s --start-period=1m \
    CMD ["python", "/src/docker/healthy.py"]

FROM base AS train
ENTRYPOINT ["train-vl"]
CMD ["--help"]

FROM base AS extract
ENTRYPOINT ["extract-rois"]
CMD ["--help"]

# With Detectron2 beside vlmill, for extract-rois run --backend detectron2. Its source is the build
# context detectron2-source; neither it nor the compiler stays. No CUDA compiler is needed: what a C4
# model computes on a GPU are operators of torch and torchvision, none of Detectron2's own.
FROM base AS detectron2
ARG MAX_JOBS=2
USER 0
# hadolint ignore=DL3008,DL3022
RUN --mount=type=bind,from=detectron2-source,target=/detectron2,readwrite \
    apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && FORCE_CUDA=0 MAX_JOBS="$MAX_JOBS" /src/docker/install_detectron2.sh /detectron2 \
    && apt-get purge --yes --auto-remove g++ \
    && rm -rf /var/lib/apt/lists/*
USER 1000
ENTRYPOINT ["extract-rois"]
CMD ["--help"]

# Answers requests over HTTP: extract-rois serve, or with another entry point train-vl serve.
FROM base AS serve
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=10s --start-period=2m \
    CMD ["python", "/src/docker/healthy.py", "http://127.0.0.1:8080/readyz"]
ENTRYPOINT ["extract-rois", "serve", "--host", "0.0.0.0"]

# A job manager or a task manager of Flink, whose Python workers are vlmill's.
FROM base AS flink
USER 0
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY --from=jar /jar/flink-job-server.jar /opt/flink-job-server.jar
USER 1000
HEALTHCHECK --interval=1m --timeout=10s --start-period=2m \
    CMD ["python", "/src/docker/healthy.py", "--flink"]
ENTRYPOINT ["python", "/src/docker/flink/flink_node.py", "--jar", "/opt/flink-job-server.jar", "--job-manager", "jobmanager"]
