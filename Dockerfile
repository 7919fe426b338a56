# An image with the wheel of this project, for CPUs. In the root of a clone:
#   make PYTHON=python3.11 wheels && docker build -t tf-adasum:cpu .
# With a program to train: examples/clusters/kubernetes/Dockerfile.
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
COPY dist/*.whl /wheels/
RUN pip install --no-cache-dir "$(ls /wheels/tf_adasum-*.whl)[cpu,ucx]" && tf-adasum-doctor
RUN useradd --create-home trainer
USER trainer
WORKDIR /home/trainer
# Process 1 of a container does not end at a signal: tini passes SIGTERM on.
ENTRYPOINT ["tini", "--"]
CMD ["tf-adasum-doctor"]
