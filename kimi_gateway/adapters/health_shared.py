"""Notices of the health of targets, on a Valkey or Redis that several processes share.

All keys share a prefix with a hash tag, hence one slot:

    v   the version of the last notice; begins with the server's clock in microseconds, so that it never runs back,
        not even where all was lost
    n   hash place -> "until origin notice": 20 digits of microseconds, 16 characters, then the notice
    z   zset place -> version
    x   zset place -> when it may be forgotten, in microseconds

A place holds the last word on one subject. Moments are the server's; a process is told how long is left.
"""

from collections.abc import Callable, Sequence
from typing import Final

from kimi_gateway.adapters.state.link import Argument, Link, Script
from kimi_gateway.core.routing.health_notice import Notice, read, written

PREFIX: Final = "{kimi}h:"
_REMEMBERED_S: Final = 60.0
"""A notice that is over is there that long for those who were away; they go by their own clock then."""
_UNTIL_RELOAD_S: Final = 86_400.0
_ORIGIN_CHARACTERS: Final = 16

_EXCHANGE: Final = Script(
    "health exchange",
    rb"""
-- ARGV: since, origin, then for each notice: place, left and remembered (microseconds), the notice. Gives back the
-- version, then for each notice of others: what is left (microseconds, as text), the notice.
local P, call, sub = KEYS[1], redis.call, string.sub
local V, N, Z, X = P..'v', P..'n', P..'z', P..'x'
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local function whole(x) return string.format('%.0f', x) end
local version = tonumber(call('GET', V) or whole(now))
for at = 3, #ARGV, 4 do
  local place, until_us = ARGV[at], now + tonumber(ARGV[at + 1])
  version = version + 1
  call('HSET', N, place, string.format('%020.0f', until_us)..ARGV[2]..ARGV[at + 3])
  call('ZADD', Z, whole(version), place)
  call('ZADD', X, whole(until_us + tonumber(ARGV[at + 2])), place)
end
if #ARGV > 2 then
  call('SET', V, whole(version))
  for _, place in ipairs(call('ZRANGEBYSCORE', X, '-inf', whole(now), 'LIMIT', 0, 100)) do
    call('HDEL', N, place)
    call('ZREM', Z, place)
    call('ZREM', X, place)
  end
  for _, name in ipairs({V, N, Z, X}) do call('PEXPIRE', name, 604800000) end
end
local reply = {whole(version)}
for _, place in ipairs(call('ZRANGEBYSCORE', Z, '('..ARGV[1], '+inf')) do
  local kept = call('HGET', N, place)
  if kept and sub(kept, 21, 36) ~= ARGV[2] then
    reply[#reply + 1] = whole(tonumber(sub(kept, 1, 20)) - now)
    reply[#reply + 1] = sub(kept, 37)
  end
end
return reply
""",
)


class ValkeyBoard:
    """`kimi_gateway.adapters.health.Board` on a server, one round trip per exchange. `mono` is a clock."""

    def __init__(self, link: Link, origin: str, *, mono: Callable[[], float], prefix: str = PREFIX) -> None:
        if len(origin) != _ORIGIN_CHARACTERS or not origin.isascii():
            raise ValueError(f"an origin has {_ORIGIN_CHARACTERS} ASCII characters, not {len(origin)}")
        self._link = link
        self._origin = origin
        self._mono = mono
        self._prefix = prefix.encode()
        self._since = "0"

    async def exchange(self, news: Sequence[Notice]) -> list[Notice]:
        """Leaves these notices and reads those of others. Raises `StateUnavailable`."""
        now_s = self._mono()
        args: list[Argument] = [self._since, self._origin]
        for notice in news:
            left_s = _UNTIL_RELOAD_S if notice.until_s is None else max(0.0, notice.until_s - now_s)
            args += [notice.place, int(left_s * 1e6), int(_REMEMBERED_S * 1e6), written(notice)]
        version, *found = await self._link.run(_EXCHANGE, [self._prefix], args)
        self._since = version.decode()
        now_s = self._mono()
        pairs = zip(found[::2], found[1::2], strict=True)
        heard = (read(data, now_s + int(left_us) / 1e6) for left_us, data in pairs)
        return [notice for notice in heard if notice is not None]
