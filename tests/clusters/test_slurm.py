"""Workers that `srun` starts, on two nodes of a real Slurm."""

import pytest

SECONDS = 400


@pytest.mark.slow
def test_srun_trains_as_the_launcher(training, slurm_cluster, tmp_path):
    ended = slurm_cluster.run(
        *["srun", "-N", "2", "-n", "4", "--kill-on-bad-exit=1", *training.command, str(tmp_path)],
        environment=training.environment,
        timeout=SECONDS,
    )
    assert "tf_adasum: Slurm (SLURM_PROCID): 4 workers x 1 device" in ended.stderr
    training.assert_as_launched(tmp_path)
