"""What the launcher tells its workers, and which GPUs it gives them."""

import json
import os

import pytest
from support.launching import run

from tf_adasum.cluster import detection
from tf_adasum.launch import Nodes, environments, visible_gpus, worker_environments


def test_each_worker_gets_its_task_and_the_arguments_untouched(script):
    path = script(
        "names = 'TF_CONFIG TF_ADASUM_LAUNCHER TF_ADASUM_DEVICES_PER_WORKER'.split()\n"
        "print(json.dumps([sys.argv[1:], *(os.environ.get(name) for name in names)]))\n"
    )
    arguments = ["--lr", "0.1", "-n", "3", "--", "--help", "-m", "--timeout", ""]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = run("-n", 3, "--devices-per-worker", 2, path, *arguments, env=environment)
    assert result.returncode == 0, result.stderr
    seen = {}
    for line in result.stdout.splitlines():
        prefix, _, text = line.partition("] ")
        seen[prefix] = json.loads(text)
    assert sorted(seen) == ["[worker 0", "[worker 1", "[worker 2"]
    clusters = set()
    for index, (passed, config, launched, devices) in enumerate(seen[key] for key in sorted(seen)):
        assert passed == arguments
        assert (launched, devices) == ("1", "2")
        config = json.loads(config)
        assert config["task"] == {"type": "worker", "index": index}
        clusters.add(tuple(config["cluster"]["worker"]))
    (addresses,) = clusters
    assert len(set(addresses)) == 3
    assert all(address.startswith("127.0.0.1:") for address in addresses)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("TF_ADASUM_SECRET", None),
        ("TF_ADASUM_SECRET", "of the user"),
        ("TF_ADASUM_SECRET_FILE", "of/the/user"),
    ],
)
def test_the_workers_have_a_secret_in_common(script, name, given):
    names = ["TF_ADASUM_SECRET", "TF_ADASUM_SECRET_FILE"]
    path = script(
        f"print(json.dumps([os.environ.get(name) for name in {names}]))\n"
        "sys.exit(0 if os.environ['TF_ADASUM_RESTART_COUNT'] == '1' else 3)\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in names}
    if given:
        environment[name] = given
    result = run("-n", 2, "--max-restarts", 1, path, env=environment)
    assert result.returncode == 0, result.stderr
    told = [json.loads(line.partition("] ")[2]) for line in result.stdout.splitlines()]
    if given:
        assert all(each == [given if name == other else None for other in names] for each in told)
        return
    assert all(len(value) == 64 and file is None for value, file in told)
    assert 1 <= len({value for value, _ in told}) <= 2, "one for each start"


def test_one_worker_has_no_cluster_and_no_prefix(script):
    path = script("print(os.environ.get('TF_CONFIG'), sys.stdin.read())")
    environment = {**os.environ, "TF_CONFIG": '{"cluster": {}}'}
    result = run("-n", 1, path, env=environment, input="typed")
    assert (result.returncode, result.stdout) == (0, "None typed\n")


def test_one_worker_joins_nobody(script):
    path = script(
        "from tf_adasum.cluster.detection import find\n"
        "print(find(os.environ), os.environ['OMPI_COMM_WORLD_RANK'])"
    )
    outer = {"TF_ADASUM_COORDINATOR": "a:1", "TF_ADASUM_RANK": "3", "TF_ADASUM_WORLD_SIZE": "4"}
    outer |= {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}
    result = run("-n", 1, path, env={**os.environ, **outer})
    assert (result.returncode, result.stdout) == (0, "None 0\n")


PLACE = "TF_CONFIG TF_ADASUM_COORDINATOR TF_ADASUM_RANK TF_ADASUM_WORLD_SIZE".split()


def test_workers_of_several_machines_are_told_where_they_meet():
    inherited = dict.fromkeys(PLACE, "7") | {"SLURM_PROCID": "7"}
    nodes = [Nodes(2, rank, "node0:2222") for rank in (0, 1)]
    told = [
        [worker.get(name) for name in PLACE]
        for node in nodes
        for worker in worker_environments(["", ""], environment=inherited, nodes=node)
    ]
    assert told == [[None, "node0:2222", str(rank), "4"] for rank in range(4)]
    found = [
        detection.find(worker)
        for worker in worker_environments(["", ""], environment=inherited, nodes=nodes[1])
    ]
    assert [(each.coordinator, each.rank, each.num_workers) for each in found] == [
        ("node0:2222", 2, 4),
        ("node0:2222", 3, 4),
    ]
    (alone,) = worker_environments([""], environment=inherited, nodes=nodes[1])
    assert (alone["TF_ADASUM_RANK"], alone["TF_ADASUM_WORLD_SIZE"]) == ("1", "2")


@pytest.mark.parametrize("workers", [1, 2])
def test_what_another_launcher_says_places_no_worker_of_one_machine(workers):
    inherited = dict.fromkeys(PLACE, "7") | {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}
    addresses = [f"a:{index + 1}" for index in range(workers)]
    for worker in worker_environments(addresses, environment=inherited):
        assert detection.find(worker) is None
        assert ("TF_CONFIG" in worker) == (workers > 1)
        assert "TF_ADASUM_COORDINATOR" not in worker


def test_a_module_runs_as_with_python_m(script, tmp_path):
    script("print(__name__, __spec__.name, sys.argv[1:])", "some_module.py")
    result = run("-n", 1, "-m", "some_module", "-m", "x", env={**os.environ, "PYTHONPATH": "."})
    assert result.returncode == 1 and "some_module" in result.stderr  # not found from here
    environment = {**os.environ, "PYTHONPATH": f"{os.getcwd()}:{tmp_path}"}
    result = run("-n", 1, "-m", "some_module", "-m", "x", env=environment)
    assert result.stdout == "__main__ some_module ['-m', 'x']\n", result.stderr


def test_log_level_is_a_default_and_output_is_unbuffered():
    (given,) = worker_environments(["a:1"], environment={"TF_CPP_MIN_LOG_LEVEL": "0"})
    (default,) = worker_environments(["a:1"], environment={})
    assert given["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert default["TF_CPP_MIN_LOG_LEVEL"] == "2"
    assert default["PYTHONUNBUFFERED"] == "1"
    assert "TF_ADASUM_DEVICES_PER_WORKER" not in default


# GPUs


@pytest.fixture
def shares(monkeypatch):
    """Return what each worker sees of a machine's GPUs."""

    def divide(num_gpus, num_workers, per_worker):
        monkeypatch.setattr(environments, "_count_gpus", lambda: num_gpus)
        addresses = [f"a:{index}" for index in range(num_workers)]
        workers = worker_environments(addresses, per_worker, environment={})
        return [worker.get("CUDA_VISIBLE_DEVICES") for worker in workers]

    return divide


@pytest.mark.parametrize(
    ("num_gpus", "num_workers", "per_worker", "expected"),
    [
        (4, 2, 2, ["0,1", "2,3"]),
        (4, 2, 1, ["0", "1"]),
        (4, 2, None, ["0,1", "2,3"]),
        (5, 2, None, ["0,1", "2,3"]),
        (4, 4, None, ["0", "1", "2", "3"]),
        (4, 1, 3, ["0,1,2"]),
        (4, 1, None, [None]),  # nothing to divide
        (0, 2, 2, [None, None]),  # CPUs
        (0, 2, None, [None, None]),
    ],
)
def test_gpus_are_divided_between_the_workers(shares, num_gpus, num_workers, per_worker, expected):
    assert shares(num_gpus, num_workers, per_worker) == expected


@pytest.mark.parametrize(
    ("num_gpus", "num_workers", "per_worker"), [(1, 2, None), (3, 2, 2), (3, 4, None), (1, 1, 2)]
)
def test_too_few_gpus_are_an_error(shares, num_gpus, num_workers, per_worker):
    with pytest.raises(ValueError, match=rf"Received: {num_gpus} visible GPUs"):
        shares(num_gpus, num_workers, per_worker)


def test_too_few_gpus_start_nothing_on_the_command_line(script):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "7"}
    result = run("-n", 2, script("print('started')"), env=environment)
    assert (result.returncode, result.stdout) == (2, "")
    assert "1 visible GPUs (7)" in result.stderr


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
    assert visible_gpus({}) == ["0", "1"]
    program.write_text("#!/bin/sh\necho 'no driver' >&2\nexit 9\n")
    assert visible_gpus({}) == []
