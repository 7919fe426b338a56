"""What a compiled library needs of the system: which versions, and which other libraries."""

import re
import subprocess

# glibc 2.28 and GCC 8, as manylinux_2_28 has them.
NEWEST = {"GLIBC": "2.28", "GLIBCXX": "3.4.25", "CXXABI": "1.3.11", "GCC": "7.0.0"}
VERSION = re.compile(r"\((GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)\)")
# Of TensorFlow's own wheels; the system has the others.
OTHERS = {"libtensorflow_framework.so.2"}
SYSTEM = {
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libstdc++.so.6",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}


def numbers(version):
    return [int(number) for number in version.split(".")]


def too_young(table):
    """The versions in the output of `objdump -T` that RHEL 8 does not have."""
    found = set(VERSION.findall(table))
    return {each for each in found if numbers(each[1]) > numbers(NEWEST[each[0]])}


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def check(library):
    """Check that RHEL 8 has all that a library asks for."""
    table = output("objdump", "-T", str(library))
    assert "(GLIBC_2." in table
    assert not too_young(table)
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", str(library))))
    assert "libdl.so.2" in needed, "before glibc 2.34 that is where dlopen is"
    assert needed <= SYSTEM | OTHERS
