"""The manifests for Kubernetes: the environment that they set."""

import json
from pathlib import Path

import pytest

from tf_adasum.cluster import detection, tf_config
from tf_adasum.launch.command_line import build_parser

yaml = pytest.importorskip("yaml", reason="reading manifests needs PyYAML")
pytestmark = pytest.mark.version_independent

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "clusters" / "kubernetes"


def manifest(name, kind):
    documents = yaml.safe_load_all((FOLDER / name).read_text())
    (found,) = (each for each in documents if each["kind"] == kind)
    return found


def job_of(name):
    """The Indexed Job of a manifest."""
    if name != "jobset.yaml":
        return manifest(name, "Job")
    (job,) = manifest(name, "JobSet")["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": spec}


WORKERS_OF_TFJOB = manifest("tfjob.yaml", "TFJob")["spec"]["tfReplicaSpecs"]["Worker"]


def variables_of(pod):
    (container,) = pod["spec"]["containers"]
    return {each["name"]: each.get("value", "from a secret") for each in container["env"]}


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
def test_the_pods_of_an_indexed_job_are_the_workers_of_one_cluster(name):
    """How such workers join is tested in tests/unit/cluster/test_joining.py."""
    spec = job_of(name)["spec"]
    count = spec["completions"]
    told = variables_of(spec["template"])
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] == count
    for index in range(count):
        found = detection.find({**told, "JOB_COMPLETION_INDEX": str(index)})
        expected = (told["TF_ADASUM_COORDINATOR"], index, count)
        assert (found.coordinator, found.rank, found.num_workers) == expected


def test_the_pods_of_an_elastic_job_run_the_launcher():
    """How launchers that join and leave behave is tested in tests/unit/launch/test_elastic.py."""
    for kind in ("Service", "Job"):
        own, other = (manifest(name, kind) for name in ("elastic-job.yaml", "indexed-job.yaml"))
        assert own["metadata"] == other["metadata"], "the pod of index 0 has the same name"
    assert manifest("elastic-job.yaml", "Service") == manifest("indexed-job.yaml", "Service")
    spec = job_of("elastic-job.yaml")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"][-1] == "tf-adasum-launch"
    options = build_parser().parse_args(container["args"])
    assert options.nnodes == f"2:{spec['completions']}" and spec["completionMode"] == "Indexed"
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    expected = variables_of(job_of("indexed-job.yaml")["spec"]["template"])
    assert options.coordinator == expected["TF_ADASUM_COORDINATOR"]


def test_what_a_tfjob_sets():
    (container,) = WORKERS_OF_TFJOB["template"]["spec"]["containers"]
    assert container["name"] == "tensorflow"
    (port,) = container["ports"]
    assert (port["name"], port["containerPort"]) == ("tfjob-port", 2222)
    count = WORKERS_OF_TFJOB["replicas"]
    hosts = [f"digits-worker-{i}.default.svc:2222" for i in range(count)]
    for index in range(count):
        # In this form the training operator writes it.
        task = {"type": "worker", "index": index}
        config = {"cluster": {"worker": hosts}, "task": task, "environment": "cloud"}
        cluster = tf_config.parse(json.dumps(config))
        assert (cluster.addresses, cluster.rank) == (tuple(hosts), index)
