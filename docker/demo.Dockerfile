# An image that runs `make demo`: docker build -f docker/demo.Dockerfile -t vlmill-demo .
#   docker run --rm -v "$PWD/demo:/vlmill/demo" vlmill-demo
# leaves the report in ./demo/report.html. Needs about 8 GB of disk, because torch as published for
# Linux brings the CUDA libraries along; nothing here needs a GPU.
FROM python:3.12-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/*

# The result belongs to the user who mounts the folder: docker run --user "$(id -u):$(id -g)" ...
RUN useradd --create-home --uid 1000 vlmill
WORKDIR /vlmill
RUN chown vlmill /vlmill
USER vlmill

# The code is copied with the dependencies: they are installed by the package's own setup.py.
COPY --chown=vlmill setup.py pyproject.toml constraints.txt Makefile README.md LICENSE ./
COPY --chown=vlmill src src
COPY --chown=vlmill schemas schemas
COPY --chown=vlmill models models
COPY --chown=vlmill extract extract
COPY --chown=vlmill pipelines pipelines
COPY --chown=vlmill train train
RUN make install

COPY --chown=vlmill examples examples
CMD ["make", "demo"]
