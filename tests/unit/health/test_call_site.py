"""Where a thread is in the user's program, wherever that lies."""

import os
import re
import runpy
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_adasum
from tf_adasum.health import call_site

PACKAGES = {"tensorflow": tf, "keras": keras, "tf_adasum": tf_adasum, "numpy": np}
WAIT = "def f(done):\n    done.wait()\n"
SCRIPT = "def main():\n    return call_site.of_thread(None)\n\nwhere = main()\n"


def function_of(package, code):
    """Compile a function `f` as if it were in a file of a package."""
    path = os.path.join(os.path.dirname(PACKAGES[package].__file__), "somewhere", "inside.py")
    names = {}
    exec(compile(code, path, "exec"), names)
    return names["f"]


def places_of(target, *arguments):
    """Return what is found, three times, of a thread in a function that waits for an event."""
    done = threading.Event()
    thread = threading.Thread(target=target, args=[*arguments, done])
    thread.start()
    while not done._cond._waiters:
        pass
    found = [call_site.of_thread(thread.ident) for _ in range(3)]
    done.set()
    thread.join()
    return found


def test_the_main_thread():
    signature, place = call_site.of_thread(None)
    assert re.fullmatch(r"test_call_site\.py:\d+ \(test_the_main_thread\)", place)
    assert signature is None


def test_a_thread_that_has_ended():
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert call_site.of_thread(thread.ident) == (None, "")


@pytest.mark.parametrize("folder", PACKAGES)
def test_a_script_below_a_folder_of_a_packages_name(tmp_path, folder):
    path = tmp_path / folder / "experiments" / "train.py"
    path.parent.mkdir(parents=True)
    path.write_text(SCRIPT)
    where = runpy.run_path(str(path), {"call_site": call_site})["where"]
    assert where == (None, "train.py:2 (main)")


@pytest.mark.parametrize("package", PACKAGES)
def test_frames_of_a_package_are_passed_over(package):
    """The user's function calls a function of the package, which waits for a thread; or none does.

    TensorFlow does so for eager reductions, in a pool of threads.
    """
    wait = function_of(package, WAIT)

    def users_function(done):
        wait(done)

    users_place = r"test_call_site\.py:\d+ \(users_function\)"
    for target, expected in ((users_function, users_place), (wait, "")):
        ((signature, place),) = set(places_of(target))
        assert re.fullmatch(expected, place)
        assert (signature is not None) == (package == "tensorflow")


@pytest.mark.parametrize("package", ["tensorflow", "keras"])
def test_a_reduction_that_waits_for_a_thread_of_this_package(package):
    """This package's file waits; another package's has called it."""
    wait = function_of("tf_adasum", WAIT)
    call = function_of(package, "def f(wait, done):\n    wait(done)\n")
    signature, _ = places_of(call, wait)[0]
    assert (signature is not None) == (package == "tensorflow")


def test_packages_that_are_not_imported(monkeypatch):
    for package in ("tensorflow", "wrapt"):
        monkeypatch.delitem(sys.modules, package, raising=False)
    assert call_site.of_thread(None)[1].startswith("test_call_site.py:")
