"""Files of models with Keras 3."""

from tf_adasum.seams import tensorflow as tensorflow_seam
from tf_adasum.seams.keras.generation import hooks
from tf_adasum.seams.keras.keras3.private_names import saving_lib

SAVING_IN_SCOPE = "saving on one worker within strategy.scope(): save outside of it"


@hooks.replaces(saving_lib, "get_attr_skipset", feature=SAVING_IN_SCOPE)
def get_attr_skipset(original, obj_type):
    """Let one worker save in the strategy's scope.

    When Keras saves or loads an optimizer for the first time in a process, it creates a temporary
    optimizer, whose variables all workers would have to create.
    """
    with tensorflow_seam.making_own_variables():
        return original(obj_type)
