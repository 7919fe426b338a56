"""StragglerReport: which worker it names, what it measures, and its logs."""

import types

import keras
import numpy as np
import pytest
from support.launching import eventually

import tf_adasum
from tf_adasum.callbacks import straggler_report
from tf_adasum.callbacks.straggler_report import StragglerReport


@pytest.mark.parametrize(
    "waiting, slowest",
    [
        ([50.0, 2.0], 1),
        ([2.0, 50.0], 0),
        ([40.0, 45.0, 3.0, 41.0], 2),
        ([8.0, 2.0], -1),  # less than a tenth of the step
        ([3.0, 3.0, 3.0], -1),
        ([50.0, 2.0, 2.0, 2.0], -1),  # three that are slow alike
        ([0.0], -1),
    ],
)
def test_who_is_named(waiting, slowest):
    waiting = np.array(waiting)
    assert straggler_report._slowest(np.full(len(waiting), 60.0), waiting, 500) == slowest


@pytest.mark.parametrize(
    "waiting, slowest, printed",
    [
        ([50.0, 41.0], [-1, -1], "every worker spends at least 41 ms in collectives"),  # slow link
        ([50.0, 29.0], [-1, -1], None),  # less than half of a step
        ([50.0, 2.0], [1, 1], "worker 1 is slow"),
        ([50.0, 41.0], [-1, 1], None),  # neither of them in most epochs
    ],
)
def test_what_is_printed_at_the_end_of_training(waiting, slowest, printed):
    times = {"step_ms": np.full(2, 60.0), "waiting_ms": np.array(waiting)}
    line = straggler_report._conclusion([{**times, "slowest": rank} for rank in slowest])
    assert line is None if printed is None else printed in line


def test_few_looks_name_nobody_by_chance():
    """Two workers that wait equally long; their samples are independent."""
    random = np.random.default_rng(0)
    named = [
        straggler_report._slowest(np.full(2, 60.0), 60 * random.binomial(25, 0.5, 2) / 25, 25)
        for _ in range(1000)
    ]
    assert sum(rank >= 0 for rank in named) < 20


def test_the_looks_measure_the_part_of_time_in_collectives(monkeypatch):
    monkeypatch.setattr(straggler_report, "POLL_SECONDS", 0.001)
    counts = [7, 5, 0]  # two were left in the middle by an earlier training
    samples, waits = straggler_report._Sampler(lambda: tuple(counts)), []
    wait = samples._has_ended.wait
    monkeypatch.setattr(
        samples._has_ended, "wait", lambda seconds: waits.append(seconds) or wait(seconds)
    )

    def let_it_look(is_on, times):
        samples.is_on, before = is_on, len(waits)
        eventually(lambda: len(waits) > before + times)

    let_it_look(False, 5)
    assert samples.count == 0 and samples.fraction() == 0.0
    let_it_look(True, 100)
    assert samples.count > 50 and samples.fraction() == 0.0
    counts[0] += 1
    let_it_look(True, 100)
    let_it_look(False, 2)
    part = samples.fraction()
    assert 0.2 < part < 0.8
    let_it_look(False, 5)
    assert samples.fraction() == part
    counts[1] += 1
    samples.begin_epoch()
    assert samples.fraction() == 0.0
    samples.end()


class Workers:
    """Two workers: this one is the first, and the other never waits."""

    rank = 0

    def gather(self, numbers):
        return np.array([numbers, [numbers[0], 0, numbers[2]]])


def called_as_in_fit(report, monkeypatch):
    """Two epochs of six executions of two steps; the first, which is traced, takes longer."""
    clock = [0.0]
    monkeypatch.setattr(straggler_report.time, "perf_counter", lambda: clock[0])
    report._sampler = types.SimpleNamespace(
        is_on=False, begin_epoch=lambda: None, fraction=lambda: 0.75, end=lambda: None, count=100
    )
    report._workers, report._is_first = Workers(), True
    report.set_model(keras.Sequential())
    logs = []
    for epoch in range(2):
        report.on_epoch_begin(epoch)
        for batch in range(0, 12, 2):
            report.on_train_batch_begin(batch)
            assert report._sampler.is_on == (batch >= (2 if epoch == 0 else 0))
            clock[0] += 100.0 if (epoch, batch) == (0, 0) else 0.12
        logs.append({"loss": 1.0})
        report.on_epoch_end(epoch, logs[-1])
        assert not report._sampler.is_on
    report.on_train_end()
    return logs


def test_what_is_in_the_logs_and_in_the_picture(monkeypatch, capsys):
    report = StragglerReport()
    logs = called_as_in_fit(report, monkeypatch)
    expected = {"step_ms/worker_0": 60.0, "step_ms/worker_1": 60.0}
    expected |= {"waiting_ms/worker_0": 45.0, "waiting_ms/worker_1": 0.0, "slowest_worker": 1}
    assert logs == [{"loss": 1.0, **expected}] * 2
    assert report.epochs == [0, 1]
    assert capsys.readouterr().out == (
        "tf_adasum: worker 1 is slow: in a step of 60 ms, it waits 0 ms, and the other workers "
        "wait 45 ms.\n"
    )
    pytest.importorskip("matplotlib")
    with pytest.raises(RuntimeError, match="Nothing was measured"):
        StragglerReport().plot()
    (axes,) = report.plot().axes
    widths = sorted(bar.get_width() for bar in axes.patches)
    np.testing.assert_allclose(widths, [0, 15, 45, 60])


def test_one_process_waits_for_nobody():
    with tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"]).scope():
        model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    report = StragglerReport()
    given = {"batch_size": 2, "epochs": 2, "verbose": 0, "callbacks": [report]}
    history = model.fit(np.ones([8, 3]), np.ones([8, 2]), **given).history
    assert history["waiting_ms/worker_0"] == [0.0, 0.0]
    assert history["slowest_worker"] == [-1, -1]
    assert all(value > 0 for value in history["step_ms/worker_0"])
