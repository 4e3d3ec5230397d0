"""The ledger against what somebody else says was charged: every difference in a class, none of them hidden.

Pure: bills and readings come in as bytes, rows one after another.
"""
