"""What is found in the environments that launchers and schedulers give to their processes."""

import pytest

from tf_adasum.cluster.detection import find, first_node


def env(*parts):
    """Merge dicts of variables and texts such as "RANK=1 WORLD_SIZE=2"; the last value counts."""
    merged = {}
    for part in parts:
        merged |= (
            part if isinstance(part, dict) else dict(each.split("=", 1) for each in part.split())
        )
    return merged


def without(environment, *names):
    return {name: value for name, value in environment.items() if name not in names}


OWN = env("TF_ADASUM_COORDINATOR=h:1 TF_ADASUM_RANK=1 TF_ADASUM_WORLD_SIZE=4")
KERAS = env(
    "KERAS_DISTRIBUTION_JOB_ADDRESSES=10.0.0.1:1234,10.0.0.2:2345",
    "KERAS_DISTRIBUTION_NUM_PROCESSES=2 KERAS_DISTRIBUTION_PROCESS_ID=1",
)
TORCHRUN = env(
    "MASTER_ADDR=node-a MASTER_PORT=29500 RANK=5 WORLD_SIZE=8",
    "LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1",
)
# torchrun itself listens at MASTER_PORT, and sets TORCHELASTIC_USE_AGENT_STORE.
WITH_AGENT_STORE = env(
    TORCHRUN,
    "TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0",
)
OPEN_MPI_4 = env(
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4",
    "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
    "OMPI_MCA_orte_hnp_uri=1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_MCA_ess_base_jobid=1531576321 PMIX_NAMESPACE=1531576321 PMIX_RANK=3",
)
OPEN_MPI_5 = env(
    "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2",
    "OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1",
    "PMIX_NAMESPACE=prterun-node-7-41@1 PMIX_HOSTNAME=node-8 PMIX_RANK=0",
)
# MPICH 5; Intel MPI sets more variables, and a name of the job.
HYDRA = env("PMI_RANK=1 PMI_SIZE=2 PMI_FD=9 MPI_LOCALNRANKS=2")
# What slurmctld gives to a batch script of `sbatch -N 2 -n 4`, and what `srun` in it adds.
BATCH = env(
    "SLURM_JOB_ID=4100 SLURM_JOBID=4100 SLURM_JOB_NODELIST=n[2,10] SLURM_NODELIST=n[2,10]",
    "SLURM_JOB_NUM_NODES=2 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_TASKS_PER_NODE=2(x2)",
    "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0 SLURMD_NODENAME=n2",
)
STEP = env(
    BATCH,
    "SLURM_PROCID=2 SLURM_NODEID=1 SLURM_STEP_ID=3 SLURM_STEPID=3 SLURM_STEP_NODELIST=n[2,10]",
    "SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2)",
    "SLURM_LAUNCH_NODE_IPADDR=10.0.0.2 SLURMD_NODENAME=n10",
)
LONE_STEP = env(STEP, "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=1")
INDEXED_JOB = env("JOB_COMPLETION_INDEX=2 HOSTNAME=train-2")
ALONE_IN_MPI = env("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1")
STEP_PORT = 61440 + (4100 + 3 * 1009) % 4096  # above the ephemeral ports, from job and step


