"""Time the steps of `fit` of several models in turn."""

import time

WARM_UP = 3  # steps of each `fit` that are not counted; they include tracing


def time_in_turn(models, x, y, *, batch_size, rounds):
    """Return for each model a list of rounds, each a list of the seconds of its steps.

    Args:
        models: dict from names to compiled Keras models.
        x, y: the data of one `fit`. Its first WARM_UP steps are not counted.
        batch_size: the global batch size.
        rounds: the number of rounds; in each round, every model is trained once.
    """
    import keras

    class Stopwatch(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seconds = []

        def on_train_batch_begin(self, batch, logs=None):
            self.start = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            self.seconds.append(time.perf_counter() - self.start)

    seconds = {name: [] for name in models}
    for number in range(rounds):
        for name in sorted(models, reverse=number % 2):  # no model is always first
            model = models[name]
            stopwatch = Stopwatch()
            model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0, callbacks=[stopwatch])
            seconds[name].append(stopwatch.seconds[WARM_UP:])
    return seconds
