"""`kimi-gateway check`: what would keep this configuration from serving, found before a request finds it.

Looking (`local`, `fetch`, `targets`, `probe`) is apart from judging (`judge`, `launch`), and what an answer shows
(`witness`) from both. Nothing here changes anything: no ledger is made, no journal is drained, and only `--probe`
spends tokens.
"""
