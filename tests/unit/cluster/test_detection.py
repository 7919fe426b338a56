"""What is found in the environments that launchers and schedulers give to their processes."""

import pytest

from tf_adasum.cluster.detection import find
from tf_adasum.cluster.invitation import Invitation

pytestmark = pytest.mark.one_stack

OWN = {"TF_ADASUM_COORDINATOR": "h:1", "TF_ADASUM_RANK": "1", "TF_ADASUM_WORLD_SIZE": "4"}
KERAS = {
    "KERAS_DISTRIBUTION_JOB_ADDRESSES": "10.0.0.1:1234,10.0.0.2:2345",
    "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
    "KERAS_DISTRIBUTION_PROCESS_ID": "1",
}
TORCHRUN = {
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
}
# torchrun listens at MASTER_PORT itself, and says so.
WITH_AGENT_STORE = {
    **TORCHRUN,
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
OPEN_MPI_4 = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_MCA_ess_base_jobid": "1531576321",
    "PMIX_NAMESPACE": "1531576321",
    "PMIX_RANK": "3",
}
OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "PMIX_NAMESPACE": "prterun-node-7-41@1",
    "PMIX_HOSTNAME": "node-8",
    "PMIX_RANK": "0",
}
# MPICH 5; Intel MPI adds much, and a name of the job.
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "9", "MPI_LOCALNRANKS": "2"}
# What slurmctld gives to a batch script of `sbatch -N 2 -n 4`, and what `srun` in it adds.
BATCH = {
    "SLURM_JOB_ID": "4100",
    "SLURM_JOBID": "4100",
    "SLURM_JOB_NODELIST": "n[2,10]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NODELIST": "n[2,10]",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_GTIDS": "0",
    "SLURMD_NODENAME": "n2",
}
STEP = {
    **BATCH,
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "3",
    "SLURM_STEPID": "3",
    "SLURM_STEP_NODELIST": "n[2,10]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.2",
    "SLURMD_NODENAME": "n10",
}
LONE_STEP = {**STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"}
INDEXED_JOB = {"JOB_COMPLETION_INDEX": "2", "HOSTNAME": "train-2"}
STEP_PORT = 61440 + (4100 + 3 * 1009) % 4096  # above the ephemeral ports, from job and step


def without(environment, *names):
    return {name: value for name, value in environment.items() if name not in names}


@pytest.mark.parametrize(
    ("environment", "coordinator", "rank", "num_workers", "source"),
    [
        (OWN, "h:1", 1, 4, "TF_ADASUM_COORDINATOR"),
        ({**OWN, **KERAS, **TORCHRUN, **OPEN_MPI_4, **STEP}, "h:1", 1, 4, "TF_ADASUM_COORDINATOR"),
        ({**OWN, "TF_ADASUM_COORDINATOR": "[fd00::1]:7"}, "[fd00::1]:7", 1, 4, "TF_ADASUM"),
        (KERAS, "10.0.0.1:1234", 1, 2, "Keras"),
        ({**KERAS, **TORCHRUN, **STEP}, "10.0.0.1:1234", 1, 2, "Keras"),
        (
            {**KERAS, "KERAS_DISTRIBUTION_JOB_ADDRESSES": "c:5"},
            "c:5",
            1,
            2,
            "Keras",
        ),
        (without(KERAS, "KERAS_DISTRIBUTION_NUM_PROCESSES"), "10.0.0.1:1234", 1, 2, "Keras"),
        (TORCHRUN, "node-a:29500", 5, 8, "torchrun (MASTER_ADDR)"),
        ({**TORCHRUN, "MASTER_ADDR": "fd00::2"}, "[fd00::2]:29500", 5, 8, "torchrun"),
        # srun starts torchrun once on each of two nodes
        ({**STEP, **TORCHRUN}, "node-a:29500", 5, 8, "torchrun"),
        ({**OPEN_MPI_4, "OMPI_COMM_WORLD_SIZE": "9", **TORCHRUN}, "node-a:29500", 5, 8, "torchrun"),
        # a batch script exports an address, srun gives the ranks
        ({**STEP, "MASTER_ADDR": "b", "MASTER_PORT": "9"}, "b:9", 2, 4, "Slurm (SLURM_PROCID)"),
        (
            {**STEP, "MASTER_ADDR": "b", "MASTER_PORT": "9", "WORLD_SIZE": "4"},
            "b:9",
            2,
            4,
            "SLURM_PROCID",
        ),
        ({**STEP, "TF_ADASUM_COORDINATOR": "b:9"}, "b:9", 2, 4, "Slurm (SLURM_PROCID)"),
        ({**OPEN_MPI_4, "TF_ADASUM_COORDINATOR": "b:9"}, "b:9", 3, 4, "Open MPI"),
        # mpirun in a batch script; and in a step, whose tasks are its daemons
        ({**BATCH, **OPEN_MPI_5}, "n2:", 0, 2, "Open MPI (OMPI_COMM_WORLD_RANK)"),
        ({**STEP, **HYDRA}, "127.0.0.1:", 1, 2, "PMI (PMI_RANK)"),
        (OPEN_MPI_4, "10.96.0.1:", 3, 4, "Open MPI (OMPI_COMM_WORLD_RANK)"),
        (
            {**OPEN_MPI_4, "OMPI_MCA_orte_hnp_uri": "7.0;tcp6://[fd00::3]:34911"},
            "[fd00::3]:",
            3,
            4,
            "Open MPI",
        ),
        (OPEN_MPI_5, "node-7:", 0, 2, "Open MPI"),
        ({**OPEN_MPI_5, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "127.0.0.1:", 0, 2, "Open MPI"),
        (HYDRA, "127.0.0.1:", 1, 2, "PMI (PMI_RANK)"),
        ({**without(HYDRA, "MPI_LOCALNRANKS"), **BATCH}, "n2:", 1, 2, "PMI (PMI_RANK)"),
        # srun --mpi=pmi2
        ({**STEP, "PMI_RANK": "2", "PMI_SIZE": "4"}, f"n2:{STEP_PORT}", 2, 4, "Slurm"),
        (STEP, f"n2:{STEP_PORT}", 2, 4, "Slurm (SLURM_PROCID)"),
        (
            {**STEP, "SLURM_STEP_NODELIST": "gpu[010-012,7]-ib,login1"},
            f"gpu010-ib:{STEP_PORT}",
            2,
            4,
            "Slurm",
        ),
        ({**STEP, "SLURM_STEP_NUM_NODES": "1"}, f"127.0.0.1:{STEP_PORT}", 2, 4, "Slurm"),
        (
            {
                **INDEXED_JOB,
                "TF_ADASUM_COORDINATOR": "train-0.train:2222",
                "TF_ADASUM_WORLD_SIZE": "4",
            },
            "train-0.train:2222",
            2,
            4,
            "Kubernetes Indexed Job (JOB_COMPLETION_INDEX)",
        ),
        # PyTorchJob of Kubeflow, and its Indexed Jobs with the variables of torchrun
        ({**INDEXED_JOB, **TORCHRUN}, "node-a:29500", 5, 8, "torchrun"),
        ({"TF_CONFIG": "", **STEP}, f"n2:{STEP_PORT}", 2, 4, "Slurm"),
    ],
)
def test_what_is_found(environment, coordinator, rank, num_workers, source):
    found = find(environment)
    if coordinator.endswith(":"):  # a port from the job's name: outside of the ephemeral range
        host, _, port = found.coordinator.rpartition(":")
        assert host + ":" == coordinator
        assert 61440 <= int(port) < 65536
    else:
        assert found.coordinator == coordinator
    assert (found.rank, found.num_workers) == (rank, num_workers)
    assert source in found.source


@pytest.mark.parametrize(
    "environment",
    [
        {},
        dict.fromkeys((*OWN, *KERAS, *TORCHRUN, *STEP), ""),
        {"TF_CONFIG": "{}", **STEP},
        {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:2"]}}', **OWN},
        # each for itself, whoever has started it
        {"TF_ADASUM_WORLD_SIZE": "1", **STEP, **OPEN_MPI_4, **TORCHRUN, **INDEXED_JOB},
        {**OWN, "TF_ADASUM_RANK": "0", "TF_ADASUM_WORLD_SIZE": "1", **STEP},
        # a notebook service, torchrun with one process, Ray
        {"RANK": "0", "WORLD_SIZE": "1"},
        {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"},
        {**WITH_AGENT_STORE, "RANK": "0", "WORLD_SIZE": "1"},
        {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "1"},
        {**KERAS, "KERAS_DISTRIBUTION_JOB_ADDRESSES": "a:1"}
        | {"KERAS_DISTRIBUTION_NUM_PROCESSES": "1", "KERAS_DISTRIBUTION_PROCESS_ID": "0"},
        # left over, and names that belong to nobody
        {"MASTER_ADDR": "a", "MASTER_PORT": "1"},
        {"RANK": "colonel"},
        {"WORLD_SIZE": "big"},
        # a batch script that starts its program without srun, the shell of salloc with its own
        # step and without, `srun --pty bash`, a notebook in a job, srun -n 1
        BATCH,
        {**BATCH, "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        without(BATCH, "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS"),
        {**LONE_STEP, "SLURM_STEP_ID": "4294967290"},
        LONE_STEP,
        {**LONE_STEP, "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        # mpirun -np 1, also in each task of a step
        {**OPEN_MPI_4, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {**STEP, **OPEN_MPI_4, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        # an Indexed Job with one completion
        {"JOB_COMPLETION_INDEX": "0"},
    ],
)
def test_what_trains_alone(environment):
    assert find(environment) is None


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        # a part is missing
        (without(OWN, "TF_ADASUM_COORDINATOR"), "set TF_ADASUM_COORDINATOR[.] .*RANK='1'"),
        (without(OWN, "TF_ADASUM_RANK"), "set TF_ADASUM_RANK[.] If"),
        (
            {"TF_ADASUM_RANK": "1"},
            "set TF_ADASUM_COORDINATOR and TF_ADASUM_WORLD_SIZE[.] If .* TF_ADASUM_WORLD_SIZE=1[.]",
        ),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "Open MPI .* set OMPI_COMM_WORLD_SIZE[.] If"),
        ({"PMI_RANK": "0"}, "PMI .* set PMI_SIZE[.] If"),
        (without(KERAS, "KERAS_DISTRIBUTION_PROCESS_ID"), "set KERAS_DISTRIBUTION_PROCESS_ID"),
        (without(TORCHRUN, "MASTER_PORT"), "set MASTER_PORT[.] .*MASTER_ADDR='node-a'"),
        (without(TORCHRUN, "MASTER_ADDR"), "set MASTER_ADDR[.]"),
        (without(TORCHRUN, "RANK"), "set RANK[.] .*WORLD_SIZE='8'"),
        (without(TORCHRUN, "WORLD_SIZE"), "set WORLD_SIZE[.] .*RANK='5'"),
        # plainly started together, with nothing to join
        (
            without(OPEN_MPI_4, "OMPI_MCA_orte_hnp_uri"),
            r"Open MPI .* set TF_ADASUM_COORDINATOR[.] If .* set TF_ADASUM_WORLD_SIZE=1[.] .*"
            "OMPI_COMM_WORLD_RANK='3', OMPI_COMM_WORLD_SIZE='4'",
        ),
        (without(HYDRA, "MPI_LOCALNRANKS"), "PMI .* set TF_ADASUM_COORDINATOR[.] .*PMI_SIZE='2'"),
        (without(STEP, "SLURM_STEP_NODELIST"), "Slurm .* set TF_ADASUM_COORDINATOR[.] "),
        (without(STEP, "SLURM_JOB_ID"), "Slurm .* set TF_ADASUM_COORDINATOR[.] "),
        ({"SLURM_PROCID": "2"}, "SLURM_STEP_NUM_TASKS[.] .*SLURM_PROCID='2'"),
        (INDEXED_JOB, "set TF_ADASUM_COORDINATOR and TF_ADASUM_WORLD_SIZE.*INDEX='2'"),
        # each variable once
        (
            {**INDEXED_JOB, "TF_ADASUM_WORLD_SIZE": "4"},
            "Received: TF_ADASUM_WORLD_SIZE='4', JOB_COMPLETION_INDEX='2' .*TFA-202.$",
        ),
        # no numbers, no addresses
        ({**OWN, "TF_ADASUM_RANK": "one"}, "TF_ADASUM_RANK must be .*TF_ADASUM_RANK='one'"),
        ({**OWN, "TF_ADASUM_RANK": "-1"}, "TF_ADASUM_RANK must be .*='-1'"),
        ({**OWN, "TF_ADASUM_RANK": "٣"}, "TF_ADASUM_RANK must be"),
        ({**OWN, "TF_ADASUM_WORLD_SIZE": "4.0"}, "TF_ADASUM_WORLD_SIZE='4.0'"),
        ({**OWN, "TF_ADASUM_COORDINATOR": "h"}, "TF_ADASUM_COORDINATOR='h': .*host:port"),
        ({**OWN, "TF_ADASUM_COORDINATOR": "fd00::1"}, "TF_ADASUM_COORDINATOR='fd00::1'"),
        ({**TORCHRUN, "MASTER_PORT": "none"}, "MASTER_ADDR='node-a', MASTER_PORT='none'"),
        ({**TORCHRUN, "RANK": "first"}, "RANK='first'"),
        ({**KERAS, "KERAS_DISTRIBUTION_JOB_ADDRESSES": "a:1,b"}, "JOB_ADDRESSES='a:1,b'"),
        ({**STEP, "SLURM_PROCID": "x"}, "SLURM_PROCID='x'"),
        ({**STEP, "SLURM_JOB_ID": "x"}, "SLURM_JOB_ID='x'"),
        ({**STEP, "SLURM_STEP_NODELIST": "n[2-"}, r"SLURM_STEP_NODELIST: .*'n\[2-'"),
        ({**INDEXED_JOB, "JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX='x'"),
        # outside
        ({**OWN, "TF_ADASUM_RANK": "4"}, "TF_ADASUM_RANK must be less than TF_ADASUM_WORLD_SIZE"),
        ({**OWN, "TF_ADASUM_WORLD_SIZE": "0"}, "TF_ADASUM_WORLD_SIZE must be at least 1"),
        ({**OWN, "TF_ADASUM_WORLD_SIZE": "1"}, "TF_ADASUM_RANK must be less"),
        (
            {**OWN, "TF_ADASUM_WORLD_SIZE": "999999999"},
            "TF_ADASUM_WORLD_SIZE must be at most 65536.*='999999999'",
        ),
        ({**TORCHRUN, "RANK": "8"}, "RANK must be less than WORLD_SIZE.*RANK='8'"),
        ({**OPEN_MPI_4, "OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK must be less"),
        (
            {
                "JOB_COMPLETION_INDEX": "4",
                "TF_ADASUM_WORLD_SIZE": "4",
                "TF_ADASUM_COORDINATOR": "a:1",
            },
            "JOB_COMPLETION_INDEX must be less than TF_ADASUM_WORLD_SIZE.*='4'",
        ),
        # contradictions
        (
            {**STEP, "TF_ADASUM_WORLD_SIZE": "8"},
            "TF_ADASUM_WORLD_SIZE and SLURM_STEP_NUM_TASKS contradict.*='8'.*='4'",
        ),
        ({**STEP, "TF_ADASUM_RANK": "1"}, "TF_ADASUM_RANK and SLURM_PROCID contradict"),
        (
            {**STEP, **TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"},
            "contradict each other.*set TF_ADASUM_WORLD_SIZE=1 .*WORLD_SIZE='1'.*NUM_TASKS='4'",
        ),
        ({**KERAS, "KERAS_DISTRIBUTION_NUM_PROCESSES": "3"}, "addresses as .*NUM_PROCESSES='3'"),
    ],
)
def test_what_is_wrong_is_named(environment, message):
    with pytest.raises(ValueError, match=message):
        find(environment)


def test_where_torchrun_listens_itself_another_port_is_taken():
    first, same = find(WITH_AGENT_STORE), find({**WITH_AGENT_STORE, "RANK": "0"})
    again = find({**WITH_AGENT_STORE, "TORCHELASTIC_RESTART_COUNT": "1"})
    assert first.coordinator.startswith("node-a:6")
    assert same.coordinator == first.coordinator != again.coordinator


def test_jobs_of_intel_mpi_have_ports_of_their_own():
    jobs = [{**HYDRA, "I_MPI_HYDRA_UUID": f"fe420000-e68f-cb49-e260-{i}"} for i in range(9)]
    assert len({find(job).coordinator for job in jobs}) == 9
    assert find(jobs[0]).coordinator == find({**jobs[0], "PMI_RANK": "0"}).coordinator


def test_all_tasks_are_told_the_same():
    told = {find({**STEP, "SLURM_PROCID": str(rank)}).coordinator for rank in range(4)}
    assert len(told) == 1
    next_job = find({**STEP, "SLURM_JOB_ID": "4101"}).coordinator
    next_step = find({**STEP, "SLURM_STEP_ID": "4"}).coordinator
    assert len(told | {next_job, next_step}) == 3


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        (OWN, ""),
        ({**STEP, **OWN}, ""),  # what is started by hand in two steps is one job
        ({**STEP, "TF_ADASUM_COORDINATOR": "b:9"}, "4100.3"),
        (STEP, "4100.3"),
        ({**STEP, "PMI_RANK": "2", "PMI_SIZE": "4"}, "4100.3"),
        (KERAS, ""),
        (TORCHRUN, ""),
        (WITH_AGENT_STORE, ""),
        ({**STEP, **WITH_AGENT_STORE, "TORCHELASTIC_RUN_ID": "a7"}, "a7"),
        ({**STEP, "MASTER_ADDR": "b", "MASTER_PORT": "9"}, "4100.3"),
        (OPEN_MPI_4, "1531576321"),
        (OPEN_MPI_5, "prterun-node-7-41@1"),
        (HYDRA, ""),
        ({**HYDRA, "I_MPI_HYDRA_UUID": "fe42"}, "fe42"),
    ],
)
def test_the_name_of_the_job(environment, job):
    assert find(environment).job == job


def test_an_invitation():
    assert find(OWN) == Invitation("h:1", 1, 4, "the environment (TF_ADASUM_COORDINATOR)")
