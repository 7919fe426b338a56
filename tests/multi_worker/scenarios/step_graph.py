"""What the worker processes do for `test_step_graph.py`: count the operations of a step."""

import gc

import keras

from scenarios.basics import random_data, scope

CONDITIONS = ("If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile", "Switch")


def count_operations(strategy):
    """Return the numbers of nodes, conditions and collectives in the graph of a step of `fit`."""
    x, y = random_data(48)
    with scope(strategy):
        hidden = [keras.layers.Dense(8, activation="relu") for _ in range(3)]
        model = keras.Sequential([keras.layers.Input([6]), *hidden, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    before = {id(graph) for graph in _graphs_of_steps()}
    model.fit(x, y, batch_size=24, verbose=0)
    (graph,) = [each for each in _graphs_of_steps() if id(each) not in before]
    types = [operation.type for operation in graph.get_operations()]
    return {
        "nodes": len(types),
        "conditions": sum(each in CONDITIONS for each in types),
        "collectives": sum(each.startswith(("Collective", "TfAdasumUcx")) for each in types),
    }


def _graphs_of_steps():
    for found in gc.get_objects():
        if type(found).__name__ == "ConcreteFunction" and b"one_step_on_data" in found.name:
            yield found.graph
