"""The private names of TensorFlow that tf_adasum touches, and the registry of the hooks."""

import tensorflow as tf

from tf_adasum._version import INSTALL_TENSORFLOW
from tf_adasum.compat.hooks import Hooks
from tf_adasum.compat.library import Library

library = Library("TensorFlow", tf.__version__, INSTALL_TENSORFLOW)
name = library.name

DISTRIBUTE = "tensorflow.python.distribute"
DATA = "tensorflow.python.data"

# ---- required names ----------------------------------------------------------------------------

CoordinatedJob = name(
    "tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2",
    "CoordinatedJob",
    also_in=["tensorflow.tsl.protobuf.coordination_config_pb2"],  # in TensorFlow 2.15
)
autograph_artifact = name("tensorflow.python.autograph.impl.api", "autograph_artifact")
distribute_lib = name(DISTRIBUTE, "distribute_lib")
multi_worker_util = name(DISTRIBUTE, "multi_worker_util")
CollectiveAllReduceExtended = name(
    f"{DISTRIBUTE}.collective_all_reduce_strategy", "CollectiveAllReduceExtended"
)
CommunicationOptions = name(f"{DISTRIBUTE}.collective_util", "Options")
CollectiveAllReduce = name(f"{DISTRIBUTE}.cross_device_ops", "CollectiveAllReduce")
CollectiveReplicaLauncher = name(f"{DISTRIBUTE}.cross_device_utils", "CollectiveReplicaLauncher")
regroup = name(f"{DISTRIBUTE}.distribute_utils", "regroup")
DistributedValues = name(f"{DISTRIBUTE}.values", "DistributedValues")
Mirrored = name(f"{DISTRIBUTE}.values", "Mirrored")
context = name("tensorflow.python.eager", "context")
Function = name("tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function")
FuncGraph = name("tensorflow.python.framework.func_graph", "FuncGraph")
GraphOrParentsInXlaContext = name(
    "tensorflow.python.ops.control_flow_util", "GraphOrParentsInXlaContext"
)
ResourceVariable = name("tensorflow.python.ops.resource_variable_ops", "ResourceVariable")

# ---- names that only a feature needs -----------------------------------------------------------

CONTROL_FLOW = "collectives inside tf.cond and tf.while_loop (used by steps_per_execution)"

AUTOTUNING = "switching off tf.data's autotuning (the autotuning may delay the end of an epoch)"
multi_device_iterator_ops = name(f"{DATA}.ops", "multi_device_iterator_ops", feature=AUTOTUNING)

UNEVEN = "the check that the parts of a dataset end in the same step on all workers"
input_lib = name(DISTRIBUTE, "input_lib", feature=UNEVEN)
OF_INPUT = f"{DISTRIBUTE}.input_lib"
DistributedDataset = name(OF_INPUT, "DistributedDataset", feature=UNEVEN)
DistributedDatasetsFromFunction = name(OF_INPUT, "DistributedDatasetsFromFunction", feature=UNEVEN)
DistributedIterator = name(OF_INPUT, "DistributedIterator", feature=UNEVEN)
DistributedDatasetSpec = name(OF_INPUT, "DistributedDatasetSpec", feature=UNEVEN)
DistributedDatasetsFromFunctionSpec = name(
    OF_INPUT, "DistributedDatasetsFromFunctionSpec", feature=UNEVEN
)
DistributedIteratorSpec = name(OF_INPUT, "DistributedIteratorSpec", feature=UNEVEN)

SEEDS = (
    "the same order on all workers for datasets that shuffle without a seed (if it is off, "
    "give all workers the same seed; otherwise some rows are used twice and others never)"
)
data_random_seed = name(f"{DATA}.util", "random_seed", feature=SEEDS)

CHECKPOINTS = "`tf.train.Checkpoint`s that all workers save"

library.check()

# The hooks into TensorFlow, which the other files of this folder define.
hooks = Hooks("TensorFlow", library)
