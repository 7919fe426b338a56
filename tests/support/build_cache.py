"""What tests compile, once for all processes and runs: in build/tests, anew if a source changes."""

import fcntl
import hashlib
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "tests"


def built_once(name, sources, options, build) -> Path:
    """Return the folder of a build; the first caller builds it, others wait.

    Args:
        name: the name of the build.
        sources: the folders and files that it depends on.
        options: list of str, what it depends on besides, such as flags and versions.
        build: function that builds in the folder that it receives.
    """
    files = [file for source in map(Path, sources) for file in [source, *source.rglob("*")]]
    digest = hashlib.sha256(repr(options).encode())
    for file in sorted(files):
        if file.is_file() and file.parent.name != "__pycache__":
            digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    folder = FOLDER / name / digest.hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
            build(unfinished)
            unfinished.rename(folder)
    return folder
