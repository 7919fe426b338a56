"""Slurm's lists of nodes, as `scontrol show hostnames` of Slurm 22.05 prints them.

It refuses names that go on after one bracket, which newer ones may write.
"""

import itertools

import pytest

from tf_adasum.cluster.node_lists import nodes

pytestmark = pytest.mark.version_independent


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", ["localhost"]),
        ("n[2,10]", ["n2", "n10"]),  # not in the order of texts
        ("n[10,2]", ["n10", "n2"]),
        ("gpu[001-003,7]-ib,login1", ["gpu001-ib", "gpu002-ib", "gpu003-ib", "gpu7-ib", "login1"]),
        ("a[9-11]", ["a9", "a10", "a11"]),
        ("a[09-11]", ["a09", "a10", "a11"]),
        ("rack[0-1]node[1-2]", ["rack0node1", "rack0node2", "rack1node1", "rack1node2"]),
        ("a.b-c,d_e", ["a.b-c", "d_e"]),
        ("a,b[1],c", ["a", "b1", "c"]),
    ],
)
def test_nodes(text, expected):
    assert list(nodes(text)) == expected


def test_the_first_of_very_many_is_there_at_once():
    assert list(itertools.islice(nodes("n[1-9999999999]"), 2)) == ["n1", "n2"]


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "a,", ",a", "a,,b", "n[", "n[1", "n]", "n[]", "n[1-]", "n[-1]", "n[a]", "a b"),
        *("n[5-1]", "n[1,5-1]", "n[1-2]m[5-1]", "n[1],m[5-1]"),  # the last one before the first
        *(f"n[{'1' * 19}]", f"n[1-{'1' * 5000}]"),
    ],
)
def test_what_is_no_list(text):
    with pytest.raises(ValueError, match="a list of nodes"):
        nodes(text)
