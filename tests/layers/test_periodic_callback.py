"""A callback that does something every few batches, counted over epochs and executions."""

import numpy as np
import pytest

from group_embedding.keras_compat import keras
from group_embedding.layers.periodic_callback import PeriodicCallback


class Runs(PeriodicCallback):
    def __init__(self, every_n_batches):
        super().__init__(every_n_batches)
        self.batches = []

    def run_at(self, batch):
        self.batches.append(batch)


@pytest.mark.parametrize(
    "steps_per_execution, every, expected",
    [
        (1, 3, [3, 6, 9, 10, 12, 15, 18, 20]),
        (4, 3, [4, 8, 10, 14, 18, 20]),
        (4, 5, [8, 10, 18, 20]),
        (4, 10, [10, 20]),
        (4, None, [10, 20]),
    ],
)
def test_batches_are_counted_over_executions_and_epochs(steps_per_execution, every, expected):
    # Given a model that runs so many batches in a call of its function, and two callbacks
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    callbacks = [Runs(every), Runs(None)]

    # When it trains two epochs of ten batches, and one more with the first callback
    samples = np.ones([40, 1], np.float32)
    model.fit(samples, samples, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
    model.fit(samples, samples, batch_size=4, epochs=1, verbose=0, callbacks=callbacks[:1])

    # Then each ran once where a multiple was reached or passed, and after epochs
    found = callbacks[0].batches
    assert found[: len(expected)] == expected and callbacks[1].batches == [10, 20]
    assert found[-1] == 30 and len(set(found)) == len(found)


@pytest.mark.parametrize("every", [0, -1, 2.5, "3", True])
def test_a_number_of_batches_that_is_none_is_refused(every):
    with pytest.raises(ValueError, match="Runs: expected every_n_batches to be an int of at least"):
        Runs(every)
