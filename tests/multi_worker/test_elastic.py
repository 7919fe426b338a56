"""A training that is saved on some replicas goes on with on fewer or more, from every form."""

import pytest

pytest.importorskip("keras", minversion="3")  # Keras 2 backs up all workers by itself

from scenarios import elastic as scenarios


@pytest.mark.parametrize("group", ["1x4"], indirect=True, scope="module")
@pytest.mark.parametrize(
    ("kind", "saved_on", "restored_on"),
    [("adacons", 2, 1), ("adacons", 2, 3), ("adacons", 2, 2), ("adascale", 2, 4), ("delta", 3, 2)],
)
def test_goes_on(group, kind, saved_on, restored_on, tmp_path):
    options = {"saved_on": saved_on, "restored_on": restored_on, "folder": str(tmp_path)}
    (actual,) = group.run(scenarios.change_replicas, kind=kind, **options)
    for form in scenarios.FORMS:
        assert actual[f"{form} same"], form
        assert actual[f"{form} iterations"] == 2, form
        assert actual[f"{form} finite"], form
        is_anew = kind == "adacons" and actual[f"{form} state"] and saved_on != restored_on
        assert actual[f"{form} anew"] == is_anew, form
        assert actual[f"{form} all same"] or saved_on != restored_on, form
        if kind == "adascale":
            assert actual[f"{form} scale"] == restored_on, form
