"""Ten bugs that mutants.py inserts into the package, and that the tests must detect."""

# Bugs that a person could write: name, target, file, original text, replacement.
BUGS = [
    (
        "sharding: the next shuffle has the seed of an earlier one",
        "workers",
        "tf_adasum/workers/sharding.py",
        "self._drawn = int(drawn.max())",
        "self._drawn = int(drawn.min())",
    ),
    (
        "Adasum's tree: the last of an odd number of replicas is dropped",
        "aggregation",
        "tf_adasum/aggregation/rules/adasum.py",
        "carried = nodes_SMR[:, even:]",
        "carried = nodes_SMR[:, :0]",
    ),
    (
        "bf16: float16 gradients are rounded to bfloat16",
        "aggregation",
        "tf_adasum/aggregation/reduction_planner.py",
        "wire_dtype.size >= dtype.size",
        "wire_dtype.size > dtype.size",
    ),
    (
        "LAMB: v is corrected with the power of β1",
        "optimizers",
        "tf_adasum/optimizers/lamb.py",
        "v_hat = v / _one_minus_power(beta_2, t)",
        "v_hat = v / _one_minus_power(beta_1, t)",
    ),
    (
        "AdaScale: the variance is divided by C in place of C - 1",
        "optimizers",
        "tf_adasum/optimizers/gain.py",
        "scale / (count - 1)",
        "scale / count",
    ),
    (
        "restore order: epoch 9 counts as newer than epoch 10",
        "backup",
        "tf_adasum/backup/backup_files.py",
        "(int(name[1]), int(name[2]), path)",
        "(name[1], name[2], path)",
    ),
    (
        "failure diagnosis: a failure in another call ends this one",
        "health",
        "tf_adasum/health/diagnosis.py",
        "own.in_call and status.call == own.call",
        "own.in_call",
    ),
    (
        "detection: a rank equal to the number of workers is accepted",
        "cluster",
        "tf_adasum/cluster/detection.py",
        "rank >= size",
        "rank > size",
    ),
    (
        "wire format: a message that arrives in two parts is lost",
        "cluster",
        "tf_adasum/cluster/json_lines.py",
        '*lines, self._incoming = self._incoming.split(b"\\n")',
        'lines, self._incoming = self._incoming.split(b"\\n"), b""',
    ),
    (
        "launcher: a worker that was stopped counts as the one that failed first",
        "launch",
        "tf_adasum/launch/failures.py",
        "by_themselves = [end for end in others if not end.is_stopped]",
        "by_themselves = others",
    ),
]
