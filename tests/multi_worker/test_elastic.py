"""A training that is saved on some replicas goes on with on any number of them, from every form."""

import pytest

pytest.importorskip("keras", minversion="3")  # Keras 2 backs up all workers by itself

from golden import saved_by_an_earlier_version
from scenarios import elastic as scenarios


@pytest.mark.parametrize("group", ["1x4"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "saved_on", "restored_on"),
    [
        *(("adacons", 2, now) for now in (1, 3, 2)),
        *(("adascale", 2, now) for now in (4, 2)),
        *(("delta", 3, now) for now in (2, 3)),
        ("lamb", 2, 2),
    ],
)
def test_goes_on(group, kind, saved_on, restored_on, tmp_path):
    options = {"saved_on": saved_on, "restored_on": restored_on, "folder": str(tmp_path)}
    (actual,) = group.run(scenarios.change_replicas, kind=kind, **options)
    is_reset = kind in ("adacons", "delta") and saved_on != restored_on  # the state of AdaCons
    for form in saved_by_an_earlier_version.FORMS:
        assert actual[f"{form} same"], form
        assert actual[f"{form} iterations"], form
        assert actual[f"{form} finite"], form
        assert actual[f"{form} anew"] == is_reset, form
        if saved_on == restored_on:
            assert actual[f"{form} all same"], form
            # Only a backup has the slots of all replicas.
            assert actual[f"{form} end"] or (kind == "delta" and form != "backup"), form
        if kind == "adascale":
            assert actual[f"{form} scale"] == restored_on, form
