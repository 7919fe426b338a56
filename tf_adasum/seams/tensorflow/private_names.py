"""The private modules, classes and functions of TensorFlow that the seam touches."""

import tensorflow as tf

from tf_adasum._version import TENSORFLOW

try:
    try:
        from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
    except ImportError:  # in TensorFlow 2.15
        from tensorflow.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
    from tensorflow.python.autograph.impl.api import autograph_artifact
    from tensorflow.python.data.ops import multi_device_iterator_ops
    from tensorflow.python.data.ops.from_tensor_slices_op import (
        _TensorSliceDataset as TensorSliceDataset,
    )
    from tensorflow.python.data.ops.from_tensors_op import _TensorDataset as TensorDataset
    from tensorflow.python.data.ops.scan_op import _ScanDataset as ScanDataset
    from tensorflow.python.data.ops.shard_op import _ShardDataset as ShardDataset
    from tensorflow.python.data.ops.skip_op import _SkipDataset as SkipDataset
    from tensorflow.python.data.ops.take_op import _TakeDataset as TakeDataset
    from tensorflow.python.data.ops.take_while_op import _TakeWhileDataset as TakeWhileDataset
    from tensorflow.python.data.ops.zip_op import _ZipDataset as ZipDataset
    from tensorflow.python.data.util import random_seed as data_random_seed
    from tensorflow.python.distribute import multi_worker_util
    from tensorflow.python.distribute.collective_all_reduce_strategy import (
        CollectiveAllReduceExtended,
    )
    from tensorflow.python.distribute.collective_util import Options as CommunicationOptions
    from tensorflow.python.distribute.cross_device_ops import CollectiveAllReduce
    from tensorflow.python.distribute.cross_device_utils import CollectiveReplicaLauncher
    from tensorflow.python.distribute.distribute_utils import regroup
    from tensorflow.python.distribute.values import DistributedValues, Mirrored
    from tensorflow.python.eager import context
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
    from tensorflow.python.framework.func_graph import FuncGraph
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable
except ImportError as error:
    raise ImportError(
        f"tf_adasum works with TensorFlow {TENSORFLOW}; TensorFlow {tf.__version__} has moved "
        f"something it builds on: {error}. Install a supported one: pip install 'tf-adasum[cpu]' "
        "or 'tf-adasum[cuda]'."
    ) from error

__all__ = [
    "CollectiveAllReduce",
    "CollectiveAllReduceExtended",
    "CollectiveReplicaLauncher",
    "CommunicationOptions",
    "CoordinatedJob",
    "DistributedValues",
    "FuncGraph",
    "Function",
    "GraphOrParentsInXlaContext",
    "Mirrored",
    "ResourceVariable",
    "ScanDataset",
    "ShardDataset",
    "SkipDataset",
    "TakeDataset",
    "TakeWhileDataset",
    "TensorDataset",
    "TensorSliceDataset",
    "ZipDataset",
    "autograph_artifact",
    "context",
    "data_random_seed",
    "multi_device_iterator_ops",
    "multi_worker_util",
    "regroup",
]
