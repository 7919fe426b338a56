"""Find the headers of UCX, which the op needs for collectives over UCX; see ucx/.

The headers are taken from the first of these sources:

1. the folder in `TF_ADASUM_UCX` that contains ucp/api/ucp.h (`0` leaves UCX out);
2. the wheel `libucx-cu12` or `libucx-cu13`, if it is installed in the build environment;
3. the system (Debian's `libucx-dev`).

Without headers, the op is built without these collectives. UCX itself is opened at run time, and
its version may differ from the version of the headers.
"""

import importlib.util
import os
from pathlib import Path

from build_cuda import NotBuilt

VARIABLE = "TF_ADASUM_UCX"
HEADER = "ucp/api/ucp.h"
SYSTEM = ("/usr/include", "/usr/local/include")


def include_folder():
    """Return the folder that holds UCX's headers.

    Raises:
        NotBuilt: if there are no headers; the message names the packages that have them.
        SystemExit: if `TF_ADASUM_UCX` names a folder without headers.
    """
    given = os.environ.get(VARIABLE, "")
    if given == "0":
        raise NotBuilt(f"{VARIABLE}=0")
    if given:
        if not (Path(given) / HEADER).exists():
            raise SystemExit(
                f"tf_adasum: the environment variable {VARIABLE} is expected to be 0 or a folder "
                f"with {HEADER}; Received: {VARIABLE}={given!r}"
            )
        return Path(given).resolve()
    for folder in [*_of_the_wheel(), *map(Path, SYSTEM)]:
        if (folder / HEADER).exists():
            return folder
    raise NotBuilt("there are no headers of UCX (pip install libucx-cu12, or apt's libucx-dev)")


def _of_the_wheel():
    found = importlib.util.find_spec("libucx")
    folders = found.submodule_search_locations if found else []
    return [Path(folder) / "include" for folder in folders]
