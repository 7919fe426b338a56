"""The first of Slurm's lists of nodes, as `scontrol show hostnames` of Slurm 22.05 prints them.

It refuses names that go on after one bracket, which newer ones may write.
"""

import pytest

from tf_adasum.cluster.detection import first_node


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", "localhost"),
        ("n[10,2]", "n10"),
        ("gpu[001-003,7]-ib,login1", "gpu001-ib"),
        ("a[09-11]", "a09"),
        ("rack[0-1]node[1-2]", "rack0node1"),
        ("a.b-c,d_e", "a.b-c"),
        ("a,b[1],c", "a"),
    ],
)
def test_the_first_node(text, expected):
    assert first_node(text, "LIST") == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "a,", ",a", "a,,b", "n[", "n[1", "n]", "n[]", "n[1-]", "n[-1]", "n[a]", "a b"),
    ],
)
def test_what_is_no_list(text):
    with pytest.raises(ValueError, match="LIST: a list of nodes"):
        first_node(text, "LIST")
