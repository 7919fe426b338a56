"""Private names of a library that has moved some of them, on modules of our own."""

import sys
import types

import pytest

from tf_adasum.compat.hooks import Hooks
from tf_adasum.compat.library import Absent, Library
from tf_adasum.errors import see

INSTALL = "pip install 'shelf==1.*'"


@pytest.fixture(autouse=True)
def shelf(monkeypatch):
    """A package `shelf` with a module `books`, of which one can ask for names."""
    books = types.ModuleType("shelf.books")
    books.Atlas, books.Novel = type("Atlas", (), {}), type("Novel", (), {"read": lambda self: 3})
    package = types.ModuleType("shelf")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "shelf", package)
    monkeypatch.setitem(sys.modules, "shelf.books", books)
    return books


def library(version="2.5.1"):
    return Library("Shelf", version, INSTALL)


def test_names_that_are_there(shelf):
    own = library()
    assert own.name("shelf.books", "Atlas") is shelf.Atlas
    assert own.name("shelf", "books") is shelf, "a module in a package"
    assert own.name("shelf.maps", "Atlas", also_in=["shelf.books"]) is shelf.Atlas
    assert own.name("shelf.books", "Poem", also_in=["shelf.books:Atlas"]) is shelf.Atlas
    own.check()
    assert own.off == {}


def test_a_missing_name_of_a_feature_only_switches_it_off():
    own = library()
    absent = own.name("shelf.books", "Poem", feature="verses")
    own.name("shelf.books", "Song", feature="verses")
    own.check()
    assert own.off == {"verses": ["shelf.books.Poem", "shelf.books.Song"]}
    assert issubclass(absent, Absent) and not isinstance(3, absent)
    with pytest.raises(NotImplementedError, match=r"Shelf 2.5.1 has no shelf.books.Poem"):
        absent(3)


@pytest.mark.parametrize(("version", "is_off"), [("2.4.9", False), ("2.5.1", True), ("2.10", True)])
def test_a_name_that_is_younger_than_the_library_is_not_missed(version, is_off):
    own = library(version)
    absent = own.name("shelf.books", "Comic", feature="pictures", since="2.5")
    hooks = Hooks("Shelf", own)
    hooks.replaces(absent, "look", feature="pictures")(lambda original: None)
    (hook,) = hooks
    assert (hook.is_there, hook.is_expected) == (False, not is_off)
    assert hook.target == "shelf.books.Comic.look", "as if it were there"
    assert bool(own.off) == bool(hooks.off) == is_off


def test_hooks_name_all_that_has_moved_and_replace_nothing(shelf):
    hooks = Hooks("Shelf", library())
    read = shelf.Novel.read
    for name in ("read", "lend"):
        hooks.replaces(shelf.Novel, name)(lambda original, self: -original(self))

    @hooks.overrides("burn")
    class Own(shelf.Novel):
        def burn(self):
            """Is never called by a library that has another name for it."""

    with pytest.raises(ImportError, match=r"needs: \S*Novel\.lend, \S*Novel\.burn\. ") as raised:
        hooks.install()
    assert str(raised.value).endswith(f"{INSTALL} {see('TFA-103')}")
    assert shelf.Novel.read is read
