"""The manifests for Kubernetes: their schemas, and the environment that they give, played here."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.worker_group import free_ports

from tf_adasum.cluster import detection, tf_config

yaml = pytest.importorskip("yaml", reason="reading manifests needs PyYAML")
pytestmark = pytest.mark.one_stack

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "clusters" / "kubernetes"
KUBERNETES = "1.31"
# What a pod does before it trains, without TensorFlow.
JOIN = """
import os
from tf_adasum.cluster import detection, joining
print(joining.join(detection.find(os.environ), 60.0))
"""


def manifest(name, kind):
    (found,) = (
        each for each in yaml.safe_load_all((FOLDER / name).read_text()) if each["kind"] == kind
    )
    return found


def job_of(name):
    """The Indexed Job of a manifest."""
    if name == "indexed-job.yaml":
        return manifest(name, "Job")
    (job,) = manifest(name, "JobSet")["spec"]["replicatedJobs"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {},
        "spec": job["template"]["spec"],
    }


def variables_of(pod):
    (container,) = pod["spec"]["containers"]
    return {each["name"]: each.get("value", "from a secret") for each in container["env"]}


def schemas():
    return pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")


@pytest.mark.parametrize(
    "document",
    [
        manifest("indexed-job.yaml", "Service"),
        manifest("indexed-job.yaml", "Job"),
        job_of("jobset.yaml"),
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {},
            **manifest("tfjob.yaml", "TFJob")["spec"]["tfReplicaSpecs"]["Worker"]["template"],
        },
    ],
    ids=["service", "indexed job", "job of the jobset", "pod of the tfjob"],
)
def test_kubernetes_schemas(document):
    schemas().validate(document, KUBERNETES, strict=True)
    wrong = copy.deepcopy(document)
    wrong["spec"]["subDomain"] = "digits"
    with pytest.raises(schemas().ValidationError):
        schemas().validate(wrong, KUBERNETES, strict=True)


def test_names_of_the_pods():
    """The coordinator is the pod of index 0, as the Service, and JobSet, name it."""
    service, job = manifest("indexed-job.yaml", "Service"), job_of("indexed-job.yaml")
    name, pod = job["metadata"]["name"], job["spec"]["template"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert service["spec"]["clusterIP"] == "None"
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    host = variables_of(pod)["TF_ADASUM_COORDINATOR"].split(":")[0]
    assert host == f"{name}-0.{service['metadata']['name']}"

    jobset = manifest("jobset.yaml", "JobSet")
    (workers,) = jobset["spec"]["replicatedJobs"]
    assert workers["replicas"] == 1, "the index of a pod is its rank"
    host = variables_of(workers["template"]["spec"]["template"])["TF_ADASUM_COORDINATOR"]
    subdomain = jobset["spec"]["network"]["subdomain"]
    assert host.split(":")[0] == f"{jobset['metadata']['name']}-{workers['name']}-0-0.{subdomain}"


@pytest.mark.parametrize("name", ["indexed-job.yaml", "jobset.yaml"])
def test_the_pods_of_an_indexed_job_join(name):
    spec = job_of(name)["spec"]
    count = spec["completions"]
    told = variables_of(spec["template"])
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] == count
    assert told["TF_ADASUM_WORLD_SIZE"] == str(count)
    told["TF_ADASUM_COORDINATOR"] = f"localhost:{free_ports(1)[0]}"  # instead of the pod's name
    base = {name: value for name, value in os.environ.items() if name != tf_config.NAME}
    pods = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN],
            env={**base, **told, "JOB_COMPLETION_INDEX": str(i), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(count)
    ]
    try:
        outputs = [pod.communicate(timeout=120) for pod in pods]
    finally:
        for pod in pods:
            pod.kill()
    assert [pod.returncode for pod in pods] == [0] * count, outputs
    clusters = [out.partition("rank=")[0] for out, _ in outputs]
    assert len(set(clusters)) == 1, "all have the same addresses"
    assert [f"rank={i})" in out for i, (out, _) in enumerate(outputs)] == [True] * count, outputs


def test_a_pod_above_index_0_that_is_told_nothing_does_not_train_alone():
    with pytest.raises(ValueError, match="TF_ADASUM_COORDINATOR and TF_ADASUM_WORLD_SIZE"):
        detection.find({"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "digits-1"})


def test_what_a_tfjob_sets():
    spec = manifest("tfjob.yaml", "TFJob")["spec"]["tfReplicaSpecs"]["Worker"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["name"] == "tensorflow"
    (port,) = container["ports"]
    assert (port["name"], port["containerPort"]) == ("tfjob-port", 2222)
    hosts = [f"digits-worker-{i}.default.svc:2222" for i in range(spec["replicas"])]
    for index in range(spec["replicas"]):
        # In this form the training operator writes it.
        task = {"type": "worker", "index": index}
        config = {"cluster": {"worker": hosts}, "task": task, "environment": "cloud"}
        cluster = tf_config.parse(json.dumps(config))
        assert (cluster.addresses, cluster.rank) == (tuple(hosts), index)
