"""Keras callbacks that measure training, stop training, write backups, and check replicas."""

from tf_adasum.callbacks.backup_and_restore import BackupAndRestore
from tf_adasum.callbacks.elastic_scale import ElasticScale
from tf_adasum.callbacks.gain_tracker import GainTracker
from tf_adasum.callbacks.on_first_worker import OnFirstWorker
from tf_adasum.callbacks.orthogonality_tracker import OrthogonalityTracker
from tf_adasum.callbacks.replica_check import ReplicaCheck
from tf_adasum.callbacks.stop_at_scale_invariant_step import StopAtScaleInvariantStep
from tf_adasum.callbacks.straggler_report import StragglerReport

__all__ = [
    "BackupAndRestore",
    "ElasticScale",
    "GainTracker",
    "OnFirstWorker",
    "OrthogonalityTracker",
    "ReplicaCheck",
    "StopAtScaleInvariantStep",
    "StragglerReport",
]
