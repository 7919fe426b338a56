"""The registry of hooks, on a class of our own."""

import inspect

from tf_adasum.compat.hooks import Hooks


def test_a_hook_runs_instead_can_call_the_original_and_looks_like_it():
    class Owner:
        def double(self, number, offset=0):
            """Doubles."""
            return 2 * number + offset

    hooks, original = Hooks("a class"), Owner.double

    @hooks.replaces(Owner, "double")
    def inner(original, self, number, **kwargs):
        return f"inner({original(self, number, **kwargs)})"

    @hooks.replaces(Owner, "double")
    def outer(original, self, number, **kwargs):
        return f"outer({original(self, number, **kwargs)})"

    assert Owner.double is original, "nothing is replaced before it is installed"
    hooks.install()
    assert Owner().double(3, offset=1) == "outer(inner(7))"
    assert (Owner.double.__name__, Owner.double.__doc__) == ("double", "Doubles.")
    assert Owner.double.__module__ == original.__module__, "which AutoGraph goes by"
    assert inspect.signature(Owner.double) == inspect.signature(original)
    once = Owner.double
    hooks.install()
    assert Owner.double is once and inspect.unwrap(once) is original
