"""What the launcher tells its workers, and which GPUs it gives them."""

import contextlib
import json
import os
import subprocess

import pytest
from support.launching import run

from tf_adasum.cluster import detection
from tf_adasum.launch import Nodes, environments, visible_gpus, worker_environments


def test_each_worker_gets_its_task_and_the_arguments_untouched(script):
    names = "TF_CONFIG TF_ADASUM_LAUNCHER TF_ADASUM_DEVICES_PER_WORKER".split()
    path = script(f"print(json.dumps([sys.argv[1:], *map(os.environ.get, {names})]))\n")
    arguments = ["--lr", "0.1", "-n", "3", "--", "--help", "-m", "--timeout", ""]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = run("-n", 3, "--devices-per-worker", 2, path, *arguments, env=environment)
    assert result.returncode == 0, result.stderr
    clusters = []
    for index, line in enumerate(sorted(result.stdout.splitlines())):
        prefix, text = line.split("] ", 1)
        passed, config, *others = json.loads(text)
        assert (prefix, passed, others) == (f"[worker {index}", arguments, ["1", "2"])
        config = json.loads(config)
        assert config["task"] == {"type": "worker", "index": index}
        clusters.append(config["cluster"]["worker"])
    assert clusters == clusters[:1] * 3 and len(set(clusters[0])) == 3
    assert all(address.startswith("127.0.0.1:") for address in clusters[0])


@pytest.mark.parametrize("given", [None, "SECRET", "SECRET_FILE"])
def test_the_workers_have_a_secret_in_common(script, monkeypatch, given):
    path = script(
        "names = ['TF_ADASUM_SECRET', 'TF_ADASUM_SECRET_FILE']\n"
        "print(json.dumps([os.environ.get(name) for name in names]))\n"
        "sys.exit(0 if os.environ['TF_ADASUM_RESTART_COUNT'] == '1' else 3)\n"
    )
    for name in ("SECRET", "SECRET_FILE"):
        monkeypatch.delenv(f"TF_ADASUM_{name}", raising=False)
    if given:
        monkeypatch.setenv(f"TF_ADASUM_{given}", "of the user")
    result = run("-n", 2, "--max-restarts", 1, path)
    assert result.returncode == 0, result.stderr
    told = {tuple(json.loads(line[11:])) for line in result.stdout.splitlines()}
    if given:
        assert told == {("of the user", None) if given == "SECRET" else (None, "of the user")}
    else:
        assert all(len(value) == 64 and file is None for value, file in told)
        assert 1 <= len(told) <= 2, "one for each start"


def test_one_worker_joins_nobody_and_has_no_prefix(script):
    path = script(
        "from tf_adasum.cluster.detection import find\n"
        "print(os.environ.get('TF_CONFIG'), find(os.environ), sys.stdin.read())\n"
    )
    outer = {"TF_ADASUM_COORDINATOR": "a:1", "TF_ADASUM_RANK": "3", "TF_ADASUM_WORLD_SIZE": "4"}
    outer |= {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "TF_CONFIG": "{}"}
    result = run("-n", 1, path, env={**os.environ, **outer}, input="typed")
    assert (result.returncode, result.stdout) == (0, "None None typed\n")


PLACE = "TF_CONFIG TF_ADASUM_COORDINATOR TF_ADASUM_RANK TF_ADASUM_WORLD_SIZE".split()


def test_workers_of_several_machines_are_told_where_they_meet():
    inherited = dict.fromkeys(PLACE, "7") | {"SLURM_PROCID": "7"}
    for rank in (0, 1):
        nodes = Nodes(2, rank, "node0:2222")
        workers = worker_environments(["", ""], environment=inherited, nodes=nodes)
        found = [detection.find(worker) for worker in workers]
        places = [(each.coordinator, each.rank, each.num_workers) for each in found]
        assert places == [("node0:2222", 2 * rank + index, 4) for index in (0, 1)]
        assert "TF_CONFIG" not in workers[0]
    (alone,) = worker_environments([""], environment=inherited, nodes=nodes)
    assert (alone["TF_ADASUM_RANK"], alone["TF_ADASUM_WORLD_SIZE"]) == ("1", "2")


def test_what_another_launcher_says_places_no_worker_of_one_machine():
    inherited = dict.fromkeys(PLACE, "7") | {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}
    for rank, worker in enumerate(worker_environments(["a:1", "a:2"], environment=inherited)):
        found = detection.find(worker)
        assert (found.addresses, found.rank) == (("a:1", "a:2"), rank)
        assert "TF_CONFIG" in worker and "TF_ADASUM_COORDINATOR" not in worker


def test_a_module_runs_as_with_python_m(script, tmp_path):
    script("print(__name__, __spec__.name, sys.argv[1:])", "some_module.py")
    environment = {**os.environ, "PYTHONPATH": f"{os.getcwd()}:{tmp_path}"}
    result = run("-n", 1, "-m", "some_module", "-m", "x", env=environment)
    assert result.stdout == "__main__ some_module ['-m', 'x']\n", result.stderr


# GPUs


@pytest.mark.parametrize(
    ("num_gpus", "num_workers", "per_worker", "expected"),
    [
        (4, 2, 2, ["0,1", "2,3"]),
        (4, 2, 1, ["0", "1"]),
        (5, 2, None, ["0,1", "2,3"]),
        (4, 1, 3, ["0,1,2"]),
        (4, 1, None, ["0,1,2,3"]),  # nothing to divide
        (0, 2, 2, ["", ""]),  # CPUs
        *((*too_few, None) for too_few in ((1, 2, None), (3, 2, 2), (1, 1, 2))),
    ],
)
def test_gpus_are_divided_between_the_workers(num_gpus, num_workers, per_worker, expected):
    addresses = [f"a:{index}" for index in range(num_workers)]
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(num_gpus)))}
    raises = pytest.raises(ValueError, match=rf"Received: {num_gpus} visible GPUs")
    with contextlib.nullcontext() if expected else raises:
        workers = worker_environments(addresses, per_worker, environment=visible)
        assert [worker["CUDA_VISIBLE_DEVICES"] for worker in workers] == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", []), ("-1", []), ("NoDevFiles", []), ("2, 0", ["2", "0"]), ("3,-1,4", ["3"])],
)
def test_cuda_visible_devices_is_read_as_cuda_does(value, expected):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}) == expected


def test_gpus_are_counted_by_nvidia_smi(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n[ $1 = -L ] && printf 'GPU 0: A (UUID: x)\\n  MIG\\nGPU 1: A (UUID: y)\\n'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    environments._count_gpus.cache_clear()
    assert visible_gpus({}) == ["0", "1"]
    environments._count_gpus.cache_clear()
    program.write_text("#!/bin/sh\necho 'no driver' >&2\nexit 9\n")
    assert visible_gpus({}) == []
    environments._count_gpus.cache_clear()


def test_a_driver_that_does_not_answer_is_an_error(monkeypatch):
    """Otherwise the workers would train on CPUs."""

    def hang(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    environments._count_gpus.cache_clear()
    monkeypatch.setattr(environments.shutil, "which", lambda program: program)
    monkeypatch.setattr(environments.subprocess, "run", hang)
    with pytest.raises(ValueError, match="nvidia-smi does not list the GPUs"):
        visible_gpus({})
