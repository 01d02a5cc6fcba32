# The image that Beam's workers start from, on Dataflow or on Flink with --environment_type=DOCKER:
#   docker build -f docker/worker.Dockerfile -t REGION-docker.pkg.dev/PROJECT/vlmill/worker:1 .
#   docker push REGION-docker.pkg.dev/PROJECT/vlmill/worker:1
# The version of Beam here and where the job is started must be one: constraints.txt has it. So must
# Python's, as steps travel as pickles: start jobs with Python 3.11.
FROM apache/beam_python3.11_sdk:2.77.0

WORKDIR /vlmill
COPY setup.py pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY schemas schemas
COPY models models
COPY extract extract
COPY pipelines pipelines
COPY train train
RUN pip install --no-cache-dir --constraint constraints.txt '.[gcp]'

# A detector's weights can lie in the image, under the path that --weights names:
# COPY detector.pth /models/detector.pth