@pytest.mark.parametrize(
    ("environment", "coordinator", "rank", "num_workers", "source"),
    [
        (OWN, "h:1", 1, 4, "the environment (TF_ADASUM_COORDINATOR)"),
        (env(STEP, OPEN_MPI_4, TORCHRUN, KERAS, OWN), "h:1", 1, 4, "the environment"),
        (env(STEP, TORCHRUN, KERAS), "10.0.0.1:1234", 1, 2, "Keras"),
        (env(KERAS, "KERAS_DISTRIBUTION_JOB_ADDRESSES=c:5"), "c:5", 1, 2, "Keras"),
        (without(KERAS, "KERAS_DISTRIBUTION_NUM_PROCESSES"), "10.0.0.1:1234", 1, 2, "Keras"),
        (TORCHRUN, "node-a:29500", 5, 8, "torchrun (MASTER_ADDR)"),
        (env(TORCHRUN, "MASTER_ADDR=fd00::2"), "[fd00::2]:29500", 5, 8, "torchrun"),
        (WITH_AGENT_STORE, "node-a:", 5, 8, "torchrun"),
        # srun starts torchrun once on each of two nodes; so do Open MPI and an Indexed Job
        (env(STEP, TORCHRUN), "node-a:29500", 5, 8, "torchrun"),
        # a batch script exports an address, srun gives the ranks
        (env(STEP, "MASTER_ADDR=b MASTER_PORT=9"), "b:9", 2, 4, "Slurm (SLURM_PROCID)"),
        (env(STEP, "MASTER_ADDR=b MASTER_PORT=9 WORLD_SIZE=4"), "b:9", 2, 4, "Slurm"),
        # mpirun in a batch script; and in a step, whose tasks are its daemons
        (env(BATCH, OPEN_MPI_5), "n2:", 0, 2, "Open MPI (OMPI_COMM_WORLD_RANK)"),
        (env(STEP, HYDRA), "127.0.0.1:", 1, 2, "PMI (PMI_RANK)"),
        (OPEN_MPI_4, "10.96.0.1:", 3, 4, "Open MPI (OMPI_COMM_WORLD_RANK)"),
        (env(OPEN_MPI_4, "OMPI_MCA_orte_hnp_uri=7;tcp6://[f::3]:1"), "[f::3]:", 3, 4, "Open MPI"),
        (OPEN_MPI_5, "node-7:", 0, 2, "Open MPI"),
        (env(OPEN_MPI_5, "OMPI_COMM_WORLD_LOCAL_SIZE=2"), "127.0.0.1:", 0, 2, "Open MPI"),
        (HYDRA, "127.0.0.1:", 1, 2, "PMI (PMI_RANK)"),
        (env(without(HYDRA, "MPI_LOCALNRANKS"), BATCH), "n2:", 1, 2, "PMI (PMI_RANK)"),
        # srun --mpi=pmi2
        (env(STEP, "PMI_RANK=2 PMI_SIZE=4"), f"n2:{STEP_PORT}", 2, 4, "Slurm"),
        (STEP, f"n2:{STEP_PORT}", 2, 4, "Slurm (SLURM_PROCID)"),
        (env(STEP, "SLURM_STEP_NODELIST=g[010-012]-ib,a"), f"g010-ib:{STEP_PORT}", 2, 4, "Slurm"),
        (env(STEP, "SLURM_STEP_NUM_NODES=1"), f"127.0.0.1:{STEP_PORT}", 2, 4, "Slurm"),
        (
            env(INDEXED_JOB, "TF_ADASUM_COORDINATOR=t-0.t:2222 TF_ADASUM_WORLD_SIZE=4"),
            *("t-0.t:2222", 2, 4, "a Kubernetes Indexed Job (JOB_COMPLETION_INDEX)"),
        ),
        (env("TF_CONFIG=", STEP), f"n2:{STEP_PORT}", 2, 4, "Slurm"),
    ],
)
def test_what_is_found(environment, coordinator, rank, num_workers, source):
    found = find(environment)
    if coordinator.endswith(":"):  # a port from the job's name: outside of the ephemeral range
        host, _, port = found.coordinator.rpartition(":")
        assert f"{host}:" == coordinator and 61440 <= int(port) < 65536
    else:
        assert found.coordinator == coordinator
    assert (found.rank, found.num_workers) == (rank, num_workers)
    assert f" with {source}" in f" with {found.source}"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        dict.fromkeys((*OWN, *KERAS, *TORCHRUN, *STEP), ""),
        env("TF_CONFIG={}", STEP),
        # each for itself, whoever has started it
        env(STEP, OPEN_MPI_4, TORCHRUN, INDEXED_JOB, "TF_ADASUM_WORLD_SIZE=1"),
        # a notebook service, Ray
        env("RANK=0 WORLD_SIZE=1"),
        env("MASTER_ADDR=127.0.0.1 WORLD_SIZE=1"),
        env(
            "KERAS_DISTRIBUTION_JOB_ADDRESSES=a:1",
            "KERAS_DISTRIBUTION_NUM_PROCESSES=1 KERAS_DISTRIBUTION_PROCESS_ID=0",
        ),
        # left over, and generic names
        env("MASTER_ADDR=a MASTER_PORT=1"),
        env("RANK=colonel"),
        env("WORLD_SIZE=big"),
        # a batch script that starts its program without srun, the shell of salloc, `srun --pty
        # bash`, a notebook in a job, srun -n 1
        BATCH,
        env(BATCH, "MASTER_ADDR=a MASTER_PORT=1"),
        without(BATCH, "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS"),
        LONE_STEP,
        env(LONE_STEP, "MASTER_ADDR=a MASTER_PORT=1"),
        # mpirun -np 1 in each task of a step
        env(STEP, OPEN_MPI_4, ALONE_IN_MPI),
        env("PMI_RANK=0 PMI_SIZE=1"),
        # an Indexed Job with one completion
        env("JOB_COMPLETION_INDEX=0"),
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
            env("TF_ADASUM_RANK=1"),
            "set TF_ADASUM_COORDINATOR and TF_ADASUM_WORLD_SIZE[.] If .* TF_ADASUM_WORLD_SIZE=1[.]",
        ),
        (env("OMPI_COMM_WORLD_RANK=0"), "Open MPI .* set OMPI_COMM_WORLD_SIZE[.] If"),
        (env("PMI_RANK=0"), "PMI .* set PMI_SIZE[.] If"),
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
        (env("SLURM_PROCID=2"), "SLURM_STEP_NUM_TASKS[.] .*SLURM_PROCID='2'"),
        (INDEXED_JOB, "set TF_ADASUM_COORDINATOR and TF_ADASUM_WORLD_SIZE.*INDEX='2'"),
        # each variable once
        (
            env(INDEXED_JOB, "TF_ADASUM_WORLD_SIZE=4"),
            "Received: TF_ADASUM_WORLD_SIZE='4', JOB_COMPLETION_INDEX='2' .*TFA-202.$",
        ),
        # no numbers, no addresses
        (env(OWN, "TF_ADASUM_RANK=-1"), "TF_ADASUM_RANK must be .*TF_ADASUM_RANK='-1'"),
        (env(OWN, "TF_ADASUM_RANK=٣"), "TF_ADASUM_RANK must be"),
        (env(OWN, "TF_ADASUM_WORLD_SIZE=4.0"), "TF_ADASUM_WORLD_SIZE='4.0'"),
        (env(OWN, "TF_ADASUM_COORDINATOR=h"), "TF_ADASUM_COORDINATOR='h': .*host:port"),
        (env(TORCHRUN, "MASTER_PORT=none"), "MASTER_ADDR='node-a', MASTER_PORT='none'"),
        (env(KERAS, "KERAS_DISTRIBUTION_JOB_ADDRESSES=a:1,b"), "JOB_ADDRESSES='a:1,b'"),
        (env(STEP, "SLURM_JOB_ID=x"), "SLURM_JOB_ID='x'"),
        (env(STEP, "SLURM_STEP_NODELIST=n[2-"), r"SLURM_STEP_NODELIST: .*'n\[2-'"),
        # outside
        (env(OWN, "TF_ADASUM_WORLD_SIZE=0"), "TF_ADASUM_WORLD_SIZE must be at least 1"),
        (env(OWN, "TF_ADASUM_WORLD_SIZE=1"), "TF_ADASUM_RANK must be less"),
        (env(OWN, "TF_ADASUM_WORLD_SIZE=65537"), "WORLD_SIZE must be at most 65536.*='65537'"),
        (
            env("JOB_COMPLETION_INDEX=4 TF_ADASUM_WORLD_SIZE=4 TF_ADASUM_COORDINATOR=a:1"),
            "JOB_COMPLETION_INDEX must be less than TF_ADASUM_WORLD_SIZE.*='4'",
        ),
        # contradictions
        (
            env(STEP, "TF_ADASUM_WORLD_SIZE=8"),
            "TF_ADASUM_WORLD_SIZE and SLURM_STEP_NUM_TASKS contradict.*='8'.*='4'",
        ),
        (env(STEP, "TF_ADASUM_RANK=1"), "TF_ADASUM_RANK and SLURM_PROCID contradict"),
        (
            env(STEP, TORCHRUN, "RANK=0 WORLD_SIZE=1"),
            "contradict each other.*set TF_ADASUM_WORLD_SIZE=1 .*WORLD_SIZE='1'.*NUM_TASKS='4'",
        ),
        (env(KERAS, "KERAS_DISTRIBUTION_NUM_PROCESSES=3"), "addresses as .*NUM_PROCESSES='3'"),
    ],
)
def test_what_is_wrong_is_named(environment, message):
    with pytest.raises(ValueError, match=message):
        find(environment)


