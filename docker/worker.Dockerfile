# The image that Beam's workers start from, on Dataflow or on Flink with --environment_type=DOCKER:
#   docker build -f docker/worker.Dockerfile -t REGION-docker.pkg.dev/PROJECT/vlmill/worker:1 .
#   docker push REGION-docker.pkg.dev/PROJECT/vlmill/worker:1
# The version of Beam here and where the job is started must be one: constraints.txt has it. So must
# Python's, as steps travel as pickles: start jobs with Python 3.11. Dataflow mounts a folder that only
# root may write, in which Beam keeps what a job sends along: build for it with --build-arg WORKER_UID=0.
FROM apache/beam_python3.11_sdk:2.77.0

ARG WORKER_UID=1000
# Beam's boot would make an environment of its own under /opt/apache, where only root may; what steps
# need lies in the image's.
ENV PYTHONUNBUFFERED=1 OMP_WAIT_POLICY=PASSIVE RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
COPY . /src
RUN /src/docker/install.sh all,gcp \
    && useradd --create-home --uid 1000 vlmill
USER ${WORKER_UID}
# Where boot writes the job's options.
WORKDIR /home/vlmill
HEALTHCHECK --interval=5m --timeout=1m --start-period=1m \
    CMD ["python", "/src/docker/healthy.py"]

# A detector's weights can lie in the image, under the path that --weights names:
# COPY detector.pth /models/detector.pth
