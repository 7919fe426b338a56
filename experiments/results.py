"""Finished runs, one JSON line each: appended, never changed."""

import json
import pathlib


def key_of(case):
    """Return the key of a case, which does not depend on the order of its fields."""
    return json.dumps(case, sort_keys=True)


class Results:
    """The finished runs of an experiment.

    Args:
        path: the file. A last line that was cut off, by a kill while it was written, is dropped.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.seconds = 0.0
        self._found = {}
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        if lines and not lines[-1].endswith("\n"):
            self.path.write_text("".join(lines := lines[:-1]))
        for line in lines:
            self._remember(json.loads(line))

    def _remember(self, line):
        self.seconds += line["seconds"]
        self._found[key_of(line["case"])] = line["result"]

    def __len__(self):
        """Return how many there are."""
        return len(self._found)

    def __contains__(self, case):
        """Whether a case is finished."""
        return key_of(case) in self._found

    def __getitem__(self, case):
        """Return the result of a case."""
        return self._found[key_of(case)]

    def append(self, case, result, seconds):
        """Keep one more, on the disk first."""
        line = {"case": dict(case), "seconds": round(seconds, 2), "result": result}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._remember(line)
