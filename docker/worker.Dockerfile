# The image that Beam's workers start from, on Dataflow or on Flink with --environment_type=DOCKER:
#   docker build -f docker/worker.Dockerfile -t REGION-docker.pkg.dev/PROJECT/vlmill/worker:1 .
#   docker push REGION-docker.pkg.dev/PROJECT/vlmill/worker:1
# The version of Beam here and where the job is started must be one: constraints.txt has it. So must
# Python's, as steps travel as pickles: start jobs with Python 3.11.
FROM apache/beam_python3.11_sdk:2.77.0

COPY . /src
RUN /src/docker/install.sh gcp \
    && useradd --create-home --uid 1000 vlmill
USER 1000
HEALTHCHECK --interval=5m --timeout=1m --start-period=1m \
    CMD ["python", "/src/docker/healthy.py"]

# A detector's weights can lie in the image, under the path that --weights names:
# COPY detector.pth /models/detector.pth
