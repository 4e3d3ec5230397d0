"""What money questions about the future come down to: forecasts, comparisons, the better lifetime of a cache.

Pure: rows, requests, cards and assumptions come in, figures go out. Money is integer nano-dollars.
"""
