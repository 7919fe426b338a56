"""The registry of hooks, on a class of our own."""

import inspect

from tf_adasum.compat.hooks import Hooks


def owner():
    class Owner:
        def double(self, number, offset=0):
            """Doubles."""
            return 2 * number + offset

    return Owner


def with_two_hooks(cls):
    hooks = Hooks("a class")

    @hooks.replaces(cls, "double")
    def inner(original, self, number, **kwargs):
        """Is inside."""
        return f"inner({original(self, number, **kwargs)})"

    @hooks.replaces(cls, "double")
    def outer(original, self, number, **kwargs):
        """Is around the other one."""
        return f"outer({original(self, number, **kwargs)})"

    return hooks


def test_a_hook_runs_instead_can_call_the_original_and_looks_like_it():
    cls = owner()
    original, hooks = cls.double, with_two_hooks(cls)
    assert cls.double is original, "nothing is replaced before it is installed"
    hooks.install()
    assert cls().double(3, offset=1) == "outer(inner(7))"
    assert (cls.double.__name__, cls.double.__doc__) == ("double", "Doubles.")
    assert cls.double.__module__ == original.__module__, "which AutoGraph goes by"
    assert inspect.signature(cls.double) == inspect.signature(original)
    once = cls.double
    hooks.install()
    assert cls.double is once and inspect.unwrap(once) is original


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
    original, hooks = cls.double, Hooks("a class")

    @hooks.overrides("double")
    class Derived(cls):
        def double(self, number, offset=0):
            """Quadruples."""
            return 2 * super().double(number, offset)

    hooks.install()
    (hook,) = hooks
    assert cls.double is original and Derived().double(1) == 4
    assert (hook.owner, hook.name, hook.is_override) == (cls, "double", True)
