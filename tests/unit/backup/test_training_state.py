"""The state of a training: what differs between replicas is kept for each, and comes back there."""

import numpy as np
import pytest
from support.fake_training import FakeModel, FakeVariable
from support.fake_workers import results_on_workers

from tf_adasum.backup import training_state
from tf_adasum.backup.backup_files import Array

ALL = (*training_state.SECTIONS, training_state.METRICS)


def test_bits_count_and_not_numbers(recwarn):
    nan, other_nan = np.array([0x7FC00000, 0x7FC00001], "uint32").view("float32")
    model = FakeModel(
        [
            FakeVariable("zeros", np.float32(0.0), np.float32(-0.0)),
            FakeVariable("same", nan, nan),
            FakeVariable("nans", nan, other_nan),
        ],
        replicas=2,
    )
    (state,) = results_on_workers(1, lambda own: training_state.gather_state(model, own, ["model"]))
    assert [len(array.copies) for array in state] == [2, 1, 2]


def test_worker_0_alone_keeps_the_slots_of_all_replicas():
    """The slots of all replicas may need much memory, and worker 0 alone writes them."""

    def gathered(workers):
        own, slot = (np.full(2, 10.0 * number + workers.rank) for number in (1, 2))
        model = FakeModel([FakeVariable("own", own)], 3, slots=[FakeVariable("slot", slot)])
        arrays = training_state.gather_state(model, workers, training_state.SECTIONS)
        return [[copy[0] for copy in array.copies] for array in arrays]

    first, *others = results_on_workers(3, gathered)
    assert first == [[10, 11, 12], [20, 21, 22]]
    assert others == [[[10, 11, 12], []]] * 2


@pytest.mark.parametrize("copies", [3, 4])
def test_another_number_of_replicas_takes_turns(copies):
    """Replica r takes the copy r modulo their number: here of two workers with two replicas."""
    arrays = [Array("model", "own", [np.full(2, float(i)) for i in range(copies)])]

    def restored(workers):
        model = FakeModel([FakeVariable("own", np.zeros(2), np.zeros(2))], 4)
        training_state.assign(model, workers, arrays, ["model"])
        return [each[0] for each in model.variables[0].numpy()]

    assert np.ravel(results_on_workers(2, restored)).tolist() == [i % copies for i in range(4)]


class TestOfAnotherModel:
    def model(self, **more):
        return FakeModel(
            [FakeVariable("dense_7/kernel", np.zeros((2, 3), "float32"))],
            slots=[FakeVariable("momentum", np.zeros(3, "float32"))],
            **more,
        )

    def arrays(self, kernel=(2, 3), slots=((3,),)):
        """The name of the layer is another one, as names count layers."""
        of_slots = [Array("optimizer", "momentum", [np.ones(s, "float32")]) for s in slots]
        return [Array("model", "dense/kernel", [np.ones(kernel, "float32")]), *of_slots]

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"kernel": (3, 2)}, r"another model.*float32\[2,3\] dense_7.*float32\[3,2\] dense/"),
            ({"slots": []}, r"another optimizer\. .*Expected: float32\[3\] momentum. Rec"),
            (
                {"slots": [(3,), (1,)]},
                r"another optimizer\. .*Expected: none. Received: float32\[1\]",
            ),
        ],
    )
    def test_is_refused_by_the_files_name(self, arrays, message):
        with pytest.raises(ValueError, match=rf"the file is the backup of {message}"):
            training_state.check(self.model(), self.arrays(**arrays), "the file")

    @pytest.mark.parametrize(
        ("option", "copies"),
        [
            ({"rule_state": [FakeVariable("own", np.zeros(2))]}, [np.ones(3)]),
            ({"metrics": [FakeVariable("own", np.zeros(2))]}, [np.ones(3)]),
            # Of another number of replicas.
            ({"metrics": [FakeVariable("own", np.zeros(2))]}, [np.ones(2)] * 2),
        ],
    )
    def test_what_can_be_done_without_starts_anew(self, option, copies):
        model = self.model(**option)
        ((section, (variable,)),) = option.items()
        arrays = [*self.arrays(), Array(section.removesuffix("_state"), "own", copies)]
        with pytest.warns(UserWarning, match="is reset|remaining batches"):
            results_on_workers(1, lambda own: training_state.assign(model, own, arrays, ALL))
        np.testing.assert_array_equal(variable.numpy()[0], np.zeros(2))
        np.testing.assert_array_equal(model.variables[0].numpy()[0], 1)
