"""Which tests run: a sample if nothing is selected by hand, else everything that is."""

import pytest
from support import keras_versions

TESTS = {
    "multi_worker/test_workers.py": """
        import pytest

        @pytest.mark.parametrize("group", ["1x2", "2x1", "3x1"])
        @pytest.mark.parametrize("way", ["eagerly", "in a graph"])
        def test_ways(group, way):
            pass

        @pytest.mark.parametrize("group", ["3x1", "3x2"])
        def test_three(group):
            pass

        @pytest.mark.slow
        def test_long():
            pass

        ALWAYS = pytest.param("b", marks=pytest.mark.always)

        @pytest.mark.parametrize("case", ["a", ALWAYS, "c"])
        def test_always(case):
            pass
        """,
    "unit/test_unit.py": """
        import pytest

        @pytest.mark.parametrize("size", range(5))
        @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
        def test_sizes(size, dtype):
            pass

        @pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.keras3_only("-")), 2])
        def test_absent(size):
            pass
        """,
    "unit/test_version_independent.py": """
        import pytest

        pytestmark = pytest.mark.version_independent

        @pytest.mark.parametrize("size", range(3))
        def test_formula(size):
            pass
        """,
}


@pytest.fixture(params=[False, True], ids=["Keras 3", "Keras 2"])
def is_keras_2(request, monkeypatch):
    monkeypatch.setattr(keras_versions, "IS_KERAS_2", request.param)
    return request.param


@pytest.fixture
def outcomes(pytester, monkeypatch):
    """A function that runs these tests with arguments; returns which have passed, and not run."""
    for name, text in TESTS.items():
        path = pytester.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(line[8:] for line in text.splitlines()))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # Hypothesis takes seconds
    plugins = ["-p", "support.keras_versions", "-p", "support.sampling", "-p", "no:cacheprovider"]

    def run(*arguments):
        ended = pytester.inline_run(*plugins, *arguments)
        passed, skipped, failed = ended.listoutcomes()
        assert not failed
        return [each.nodeid for each in passed], [each.nodeid for each in skipped]

    return run


def parameters_of(tests, name):
    return [test.partition("[")[2].rstrip("]").split("-") for test in tests if name in test]


LONG = "multi_worker/test_workers.py::test_long"


def test_without_a_selection_every_test_runs_a_sample(outcomes, is_keras_2):
    passed, skipped = outcomes()
    assert skipped == [LONG]
    (way,) = parameters_of(passed, "test_ways")
    assert way[1] in ("1x2", "2x1"), "one of those that others take, too"
    assert len(parameters_of(passed, "test_three")) == 1
    assert parameters_of(passed, "test_always") == [["b"]]
    sizes = parameters_of(passed, "test_sizes")
    if is_keras_2:
        assert len(sizes) == 1 and parameters_of(passed, "test_absent") == [["2"]]
        assert not parameters_of(passed, "test_formula")
    else:
        dtypes, counts = zip(*sizes, strict=True)
        assert {*dtypes} == {"float16", "float32", "float64"} and {*counts} == {*"01234"}
        assert len(sizes) < 15
        assert len(parameters_of(passed, "test_formula")) == 3
    assert outcomes() == (passed, skipped), "the same again"


@pytest.mark.parametrize(
    ("arguments", "count", "skips"),
    [
        ([f"{LONG.replace('long', 'ways')}[eagerly-3x1]", LONG], 2, False),
        ([LONG.replace("long", "ways"), "unit/test_version_independent.py"], 6 + 3, False),
        (["multi_worker/test_workers.py"], 6 + 2 + 1 + 3, False),
        (["multi_worker"], 3, True),
        (["--sample", "multi_worker/test_workers.py"], 3, True),
        (["-k", "ways and eagerly and 3x1"], 1, False),
        (["-k", "long or formula or float32"], 1 + 3 + 5, False),
        (["-m", "slow"], 1, False),
    ],
    ids=str,
)
def test_what_is_selected_by_hand_runs_and_of_folders_a_sample(
    outcomes, is_keras_2, arguments, count, skips
):
    passed, skipped = outcomes(*arguments)
    assert (len(passed), skipped) == (count, [LONG] * skips)


def test_slow_runs_everything(outcomes, is_keras_2):
    passed, skipped = outcomes("--slow")
    assert len(passed) + len(skipped) == 6 + 2 + 1 + 3 + 15 + 2 + 3
    assert skipped == (["unit/test_unit.py::test_absent[1]"] if is_keras_2 else [])
