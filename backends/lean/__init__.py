"""The upstream port on asyncio protocols and the `httptools` parser: what a call costs is mostly the kernel's.

Read `line` first: the hot path, one connection and the answer that comes over it. `upstream` opens calls, `pool`
keeps connections, `dial` makes them, `request` writes heads, `unpack` undoes gzip, `faults` has the words.
"""
