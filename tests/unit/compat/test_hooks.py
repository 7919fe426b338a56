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
