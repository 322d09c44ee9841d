# SPDX-License-Identifier: Apache-2.0
"""The log directories of a round's brokers: two each. One of the two is small and fills up; either may fail.

The small one is a tmpfs in a mount namespace of its own, which a process of the test keeps; no root is needed. A
hook in the broker's interpreter makes a directory fail: it refuses appends there with the errors of a broken disk.
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType

from tests.chaos.arena.names import BROKERS

DISK_BYTES = 32 << 20
SMALL = "broker-1"
_MOUNT = 'mount -t tmpfs -o size="$1" none "$0" && echo mounted && exec cat'
_CHUNK_BYTES = 1 << 20
_LONG_BYTES = 8 << 10
"""Retention or the cleaner would often remove a smaller segment before the scrubber finds the flipped bit."""
_HOOK = """
import os
real, broken = os.pwritev, os.environ["BROKEN_DISK"]

def pwritev(descriptor, buffers, position):
    if os.path.exists(broken):
        with open(broken) as file:
            number, _, place = file.read().strip().partition(" ")
        if place and os.readlink(f"/proc/self/fd/{descriptor}").startswith(place):
            raise OSError(int(number), os.strerror(int(number)))
    return real(descriptor, buffers, position)

os.pwritev = pwritev
"""


@contextmanager
def small_disk(directory: Path, size_bytes: int = DISK_BYTES) -> Iterator[int]:
    """Keep a tmpfs mounted there, visible only in its own namespace; returns the process that holds the namespace."""
    directory.mkdir(parents=True)
    keeper = subprocess.Popen(
        ["unshare", "-Urm", "sh", "-c", _MOUNT, str(directory), str(size_bytes)],
        stdin=subprocess.PIPE,  # the keeper ends when this process does
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == "mounted\n"
        yield keeper.pid
    finally:
        keeper.kill()
        keeper.communicate()


def entering(keeper: int) -> tuple[str, ...]:
    """The prefix of a service's command, so that the service sees the small disk."""
    return ("nsenter", "--preserve-credentials", "-U", "-m", "-t", str(keeper))


class Disks:
    """The disks of a round: made before the cluster, deleted after the check of its logs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held = ExitStack()
        self._keeper = -1
        self._broken = directory / "broken-disk"

    def __enter__(self) -> Disks:
        self._keeper = self._held.enter_context(small_disk(self._second(SMALL)))
        for name in BROKERS:
            self._second(name).mkdir(exist_ok=True)
        hook = self._directory / "hook"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(_HOOK)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.close()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of every service."""
        path = os.pathsep.join([str(self._directory / "hook"), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {"PYTHONPATH": path, "BROKEN_DISK": str(self._broken)}

    @property
    def launchers(self) -> dict[str, tuple[str, ...]]:
        """Launchers of services, in the form of a local cluster."""
        return {SMALL: entering(self._keeper)}

    def _second(self, name: str) -> Path:
        return self._directory / f"second-{name}"

    def log_dirs(self, name: str) -> str:
        """Log directories of a broker, as its setting has them."""
        return f"{self._directory / name},{self._second(name)}"

    def seen_from_here(self, name: str) -> list[Path]:
        """The log directories of a broker, as this process sees them."""
        second = self._second(name)
        return [self._directory / name, Path(f"/proc/{self._keeper}/root{second}") if name == SMALL else second]

    @property
    def _ballast(self) -> Path:
        return self.seen_from_here(SMALL)[1] / "ballast"

    def fill(self) -> None:
        """Fill the small disk, so that no space is left."""
        with self._ballast.open("wb", buffering=0) as file:
            size_bytes = _CHUNK_BYTES
            while size_bytes:
                try:
                    file.write(bytes(size_bytes))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size_bytes //= 2

    @property
    def is_full(self) -> bool:
        """Whether the small disk has no space."""
        return self._ballast.exists()

    def make_room(self) -> None:
        """Free the space of the small disk again."""
        self._ballast.unlink()

    def flip_a_bit(self, name: str, chance: random.Random) -> str:
        """Flip a bit in the first half of a sealed segment of a broker.

        Returns the segment, or "" if none is long enough.
        """
        segments = [path for directory in self.seen_from_here(name) for path in sealed_segments(directory)]
        if not segments:
            return ""
        path = chance.choice(segments)
        with path.open("r+b", buffering=0) as file:
            at = chance.randrange(path.stat().st_size // 2)
            file.seek(at)
            [byte] = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))
        return f"{path.parent.name}/{path.name} at byte {at}"

    def break_second(self, name: str) -> None:
        """Appends to a broker's second directory fail."""
        self._broken.write_text(f"{errno.EIO} {self._second(name)}\n")

    def mend(self) -> None:
        """No directory fails any more; a broker opens its offline directory only after a restart."""
        with suppress(FileNotFoundError):
            self._broken.unlink()


def sealed_segments(directory: Path) -> list[Path]:
    """Long segments that the scrubber reads: not the last of a log, which is active, and none of stray logs."""
    logs = [log for log in sorted(directory.glob("*-*")) if log.suffix == ""]
    sealed = [path for log in logs for path in sorted(log.glob("*.log"))[:-1]]
    return [path for path in sealed if path.stat().st_size >= _LONG_BYTES]
