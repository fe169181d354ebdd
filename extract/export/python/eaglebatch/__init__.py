"""Reads generations of hidden states made by eaglebatch, with numpy and lz4 alone.

    from eaglebatch import Dataset

    ds = Dataset("work/generations/000001")
    s = ds[0]
    s.ids, s.mask, s.states(2)

The formats are specified in store/FORMAT.md; this package was written from it. Every byte that leads to a value
is covered by a checksum that is checked before the value is given out.
"""

from .dataset import Dataset, Sample
from .errors import CorruptError, EaglebatchError, LeaseError, NewerError, SyntheticError

__all__ = ["CorruptError", "Dataset", "EaglebatchError", "LeaseError", "NewerError", "Sample", "SyntheticError"]
__version__ = "1.0.0"
