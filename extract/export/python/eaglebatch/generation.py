"""A generation's directory: manifest, lease, blobs, and the older generations that its index points to."""

import collections
import errno
import fcntl
import hashlib
import os
import re
import threading

from . import accel
from .blob import Blob
from .errors import CorruptError, EaglebatchError, LeaseError, NewerError
from .files import number, parse_json, real, text, xxh64
from .index import Index

MANIFEST = "MANIFEST.json"
FORMAT = 1
OPEN_BLOBS = 64  # kept open by one generation and process


class Lease:
    """A shared lock on a generation's LEASE file, which keeps gc from deleting it.

    It belongs to the open descriptor: forked workers are covered by it, and it goes with the last of them.
    """

    def __init__(self, directory):
        path = os.path.join(directory, "LEASE")
        self.fd = -1
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            # Without LEASE the directory is a copy that no gc knows; without the directory there is nothing to read.
            os.stat(directory)
            return
        try:
            fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            a, b = os.fstat(self.fd), os.stat(path)
            going = (a.st_dev, a.st_ino) != (b.st_dev, b.st_ino)
        except (BlockingIOError, FileNotFoundError):
            going = True
        if going:
            self.close()
            raise LeaseError(f"{directory}: the generation is being deleted")

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    __del__ = close


def file_hash(path):
    """xxh64 of a file, in hex; None where there is neither xxhash nor the accelerator."""
    if accel.current is None and xxh64 is None:
        return None
    with open(path, "rb") as f:
        pieces = iter(lambda: f.read(1 << 22), b"")
        if accel.current is not None:
            return f"{accel.current.xxh64_pieces(pieces):016x}"
        h = xxh64()
        for piece in pieces:
            h.update(piece)
    return h.hexdigest()


def read_manifest(path):
    """Returns (manifest, checksum)."""
    with open(path, "rb") as f:
        data = f.read()
    body, _, tail = data.rpartition(b',\n  "checksum": "')
    checksum = hashlib.sha256(body).hexdigest()
    if tail != checksum.encode() + b'"\n}\n':
        raise CorruptError(path, "manifest checksum")
    j = parse_json(path, data)
    version = number(path, j, "format", 0, 2**63)
    if version != FORMAT:
        raise NewerError(path, f"manifest format {version}, known is {FORMAT}")
    for key in ("files", "needs"):
        rows = j.get(key)
        if rows is None:
            j[key] = rows = []
        if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
            raise CorruptError(path, f"{key} is not a list of objects")
    return j, checksum


