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
SCRIPT = "def main():\n    return call_site.of_thread(None)\n\nwhere = main()\n"
SPINNING = "def spin(started, done):\n    started.append(1)\n    while not done:\n        pass\n"


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
    """The thread is in a function as of the package, which the test calls."""
    path = os.path.join(os.path.dirname(PACKAGES[package].__file__), "somewhere", "inside.py")
    names, started, done = {}, [], []
    exec(compile(SPINNING, path, "exec"), names)

    def users_function():
        names["spin"](started, done)

    thread = threading.Thread(target=users_function)
    thread.start()
    while not started:
        pass
    try:
        signature, place = call_site.of_thread(thread.ident)
    finally:
        done.append(1)
        thread.join()
    assert re.fullmatch(r"test_call_site\.py:\d+ \(users_function\)", place)
    assert (signature is not None) == (package == "tensorflow")


@pytest.mark.parametrize("package", ["tensorflow", "keras"])
def test_a_package_that_waits_for_a_thread(package):
    """As TensorFlow does for eager reductions, in a pool of threads."""
    path = os.path.join(os.path.dirname(PACKAGES[package].__file__), "somewhere", "inside.py")
    names, done = {}, threading.Event()
    exec(compile("def wait(done):\n    done.wait()\n", path, "exec"), names)
    thread = threading.Thread(target=names["wait"], args=[done])
    thread.start()
    while not done._cond._waiters:
        pass
    try:
        signatures = {call_site.of_thread(thread.ident)[0] for _ in range(3)}
    finally:
        done.set()
        thread.join()
    assert len(signatures) == 1
    assert (None not in signatures) == (package == "tensorflow")


@pytest.mark.parametrize("package", ["tensorflow", "keras"])
def test_a_reduction_that_waits_for_a_thread_of_this_package(package):
    """This package's file waits; another package's has called it."""
    own, others = (
        os.path.join(os.path.dirname(PACKAGES[name].__file__), "somewhere", "inside.py")
        for name in ("tf_adasum", package)
    )
    names, done = {}, threading.Event()
    exec(compile("def wait(done):\n    done.wait()\n", own, "exec"), names)
    exec(compile("def call(wait, done):\n    wait(done)\n", others, "exec"), names)
    thread = threading.Thread(target=names["call"], args=[names["wait"], done])
    thread.start()
    while not done._cond._waiters:
        pass
    try:
        signature, _ = call_site.of_thread(thread.ident)
    finally:
        done.set()
        thread.join()
    assert (signature is not None) == (package == "tensorflow")


def test_packages_that_are_not_imported(monkeypatch):
    for package in ("tensorflow", "wrapt"):
        monkeypatch.delitem(sys.modules, package, raising=False)
    assert call_site.of_thread(None)[1].startswith("test_call_site.py:")
