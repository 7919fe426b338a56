"""The CPUs that workers run on."""

import json
import os

import pytest
from support.launching import run

from tf_adasum.launch import cpu_shares


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


@pytest.mark.parametrize(
    ("options", "gpus", "is_bound"),
    [([], "", True), (["--bind-to", "none"], "", False), ([], "0,1,2,3", False)],
)
def test_workers_run_on_their_shares_unless_they_have_gpus(script, options, gpus, is_bound):
    cpus = set(sorted(os.sched_getaffinity(0))[:2])  # or one if there are no more
    path = script("print(json.dumps(sorted(os.sched_getaffinity(0))))\n")
    result = run(
        *("-n", 4, *options, path),
        env={**os.environ, "CUDA_VISIBLE_DEVICES": gpus},
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )
    found = [set(json.loads(line[11:])) for line in sorted(result.stdout.splitlines())]
    assert found == (cpu_shares.cpu_shares(4, cpus) if is_bound else [cpus] * 4)
