"""The CPUs that workers run on."""

import json
import os

import pytest
from support.launching import run

from tf_adasum.launch import cpu_shares

SCRIPT = "print(json.dumps(sorted(os.sched_getaffinity(0))))\n"


@pytest.fixture
def two_sockets(tmp_path, monkeypatch):
    """Eight CPUs as Linux may number them: CPUs n and n + 4 are threads of one core."""
    for cpu in range(8):
        folder = tmp_path / str(cpu)
        folder.mkdir()
        (folder / "physical_package_id").write_text(f"{cpu % 2}\n")
        (folder / "core_id").write_text(f"{cpu % 4 // 2}\n")
    monkeypatch.setattr(cpu_shares, "_TOPOLOGY", f"{tmp_path}/{{}}")


@pytest.mark.parametrize(
    "workers, expected",
    [
        (1, []),
        (2, [{0, 4, 2, 6}, {1, 5, 3, 7}]),  # a socket each
        (4, [{0, 4}, {2, 6}, {1, 5}, {3, 7}]),  # a core each
        (8, [{0}, {4}, {2}, {6}, {1}, {5}, {3}, {7}]),
        (12, []),
        (16, [{0}, {0}, {4}, {4}, {2}, {2}, {6}, {6}, {1}, {1}, {5}, {5}, {3}, {3}, {7}, {7}]),
    ],
)
def test_workers_share_no_core_if_there_are_enough(two_sockets, workers, expected):
    assert cpu_shares.cpu_shares(workers, range(8)) == expected


def test_every_cpu_is_used(two_sockets):
    shares = cpu_shares.cpu_shares(3, range(8))
    assert sorted(map(len, shares)) == [2, 3, 3]
    assert set.union(*shares) == set(range(8))


@pytest.fixture
def cpus():
    """Two CPUs, or one if there are no more."""
    return set(sorted(os.sched_getaffinity(0))[:2])


def cpus_of_workers(script, cpus, *options, **environment):
    """Return the CPUs of each worker of a launcher that may run on `cpus` only."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment}
    result = run(*options, script, env=env, preexec_fn=lambda: os.sched_setaffinity(0, cpus))
    assert result.returncode == 0, result.stderr
    lines = sorted(result.stdout.splitlines())
    return [set(json.loads(line.partition("] ")[2])) for line in lines]


def test_workers_run_on_their_shares(script, cpus):
    path = script(SCRIPT)
    expected = cpu_shares.cpu_shares(4, cpus)
    assert set.union(*expected) == cpus and all(len(share) == 1 for share in expected)
    assert cpus_of_workers(path, cpus, "-n", 4) == expected
    assert cpus_of_workers(path, cpus, "-n", 4, "--bind-to", "none") == [cpus] * 4


def test_workers_with_gpus_run_on_all_cpus(script, cpus):
    found = cpus_of_workers(script(SCRIPT), cpus, "-n", 2, CUDA_VISIBLE_DEVICES="0,1")
    assert found == [cpus] * 2
