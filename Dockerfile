# An image with this project's wheel, for CPUs. Build it in the root of a clone:
#   make PYTHON=python3.11 wheels && docker build -t tf-adasum:cpu .
# examples/clusters/kubernetes/Dockerfile adds a training script to this image.
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
COPY dist/*.whl /wheels/
RUN pip install --no-cache-dir "$(ls /wheels/tf_adasum-*.whl)[cpu,ucx]" && tf-adasum-doctor
RUN useradd --create-home trainer
USER trainer
WORKDIR /home/trainer
# By default, process 1 of a container ignores SIGTERM. As process 1, tini forwards the signal.
ENTRYPOINT ["tini", "--"]
CMD ["tf-adasum-doctor"]
