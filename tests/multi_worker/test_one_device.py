"""Training with the mean computes what Keras computes on one device with the global batch."""

import pytest

pytest.importorskip("keras", minversion="3")  # Keras 2 has other losses and optimizers

from scenarios import assert_close, on, one_device, unusual_models
from support import keras_versions

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@on("2x1")
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_the_mean_equals_one_device(group, part):
    """Every two settings occur together in one of the parts."""
    cases = one_device.cases()[part::4]
    results = group.run(one_device.train_all, timeout=300, cases=cases)
    assert_close(results, one_device.train_all(None, cases), **CLOSE)


@on("2x1")
def test_a_step_exchanges_only_gradients(group):
    for optimizer in ("SGD", "AdaScale"):  # whose number travels among the gradients
        for found in group.run(one_device.exchanges_beside_gradients, optimizer=optimizer):
            assert found["exchanges"] == 0


@on("1x2", "2x1")
def test_logs_under_adasum_cover_all_rows(group):
    """A last batch with fewer rows counts as much as others in the losses of outputs."""
    cases = [("two outputs", "sum", "partial", "", "SGD")]
    starts = [one_device.weights_in(one_device.train_all(None, cases), 0)]
    expected = one_device.train_all(None, cases, starts=starts)
    results = group.run(one_device.train_all, cases=cases, rule="adasum", starts=starts)
    assert_close(results, expected, **CLOSE)


@on("2x1")
def test_losses_that_tensorflow_divides(group):
    """The values are summed over the replicas; the gradients are not N times too small."""
    expected = one_device.loop_of_tensorflow(None, "mean")
    assert_close(group.run(one_device.loop_of_tensorflow, rule="mean"), expected, **CLOSE)
    divided, undivided = (
        group.run(one_device.loop_of_tensorflow, rule="adasum", divides=divides)
        for divides in (True, False)
    )
    del undivided[0]["losses"], divided[0]["losses"]
    assert_close(divided[:1], undivided[0], **CLOSE)


@on("1x2", "2x1")
def test_a_loop_combines_and_clips(group):
    expected = one_device.loop_that_clips(None)
    assert_close(group.run(one_device.loop_that_clips), expected, **CLOSE)
    rounded = group.run(one_device.loop_that_clips, wire_dtype="bfloat16")
    assert_close(rounded, expected, rtol=0, atol=0.005)
    assert group.workers == 1 or (rounded[0]["weight0"] != expected["weight0"]).any()
    # Clipped, a sum is as long as a mean; combined again, it would be longer.
    expected = one_device.loop_that_clips(None, rows=8)
    assert_close(group.run(one_device.loop_that_clips, rule="sum", rows=8), expected, **CLOSE)


@on("1x2", "2x1")
@pytest.mark.parametrize(
    "kind",
    keras_versions.marked(
        unusual_models.KINDS,
        dict.fromkeys(["eagerly", "other keys", "two optimizers"], pytest.mark.always),
    ),
)
def test_unusual_models_equal_one_device(group, kind):
    expected = unusual_models.fit(None, kind)
    assert_close(group.run(unusual_models.fit, kind=kind), expected, **CLOSE)


@on("1x2", "2x1")
def test_order_of_epochs(group):
    """Keras without a strategy begins passes that it does not use."""
    alone = one_device.orders_of_epochs(None)
    assert len(set(alone["own"])) == 6, "each pass has another order"
    assert alone["seen"] == alone["own"][0:6:2]
    for actual in group.run(one_device.orders_of_epochs):
        assert_close([actual], {"seen": alone["own"][:3], "own": alone["own"]}, rtol=1e-6, atol=0)
