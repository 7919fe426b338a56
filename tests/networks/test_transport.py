"""UCX on several hosts: its port is blocked, at the start and in a step, and memory is shared."""

import functools

import pytest
from support import faults, meshes
from support.pace import PACE

pytestmark = [pytest.mark.version_independent, pytest.mark.slow]

UCX_PORT = 40123
# UCX looks for interfaces in /sys, which is another one in each network namespace.
WITH_ITS_INTERFACES = ["unshare", "--mount", "sh", "-c", 'mount -t sysfs sysfs /sys && exec "$@"']
WITHIN = 30 * PACE  # seconds: 13 s, on a quiet machine


def run(network, folder, transport, *, injection_point, steps=(), timeout=None, has_tcp_alone=True):
    """Outcomes of two workers; UCX has TCP alone and listens on a known port, or chooses both."""
    variables = {"TF_ADASUM_TRANSPORT": transport}
    if has_tcp_alone:
        variables |= {"UCX_TLS": "tcp,self", "UCX_TCP_PORT_RANGE": f"{UCX_PORT}-{UCX_PORT}"}

    def popen(host, command, env, **more):
        command = [*WITH_ITS_INTERFACES, "sh", *command]
        return host.popen(command, env=env | variables, **more)

    return faults.run(
        folder,
        popens=[functools.partial(popen, host) for host in network.hosts],
        hosts=[host.address for host in network.hosts],
        awaited=range(2),
        injection_point=injection_point,
        steps=list(steps),
        timeout=timeout,
    )


@pytest.fixture
def network(make_network):
    meshes.opened()
    return make_network(2)


def test_the_port_of_ucx_is_blocked_in_a_step(network, tmp_path):
    steps = [(0, lambda processes: network.set(without_port=UCX_PORT))]
    options = {"injection_point": "step", "steps": steps, "timeout": min(12 * PACE, 30)}
    for outcome in run(network, tmp_path, "ucx", **options).values():
        assert outcome.error == "WorkerLostError", outcome.output
        assert "cannot reach worker" in outcome.message, outcome.message
        assert f":{UCX_PORT}, the port of UCX" in outcome.message
        assert "the same calls" not in outcome.message
        assert outcome.seconds < WITHIN


@pytest.mark.parametrize("transport", ["auto", "ucx"])
def test_the_port_of_ucx_is_blocked_from_the_start(network, tmp_path, transport):
    network.set(without_port=UCX_PORT)
    outcomes = run(network, tmp_path, transport, injection_point="before")
    why = f"at 10.77.0.2:{UCX_PORT}: no answer within 3 s"
    if transport == "auto":
        assert len({outcome.digest for outcome in outcomes.values()}) == 1
        assert outcomes[0].digest, outcomes[0].output
        assert "over TensorFlow's collectives (UCX over" in outcomes[0].output
        assert why in outcomes[0].output
        return
    for outcome in outcomes.values():
        assert outcome.error == "UcxUnavailableError" and why in outcome.message, outcome.output
        assert outcome.seconds < WITHIN, "of which UCX takes 3 s"


def test_memory_is_not_shared_between_network_namespaces(network, tmp_path):
    outcomes = run(network, tmp_path, "auto", injection_point="before", has_tcp_alone=False)
    assert all(outcome.digest for outcome in outcomes.values()), outcomes
    assert "share /dev/shm, but not a network namespace" in outcomes[0].output
