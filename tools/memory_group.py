"""A memory control group for tests and measurements: what runs in it can take so much RAM, its
page cache included, and not more."""
import os
from pathlib import Path


class MemoryGroup:
    """Version 1 or 2, whichever can be made; None in `path` if none can, and `why` says why."""

    def __init__(self, suffix=""):
        name = f"moepager-test-{os.getpid()}{suffix}"
        self.path, self.why = None, []
        for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                            ("/sys/fs/cgroup", "memory.max")):
            path = Path(root, name)
            try:
                path.mkdir()
            except OSError as error:
                self.why.append(f"{path}: {error.strerror}")
                continue
            if (path / limit).exists():
                self.path, self.limit = path, path / limit
                return
            path.rmdir()
            self.why.append(f"{path}: no {limit}")

    def set_limit(self, limit_bytes):
        self.limit.write_text(str(limit_bytes))

    def enter(self):
        """For preexec_fn: the calling process and its children are in the group from here on."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        if self.path is not None:
            self.path.rmdir()
