"""A few threads that decode the blocks of a sample together; numpy and lz4 let go of Python's lock while they work."""

import concurrent.futures
import os
import sys

MOST = 4

_pool = _pid = None


def threads():
    """How many threads a read may use: the cores that this process may run on, shared among the workers of a DataLoader."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = 1
    if "torch.utils.data" in sys.modules:
        info = sys.modules["torch.utils.data"].get_worker_info()
        workers = info.num_workers if info is not None else 1
    return max(1, min(MOST, cores // workers))


def run(work, items):
    """Calls work with each item, in any order; the first error is raised when all threads have stopped."""
    items = list(items)
    n = min(threads(), len(items))
    if n < 2:
        for x in items:
            work(x)
        return
    rest, failed = iter(items), []

    def drain():
        for x in rest:
            if failed:
                return
            try:
                work(x)
            except BaseException as e:
                failed.append(e)

    others = [_threads().submit(drain) for _ in range(n - 1)]
    drain()
    for f in others:
        # One that has not begun finds nothing left to do.
        if not f.cancel():
            f.result()
    if failed:
        raise failed[0]


def _threads():
    """The pool of this process: after a fork the threads of the parent are not there."""
    global _pool, _pid
    if _pid != os.getpid():
        _pool, _pid = concurrent.futures.ThreadPoolExecutor(MOST - 1, "eaglebatch"), os.getpid()
    return _pool
