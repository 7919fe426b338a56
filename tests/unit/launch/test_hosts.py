"""Workers on several hosts; `ssh` is a program that starts a shell on this machine."""

import json
import os
import re
import sys

import pytest
from support.launching import run

from tf_adasum.launch import hosts
from tf_adasum.launch.nodes import Host, parse_hosts

# Everything that a host knows is what the program's input gives to it.
SSH = """#!/bin/sh
for command; do :; done
case "$*" in
  *-oBatchMode=yes*" -- closed "*) echo "ssh: connect to host closed: refused" >&2; exit 255 ;;
  *-oBatchMode=yes*" -- bare "*) command=$(echo "$command" | sed 's/exec [^ ]*/exec no-python/') ;;
  *-oBatchMode=yes*" -- "[a-d]" "*) ;;
  *) echo "no such host: $*" >&2; exit 255 ;;
esac
echo a banner without an end | tr -d '\\n'; echo
exec env -i PATH="$PATH" SSH_CONNECTION="10.0.0.1 1 127.0.0.1 22" \\
    TF_ADASUM_SECRET_FILE=of_this_host sh -c "$command"
"""
TELL = """
names = ("RANK", "WORLD_SIZE", "COORDINATOR", "SECRET")
told = [os.environ["TF_ADASUM_" + name] for name in names]
others = subprocess.run("cat /proc/[0-9]*/cmdline", shell=True, capture_output=True).stdout
is_hidden = told[3].encode() not in others and "TF_ADASUM_SECRET_FILE" not in os.environ
print(json.dumps([*told, is_hidden, os.environ["COLOUR"], os.getcwd(), sys.argv[1:]]))
"""


@pytest.fixture
def environment(tmp_path):
    """The environment in which `ssh` is this program."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ssh"
    program.write_text(SSH)
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    own = {"PATH": path, "COLOUR": "é 'x'", "CUDA_VISIBLE_DEVICES": "0,1,2", "HOME": "/here"}
    return os.environ | own


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:4, b", [Host("a", 4), Host("b")]),
        ("me@a.b-c_d:1", [Host("me@a.b-c_d", 1)]),
        ("[fd00::7%eth0]:3,10.0.0.7", [Host("fd00::7%eth0", 3), Host("10.0.0.7")]),
    ],
)
def test_hosts_are_read(text, expected):
    assert parse_hosts(text) == expected


@pytest.mark.parametrize(
    "text", ["", "a,", "a:0", "a:-1", "a:x", "a:", ":4", "a b", "a,a:2", "fd00::7", "-oX=y", "-a@b"]
)
def test_hosts_that_cannot_be_used_are_refused(text):
    with pytest.raises(ValueError, match="--hosts"):
        parse_hosts(text)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--hosts", "a:1,b:2"], [1, 2]),
        (["-H", "a,b:1", "-np", "2"], [2, 1]),
        (["--hosts", "a,b", "--devices-per-worker", "2"], [1, 1]),
    ],
)
def test_workers_of_all_hosts_have_ranks_and_a_secret(
    script, environment, tmp_path, options, count
):
    path = script(TELL)
    ended = run(*options, path, "--a", "b c", env=environment, cwd=tmp_path)
    lines = sorted(line for line in ended.stdout.splitlines() if line.startswith("[worker"))
    assert (ended.returncode, len(lines)) == (0, sum(count)), ended.stdout + ended.stderr
    told = [json.loads(line.partition("] ")[2]) for line in lines]
    coordinator, secret, *rest = told[0][2:]
    assert told == [
        [str(rank), str(sum(count)), coordinator, secret, *rest] for rank in range(sum(count))
    ]
    assert coordinator.startswith("127.0.0.1:") and len(secret) == 64
    assert rest == [True, "é 'x'", str(tmp_path), ["--a", "b c"]]


def test_hosts_receive_the_environment_without_that_of_the_session(tmp_path):
    (tmp_path / "secret").write_text("of all hosts\n")
    session = {"HOME": "/here", "SSH_CONNECTION": "a", "SLURM_PROCID": "0", "TMPDIR": "/t"}
    given = {"TF_ADASUM_SECRET_FILE": str(tmp_path / "secret"), "WANDB_API_KEY": "k", **session}
    expected = {"TF_ADASUM_SECRET": "of all hosts", "WANDB_API_KEY": "k"}
    assert hosts._environment(given) == expected


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(3 * int(os.environ['TF_ADASUM_RANK']))", 3),
        ("sys.exit(75)", 75),
    ],
)
def test_the_exit_code_is_that_of_the_workers(script, environment, program, code):
    ended = run("--hosts", "a:1,b:1", script(program), env=environment)
    assert ended.returncode == code, ended.stderr
    assert ("host b: exited with status 3" in ended.stderr) == (code == 3)


@pytest.mark.parametrize(
    ("names", "settings", "named"),
    [
        ("a:1,closed:1", {}, r"by ssh: closed \(ssh: connect to host closed: refused\)"),
        ("a:1,bare:1", {}, f"cannot start workers: bare .*no-python.*{sys.executable}"),
        ("a:1,b:1", {"TF_ADASUM_SSH": "no-ssh -v"}, "--hosts needs OpenSSH's client"),
        ("a:1,b:1", {"TF_ADASUM_SECRET": ""}, "empty secret"),
    ],
)
def test_a_host_that_cannot_be_used_is_named_and_nothing_starts(
    script, environment, tmp_path, names, settings, named
):
    path = script("open('started', 'w')")
    ended = run("--hosts", names, path, env=environment | settings, cwd=tmp_path)
    assert ended.returncode == 2
    assert re.search(named, ended.stderr), ended.stderr
    assert not (tmp_path / "started").exists()


def test_an_error_of_a_host_names_it(script, environment):
    ended = run("--hosts", "a:1,b:4", "--devices-per-worker", "1", script(""), env=environment)
    assert ended.returncode == 2
    assert "host b: -n / --devices-per-worker: expected 4 GPUs" in ended.stderr
