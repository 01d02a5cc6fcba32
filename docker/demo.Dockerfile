# An image that runs `make demo`: docker build -f docker/demo.Dockerfile -t vlmill-demo .
#   docker run --rm -v "$PWD/demo:/vlmill/demo" vlmill-demo
# leaves the report in ./demo/report.html. Needs about 8 GB of disk, because torch as published for
# Linux brings the CUDA libraries along; nothing here needs a GPU.
FROM python:3.12-slim-bookworm

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/*

# The result belongs to the user who mounts the folder: docker run --user "$(id -u):$(id -g)" ...
RUN useradd --create-home --uid 1000 vlmill
COPY --chown=vlmill . /vlmill
WORKDIR /vlmill
RUN chown vlmill /vlmill
USER 1000
RUN make install
HEALTHCHECK --interval=5m --timeout=1m --start-period=1m \
    CMD [".venv/bin/python", "docker/healthy.py"]
CMD ["make", "demo"]