class Generation:
    """An open generation; safe for threads. After a fork each process opens its own blobs."""

    def __init__(self, directory, lease=True, partial=False):
        self.path = os.path.realpath(directory)
        if not os.path.isdir(self.path):
            raise FileNotFoundError(errno.ENOENT, "no such generation", str(directory))
        self._held = Lease(self.path) if lease else None
        self._want_lease = lease
        manifest, plan = os.path.join(self.path, MANIFEST), os.path.join(self.path, "plan.ebi")
        self.sealed = os.path.exists(manifest)
        if self.sealed:
            self._open_sealed(manifest)
        elif not os.path.exists(plan):
            raise EaglebatchError(f"{self.path}: neither {MANIFEST} nor plan.ebi: not a generation")
        elif not partial:
            raise EaglebatchError(f"{self.path}: still being extracted: pass partial=True to read what is there")
        else:
            self.manifest, self.checksum, self._needs = {}, None, None
            self.index = Index(plan)
            # The plan was made before the generation had a number: its directory is called by it.
            name = os.path.basename(self.path)
            if not re.fullmatch(r"[0-9]{6,}", name):
                raise EaglebatchError(f"{self.path}: a generation that is being built is named by its number")
            self.number = int(name)
        m = self.index.meta
        self._agree, self._older = (m.layers, m.hidden_size, m.dtype), {}
        self._fresh()

    def _open_sealed(self, path):
        self.manifest, self.checksum = read_manifest(path)
        for f in self.manifest["files"]:
            name = os.path.join(self.path, os.path.basename(text(path, f, "name")))
            size = number(path, f, "bytes", 0, 2**63)
            try:
                have = os.stat(name).st_size
            except FileNotFoundError:
                raise CorruptError(name, "the file is missing") from None
            if have != size:
                raise CorruptError(name, f"the file has {have} bytes, the manifest says {size}")
        self._needs = {number(path, n, "generation", 0, 0xFFFFFFFF): (text(path, n, "path"), text(path, n, "hash"))
                       for n in self.manifest["needs"]}
        self.index = Index(os.path.join(self.path, "index.ebi"))
        if self.index.generation != number(path, self.manifest, "generation", 0, 0xFFFFFFFF):
            raise CorruptError(self.index.file.path, f"belongs to generation {self.index.generation}")
        self.number = self.index.generation

    def _fresh(self):
        self._lock, self._blobs = threading.RLock(), collections.OrderedDict()
        self._pid = os.getpid()

    def _check_fork(self):
        if self._pid != os.getpid():  # a lock that another thread of the parent held stays locked for ever
            self._fresh()

    @property
    def quantization(self):
        path, out = os.path.join(self.path, MANIFEST), {}
        rows = self.manifest.get("quantization") or []
        if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
            raise CorruptError(path, "quantization is not a list of objects")
        for r in rows:
            out[number(path, r, "layer", 0, 2**31)] = {"rows": number(path, r, "rows", 0, 2**63), **{
                key: float(real(path, r, key)) for key in ("mean_error", "max_error")}}
        return out

    def blob_path(self, no):
        return os.path.join(self.path, f"blob-{no:06d}.ebb")

    def check_file(self, name):
        """The path of a file that the manifest lists, here or in an older generation of the same model that this
        one points to; hashed where that can be done. None if there is none."""
        for f in self.manifest.get("files", []):
            if f["name"] == name:
                path = os.path.join(self.path, name)
                self._check_hash(path, f)
                return path
        for n in self._needs or ():
            g = self.older(n)
            path = g.check_file(name) if g.index.meta.model == self.index.meta.model else None
            if path is not None:
                return path
        return None

    def _check_hash(self, path, f):
        have = file_hash(path)
        if have is not None and have != f.get("hash"):
            raise CorruptError(path, "file checksum")

    def verify(self):
        """Checks all bytes of this generation and of those that it points to."""
        for f in self.manifest.get("files", []):
            self._check_hash(os.path.join(self.path, os.path.basename(f["name"])), f)
        for no in range(self.index.blobs):
            if self.sealed or os.path.exists(self.blob_path(no)):
                self.blob(no).verify()
        for n in self._needs or ():
            self.older(n).verify()

    def older(self, generation):
        """The older generation that positions name by its number."""
        self._check_fork()
        with self._lock:
            if generation not in self._older:
                self._older[generation] = self._open_older(generation)
            return self._older[generation]

    def _open_older(self, generation):
        if self._needs is None:  # still being built: no manifest says more
            return Generation(os.path.join(os.path.dirname(self.path), f"{generation:06d}"), self._want_lease)
        if generation not in self._needs:
            raise CorruptError(self.index.file.path, f"points to generation {generation}, which the manifest lacks")
        path, checksum = self._needs[generation]
        where = os.path.join(self.path, path)
        try:
            g = Generation(where, self._want_lease)
        except FileNotFoundError:
            raise CorruptError(where, f"generation {generation}, which this one points to, is missing") from None
        if g.checksum != checksum:
            raise CorruptError(g.path, "is not the generation that was meant: its manifest has another checksum")
        return g

    def blob(self, no):
        """Own blob no, open."""
        self._check_fork()
        with self._lock:
            b = self._blobs.pop(no, None)
            if b is None:
                b = Blob(self.blob_path(no))
                m = b.meta
                if (m.generation, m.blob) != (self.number, no):
                    raise CorruptError(b.file.path, f"says that it is blob {m.blob} of generation {m.generation}")
                if (m.layers, m.hidden_size, m.dtype) != self._agree:
                    raise CorruptError(b.file.path, "has other layers, hidden size or dtype than its generation")
            self._blobs[no] = b
            while len(self._blobs) > OPEN_BLOBS:
                self._blobs.popitem(last=False)
            return b

    def locate(self, p):
        """(blob, entry) of a position, checked."""
        g, no, e = int(p["generation"]), int(p["blob"]), int(p["entry"])
        home = self if g in (0, self.number) else self.older(g)
        if home is not self and home._agree != self._agree:
            raise CorruptError(home.path, "has other layers, hidden size or dtype than the generation that points to it")
        b = home.blob(no)
        if e >= len(b.entries) or int(p["rows"]) > int(b.entries["rows"][e]):
            raise CorruptError(b.file.path, f"entry {e} with {p['rows']} rows is not there")
        if home is self:
            want, have = self.index.entry(no, e), b.entries[e]
            if (want["sample"], want["rows"], want["tokens"].tobytes(), want["content"].tobytes()) != (
                    have["sample"], have["rows"], have["tokens"].tobytes(), have["content"].tobytes()) or (
                    self.index.datasets[want["dataset"]:want["dataset"] + 1] !=
                    b.meta.datasets[have["dataset"]:have["dataset"] + 1]):
                raise CorruptError(b.file.path, f"entry {e} is another sample than the index says")
        return b, e


def find(path):
    """The directory of the generation that path means: itself, or the newest sealed states of a workspace."""
    path = os.fspath(path)
    rows = os.path.join(path, "generations")
    if not os.path.isdir(rows):
        return path
    for name in sorted((n for n in os.listdir(rows) if re.fullmatch(r"[0-9]{6,}", n)), key=int, reverse=True):
        manifest = os.path.join(rows, name, MANIFEST)
        if os.path.exists(manifest) and read_manifest(manifest)[0].get("kind") != "proof":
            return os.path.join(rows, name)
    raise EaglebatchError(f"{path}: no sealed generation in this workspace")
