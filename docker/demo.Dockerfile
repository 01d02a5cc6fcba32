# An image that runs `make demo`: docker build -f docker/demo.Dockerfile -t vlmill-demo .
#   docker run --rm -v "$PWD/demo:/vlmill/demo" vlmill-demo
# leaves the report in ./demo/report.html. Needs about 8 GB of disk, because torch as published for
# Linux brings the CUDA libraries along; nothing here needs a GPU.
FROM python:3.12-slim-bookworm@sha256:0f5b26b9518d002b6173fd61daad821fa340635ebfec5bba471013f9ca114579

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/*

# The result belongs to the user who mounts the folder: docker run --user "$(id -u):$(id -g)" ...
RUN useradd --create-home --uid 1000 vlmill
WORKDIR /vlmill
RUN chown vlmill /vlmill
USER 1000
# What vlmill requires, before its source: a change of the source leaves this layer in the cache.
COPY --chown=vlmill setup.py constraints.txt ./
COPY --chown=vlmill docker/install.sh docker/requirements.py docker/
RUN python -m venv .venv \
    && PYTHON=.venv/bin/python docker/install.sh --requirements all,demo,test
COPY --chown=vlmill . .
RUN make install
HEALTHCHECK --interval=1m --timeout=10s --start-period=1m \
    CMD [".venv/bin/python", "docker/healthy.py"]
CMD ["make", "demo"]