@pytest.mark.parametrize(
    ("job", "rank", "others"),
    [
        (STEP, "SLURM_PROCID=3", ["SLURM_JOB_ID=4101", "SLURM_STEP_ID=4"]),
        (WITH_AGENT_STORE, "RANK=0", ["TORCHELASTIC_RESTART_COUNT=1", "MASTER_PORT=29501"]),
        (env(HYDRA, "I_MPI_HYDRA_UUID=fe42-1"), "PMI_RANK=0", ["I_MPI_HYDRA_UUID=fe42-2"]),
    ],
    ids=["Slurm", "torchrun", "Intel MPI"],
)
def test_all_ranks_of_one_job_get_its_port(job, rank, others):
    coordinator = find(job).coordinator
    assert find(env(job, rank)).coordinator == coordinator
    assert coordinator not in [find(env(job, other)).coordinator for other in others]


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        (env(STEP, OWN), ""),  # what is started by hand in two steps is one job
        (env(STEP, "TF_ADASUM_COORDINATOR=b:9"), "4100.3"),
        (STEP, "4100.3"),
        (TORCHRUN, ""),
        (WITH_AGENT_STORE, ""),
        (env(STEP, WITH_AGENT_STORE, "TORCHELASTIC_RUN_ID=a7"), "a7"),
        (OPEN_MPI_4, "1531576321"),
        (OPEN_MPI_5, "prterun-node-7-41@1"),
        (HYDRA, ""),
        (env(HYDRA, "I_MPI_HYDRA_UUID=fe42"), "fe42"),
    ],
)
def test_the_name_of_the_job(environment, job):
    assert find(environment).job == job


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", "localhost"),
        ("gpu[001-003,7]-ib,login1", "gpu001-ib"),
        ("a[09-11]", "a09"),
        ("rack[0-1]node[1-2]", "rack0node1"),  # as newer versions of Slurm may write it
        ("a.b-c,d_e", "a.b-c"),
        ("a,b[1],c", "a"),
    ],
)
def test_the_first_node_of_slurms_lists(text, expected):
    """As `scontrol show hostnames` of Slurm 22.05 prints it."""
    assert first_node(text, "LIST") == expected


NO_LISTS = ["", ",", "a,", ",a", "a,,b", "n[", "n[1", "n]", "n[]", "n[1-]", "n[-1]", "n[a]", "a b"]


@pytest.mark.parametrize("text", NO_LISTS)
def test_what_is_no_list_of_nodes(text):
    with pytest.raises(ValueError, match="LIST: a list of nodes"):
        first_node(text, "LIST")
