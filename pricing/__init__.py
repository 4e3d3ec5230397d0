"""Money for Kimi: token usage as disjoint meters, dated rate cards, exact cost, and the ledger.

Imports nothing of ours. `usage`, `money`, `rates` and `cost` are pure and need the standard library only.
"""
