"""The emulator's own token count: one token for every four started bytes of UTF-8 of each piece of text.

The rule is coarse (English is close to it, Chinese a little under) and deliberately simple: it needs no
vocabulary, anyone can recompute an invoice with it, and a text that grows at its end keeps its tokens.
"""

BYTES_PER_TOKEN = 4


def size_bytes(text: str) -> int:
    """The length of the text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def count(text: str) -> int:
    """Tokens of one piece of text; zero for the empty one."""
    return -(-size_bytes(text) // BYTES_PER_TOKEN)


def cut(text: str, tokens: int) -> str:
    """The longest beginning of the text that has at most so many tokens; never splits a character."""
    limit_bytes = tokens * BYTES_PER_TOKEN
    if text.isascii():
        return text[:limit_bytes]
    return text.encode("utf-8", "surrogatepass")[:limit_bytes].decode("utf-8", "ignore")


def pieces(text: str, tokens_each: int) -> list[tuple[str, int]]:
    """The text in stream deltas of about `tokens_each` tokens, each with the count from the start through it."""
    step = tokens_each * BYTES_PER_TOKEN
    if text.isascii():
        ends = range(step, len(text) + step, step)
        found = [(text[end - step : end], end // BYTES_PER_TOKEN) for end in ends]
        return [*found[:-1], (found[-1][0], count(text))] if found else []
    data = text.encode("utf-8", "surrogatepass")
    found = []
    start = 0
    while start < len(data):
        end = start + step
        while end < len(data) and data[end] & 0xC0 == 0x80:  # inside a character: it goes into the next piece
            end -= 1
        part = data[start:end]
        start += len(part)
        found.append((part.decode("utf-8", "surrogatepass"), -(-start // BYTES_PER_TOKEN)))
    return found
