"""What can go wrong with the books.

    LedgerError
      JournalError        the local journal cannot be written
        JournalFull       it has reached its limit; nothing new may be opened
      StoreError          the database
        LedgerMissing     no ledger there, and this command never creates one
        LedgerOutdated    an older schema; a gateway's start migrates it
        LedgerTooNew      a newer schema than this version knows
        LedgerDown        not reachable or busy for now; trying again makes sense

Messages name the place without its password and say how to set it right.
"""


class LedgerError(Exception):
    """Base of the tree."""


class JournalError(LedgerError):
    """The record is not in the journal."""


class JournalFull(JournalError):
    """The journal's directory has reached `max_journal_bytes`."""


class StoreError(LedgerError):
    """The database refused."""


class LedgerMissing(StoreError):
    """There is no ledger at this URL."""


class LedgerOutdated(StoreError):
    """The ledger's schema is older than this version needs."""


class LedgerTooNew(StoreError):
    """The ledger's schema is newer than this version knows."""


class LedgerDown(StoreError):
    """The database cannot be reached or does not answer in time."""
