"""The registry of hooks, on a class of our own."""

import inspect

import pytest

from tf_adasum.compat.hooks import Hooks


def owner():
    class Owner:
        def double(self, number, offset=0):
            """Doubles."""
            return 2 * number + offset

    return Owner


def with_two_hooks(cls):
    hooks = Hooks("a class")

    @hooks.replaces(cls, "double", outermost=True)
    def outer(original, self, number, **kwargs):
        """Is around the other one."""
        return f"outer({original(self, number, **kwargs)})"

    @hooks.replaces(cls, "double")
    def inner(original, self, number, **kwargs):
        """Is inside."""
        return f"inner({original(self, number, **kwargs)})"

    return hooks


def test_a_hook_runs_instead_and_can_call_the_original():
    cls = owner()
    hooks = with_two_hooks(cls)
    assert cls().double(3) == 6, "nothing is replaced before it is installed"
    hooks.install()
    assert cls().double(3, offset=1) == "outer(inner(7))"


def test_installing_again_changes_nothing():
    cls = owner()
    with_two_hooks(cls).install()
    once = cls.double
    with_two_hooks(cls).install()  # the same hooks, as of a module that is executed again
    assert cls.double is once


def test_a_replaced_function_still_looks_like_the_original():
    cls = owner()
    original = cls.double
    with_two_hooks(cls).install()
    assert (cls.double.__name__, cls.double.__doc__) == ("double", "Doubles.")
    assert cls.double.__module__ == original.__module__, "which AutoGraph goes by"
    assert inspect.signature(cls.double) == inspect.signature(original)
    assert inspect.unwrap(cls.double) is original


def test_iterating_gives_target_reason_and_source():
    cls = owner()
    outer, inner = with_two_hooks(cls)
    assert inner.target == f"{__name__}.owner.<locals>.Owner.double"
    assert (outer.reason, inner.reason) == ("Is around the other one.", "Is inside.")
    assert inner.source == f"{__name__}.with_two_hooks.<locals>.inner"


def test_one_function_for_several_names_and_owners():
    first, second = owner(), owner()
    second.triple = lambda self, number: 3 * number
    hooks = Hooks("two classes")

    @hooks.replaces(first, "double")
    @hooks.replaces(second, "double", "triple")
    def negative(original, self, number):
        """Changes the sign."""
        return -original(self, number)

    hooks.install()
    assert (first().double(2), second().double(2), second().triple(2)) == (-4, -4, -6)
    assert len(list(hooks)) == 3


def test_an_override_is_listed_and_not_installed():
    cls = owner()
    original = cls.double
    hooks = Hooks("a class")

    class Derived(cls):
        @hooks.overrides(cls)
        def double(self, number, offset=0):
            """Quadruples."""
            return 2 * super().double(number, offset)

    hooks.install()
    (hook,) = hooks
    assert cls.double is original and Derived().double(1) == 4
    assert (hook.name, hook.reason, hook.is_override) == ("double", "Quadruples.", True)


def test_a_function_that_has_gone_is_named():
    hooks = Hooks("a class")
    hooks.replaces(owner(), "treble")(lambda original: None)
    with pytest.raises(ImportError, match=r"a class lacks functions .*Owner\.treble"):
        hooks.install()
