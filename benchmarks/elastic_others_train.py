"""Train elastically with PyTorch or Horovod, for `elastic_others.py`.

The script runs in the Python of the other framework, so it imports nothing of tf_adasum.
"""

import pathlib
import sys
import time

import numpy as np

ROWS = 8  # of a replica
SECONDS_PER_STEP = 0.05  # at least
STEPS_BETWEEN_BACKUPS = 10


def batch_of(rank, step):
    """Return generated inputs, shape (8, 64), and labels, shape (8,), of a replica."""
    generator = np.random.default_rng([rank, step])
    return generator.random((ROWS, 64), np.float32), generator.integers(0, 10, ROWS)


class Notes:
    """Records the time of the first step of a start, and of its last step so far."""

    def __init__(self, folder, rank, replicas):
        self._folder = folder if rank == 0 else None
        if rank == 0:
            start = len(list(folder.glob("step-*")))
            self._names = [f"step-{start}-{replicas}", f"last-{start}"]

    def step(self):
        """Record a step, and wait."""
        if self._folder:
            for name in self._names:
                (self._folder / "new").write_text(str(time.time()))
                (self._folder / "new").rename(self._folder / name)
            self._names = self._names[-1:]
        time.sleep(SECONDS_PER_STEP)


def train_torch(folder):
    """Train with `DistributedDataParallel`, and a backup of worker 0 in the folder."""
    import torch
    from torch import distributed, nn

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    backup, step = folder / "backup.pt", 0
    if backup.exists():
        found = torch.load(backup)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        step = found["step"]
    notes = Notes(folder, rank, distributed.get_world_size())
    while True:
        x, y = map(torch.from_numpy, batch_of(rank, step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        notes.step()
        if step % STEPS_BETWEEN_BACKUPS == 0 and rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / "new.pt")
            (folder / "new.pt").rename(backup)


def train_horovod(folder):
    """Train with `horovod.tensorflow.elastic`, which keeps its backup in memory."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(64, "relu", input_shape=[64]), tf.keras.layers.Dense(10)]
    )
    optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @hvd.elastic.run
    def train(state):
        notes, step = Notes(folder, hvd.rank(), hvd.size()), tf.function(train_step)
        while True:
            step(*batch_of(hvd.rank(), state.step))
            state.step += 1
            notes.step()
            if state.step % STEPS_BETWEEN_BACKUPS == 0:
                state.commit()

    train(hvd.elastic.TensorFlowKerasState(model, optimizer, step=0))


if __name__ == "__main__":
    {"torchrun": train_torch, "horovod": train_horovod}[sys.argv[1]](pathlib.Path(sys.argv[2]))
