"""A file system with one file, whose reads fail as it is told, whoever reads: a process of its own
that answers the kernel's FUSE. Needs /dev/fuse and the right to mount; else Skip.

    with BadDisk(folder, source, plan) as path: ...

`plan(number, direct, offset, bytes)`: how the number-th read (0, 1, 2, ...) of what is past the
page cache (direct), or of what is not, ends: None as it should, or -errno. (Less than was asked for
would tell the kernel that the file ends there.)
"""
import ctypes
import errno
import os
import signal
import stat
import struct
import sys

from harness import Skip

ROOT_NODE, FILE_NODE = 1, 2
NAME = "model.gguf"
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, BATCH_FORGET = 1, 2, 3, 14, 15, 18, 25, 26, 42
REQUEST_BYTES = 1 << 20
MNT_DETACH, MS_NODEV, MS_NOSUID = 2, 4, 2
libc = ctypes.CDLL(None, use_errno=True)


class Server:
    def __init__(self, device, source, plan):
        self.device, self.plan = device, plan
        self.file = os.open(source, os.O_RDONLY)
        self.status = os.fstat(self.file)
        self.reads = {False: 0, True: 0}

    def attributes(self, node):
        size = self.status.st_size if node == FILE_NODE else 0
        mode = stat.S_IFREG | 0o444 if node == FILE_NODE else stat.S_IFDIR | 0o555
        when = int(self.status.st_mtime)
        return struct.pack("<6Q10I", node, size, -(-size // 512), when, when, when, 0, 0, 0, mode, 1,
                           0, 0, 0, 4096, 0)

    def read(self, body):
        _, offset, size, _, _, flags = struct.unpack_from("<QQIIQI", body)
        direct = flags & os.O_DIRECT != 0
        end = self.plan(self.reads[direct], direct, offset, size)
        self.reads[direct] += 1
        return os.pread(self.file, size, offset) if end is None else -end

    def answer(self, code, node, body):
        """Bytes, or the number of an error, or None: nobody waits."""
        if code == INIT:
            return struct.pack("<4IHHIIHHI28x", 7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 0, 0, 0)
        if code == LOOKUP and body.rstrip(b"\0").decode() == NAME:
            return struct.pack("<4QII", FILE_NODE, 0, 3600, 3600, 0, 0) + self.attributes(FILE_NODE)
        if code == LOOKUP:
            return errno.ENOENT
        if code == GETATTR:
            return struct.pack("<QII", 3600, 0, 0) + self.attributes(node)
        if code == OPEN:
            return struct.pack("<QII", 1, 0, 0)
        if code == READ:
            return self.read(body)
        if code in (RELEASE, FLUSH):
            return b""
        return None if code in (FORGET, BATCH_FORGET) else errno.ENOSYS

    def serve(self):
        while True:
            try:
                request = os.read(self.device, REQUEST_BYTES)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                return
            _, code, unique, node = struct.unpack_from("<IIQQ", request)
            answer = self.answer(code, node, request[40:])
            if answer is None:
                continue
            wrong, data = (answer, b"") if isinstance(answer, int) else (0, answer)
            try:
                os.write(self.device, struct.pack("<IiQ", 16 + len(data), -wrong, unique) + data)
            except OSError as error:
                if error.errno != errno.ENOENT:  # who asked has gone
                    return


class BadDisk:
    def __init__(self, folder, source, plan):
        self.folder, self.source, self.plan = folder, source, plan
        self.child = None

    def __enter__(self):
        try:
            device = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            raise Skip(f"no /dev/fuse: {error.strerror}") from None
        self.folder.mkdir(exist_ok=True)
        options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        if libc.mount(b"bad", os.fsencode(self.folder), b"fuse", MS_NODEV | MS_NOSUID,
                      options.encode()) != 0:
            os.close(device)
            raise Skip(f"nothing can be mounted: {os.strerror(ctypes.get_errno())}")
        sys.stdout.flush()
        self.child = os.fork()
        if self.child == 0:
            try:
                Server(device, self.source, self.plan).serve()
            finally:
                os._exit(0)
        os.close(device)
        return self.folder / NAME

    def __exit__(self, *what):
        libc.umount2(os.fsencode(self.folder), MNT_DETACH)
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)
