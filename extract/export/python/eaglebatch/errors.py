"""What can be wrong with a generation. Each error names the file, and the byte where that is known."""


class EaglebatchError(Exception):
    """Any refusal of this package."""


class CorruptError(EaglebatchError):
    """A file is damaged, cut or missing: `eaglebatch check` says what is hit, `check --repair` mends it."""

    def __init__(self, path, what, offset=None):
        self.path, self.what, self.offset = str(path), what, offset
        super().__init__(path, what, offset)

    def __str__(self):
        where = "" if self.offset is None else f" at byte {self.offset}"
        return f"{self.path}: damaged{where}: {self.what}"


class NewerError(EaglebatchError):
    """A file was written by a newer eaglebatch: upgrade this package."""

    def __init__(self, path, what):
        self.path, self.what = str(path), what
        super().__init__(path, what)

    def __str__(self):
        return f"{self.path}: written by a newer eaglebatch ({self.what}): upgrade this package"


class LeaseError(EaglebatchError):
    """The generation is being deleted, or cannot be kept from being deleted."""


class SyntheticError(EaglebatchError):
    """The states are made up: a rehearsal, not training data."""
