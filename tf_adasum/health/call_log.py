"""The log of the calls that this worker makes together with the other workers.

An entry is, for example, a call of `fit`, an epoch, a new variable or an exchange of numbers. All
workers run the same program, so entry number n is the same on all workers. Each worker sends its
last entries with its status. If entry n differs between two workers, the workers run different
programs, and each of the two workers detects this at once. Standard library only.
"""

import collections
import contextlib
import json
import threading
import typing
import zlib
from collections.abc import Iterator

# KEPT: how many entries a worker keeps, to compare them with a worker that is behind. SENT: a
# worker sends this many of its last entries, and also this many of its last entries whose name
# differs from the name of the entry before.
KEPT, SENT = 4096, 8

_LONGEST_NAME = 160

_NUMBERS_OF_A_CALL = 1 << 24


class Entry(typing.NamedTuple):
    """One entry of the log.

    Attributes:
        number: the number of the entry, from 1 on.
        chain: a hash of all entries up to this one.
        name: what the worker does, such as "calls fit". Messages write it after "worker 0".
    """

    number: int
    chain: int
    name: str


class CallLog:
    """The log of one worker. Several threads may use it at the same time."""

    def __init__(self) -> None:
        self._entries: collections.deque[Entry] = collections.deque(maxlen=KEPT)
        self._changes: collections.deque[Entry] = collections.deque(maxlen=SENT)
        self._lock = threading.Lock()
        # For each thread, the running calls: the first one contains the second, etc.
        self._calls: dict[int, list[str]] = {}
        self._left = ""  # the last call that has ended

    def note(self, name: str, same: str | None = None) -> None:
        """Add an entry.

        Args:
            name: what this worker does, such as "calls fit".
            same: the text that has to be the same on all workers. Defaults to `name`.
        """
        with self._lock:
            last = self._entries[-1] if self._entries else Entry(0, 0, "")
            chain = zlib.crc32((name if same is None else same).encode(), last.chain)
            entry = Entry(last.number + 1, chain, name[:_LONGEST_NAME])
            self._entries.append(entry)
            if entry.name != last.name:
                self._changes.append(entry)

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Return a context manager for a call that all workers make, such as "fit"."""
        thread = threading.get_ident()
        calls = self._calls.setdefault(thread, [])
        calls.append(name)
        self.note(f"calls {' within '.join(reversed(calls))}")
        try:
            yield
        finally:
            self._left = calls.pop()
            if not calls:
                del self._calls[thread]

    def epoch(self, number: int) -> None:
        """Add an entry for an epoch that begins in the innermost call; `number` counts from 1."""
        calls = self._calls.get(threading.get_ident())
        name = calls[-1].partition(", ")[0] if calls else "a training"
        if calls:
            calls[-1] = f"{name}, epoch {number}"
        self.note(f"begins epoch {number} of {name}")

    def doing(self) -> str:
        """Return what this worker does now, such as "in fit, epoch 2"; "" before the first call."""
        for calls in list(self._calls.values()):  # of the thread that began first
            return f"in {' within '.join(reversed(calls))}"
        return f"after {self._left}" if self._left else ""

    def begin_anew(self, call: int) -> None:
        """Remove all entries after an exception, because other workers may have other entries.

        Args:
            call: the number of the call that begins, which is the same on all workers.
        """
        with self._lock:
            self._entries.clear()
            self._changes.clear()
            self._entries.append(Entry(call * _NUMBERS_OF_A_CALL, 0, "begins another call"))

    def to_send(self) -> str:
        """Return the last entries as text."""
        with self._lock:
            entries = list(self._entries)[-SENT:]
            changes = [each for each in self._changes if each not in entries]
        entries = changes + entries
        return json.dumps(entries)

    def first_difference(self, sent: str) -> tuple[Entry, Entry] | None:
        """Return the first entry that differs between this worker and another worker.

        Args:
            sent: the result of `to_send` on the other worker.

        Returns:
            This worker's entry and the other worker's entry of the same number. None if the
            entries with the same number are equal, or if the two workers have no entry number in
            common.
        """
        others = parsed(sent)
        with self._lock:
            first = self._entries[0].number if self._entries else 0
            for theirs in others:
                place = theirs.number - first  # the numbers of entries are consecutive
                if 0 <= place < len(self._entries):
                    mine = self._entries[place]
                    if mine.chain != theirs.chain:
                        return mine, theirs
        return None


def parsed(sent: str) -> list[Entry]:
    """Return the entries that another worker has sent; an empty list if the text is not valid."""
    try:
        entries = [Entry(*fields) for fields in json.loads(sent)] if sent else []
    except (ValueError, TypeError, RecursionError):
        return []
    kinds = (int, int, str)
    are_good = all(tuple(map(type, each)) == kinds for each in entries)
    return entries if are_good else []


_log = CallLog()  # the log of this process

note, call, epoch, doing = _log.note, _log.call, _log.epoch, _log.doing
begin_anew, to_send, first_difference = (_log.begin_anew, _log.to_send, _log.first_difference)
