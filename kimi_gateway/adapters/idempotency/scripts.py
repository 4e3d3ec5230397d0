"""The Lua scripts of shared answers: the rules of `kimi_gateway.core.idempotency`, run by the server.

One script is one operation, whole or not at all, in one round trip. All keys share a prefix with a hash tag, hence
one slot. `key` is 16 bytes, `id` is key and place (48); all are digests:

    r:<id>    "until token digest": a claim; microseconds in 16 digits, then 16 and 32 bytes
    a:<id>    "digest record": an answer, or a mark where the record is empty
    t         zset id -> when it was finished, in microseconds: all that is kept
    z         hash id -> bytes of the answer
    o:<key>   zset id -> when it was finished: what has an answer
    k         zset key -> bytes of its answers
    m         zset id -> a running number: what has none
    s         hash bytes, number: the sum, and the last running number

The clock is the server's own, unless one is passed in. What is over is removed by the next script that runs, up to
a number at a time, and meets nobody before. Every key also has a time to live, for when no gateway runs.
"""

from typing import Final

from kimi_gateway.adapters.state.link import Script

_COMMON: Final = r"""
local P, call, sub = KEYS[1], redis.call, string.sub
local now, retention, ttl, over = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local id, token = ARGV[5], ARGV[6]
local R, A, T, Z, O, K, M, S = P..'r:'..id, P..'a:', P..'t', P..'z', P..'o:', P..'k', P..'m', P..'s'
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function weigh(key, by)
  call('HINCRBY', S, 'bytes', by)
  if tonumber(call('ZINCRBY', K, by, key)) <= 0 then call('ZREM', K, key) end
end

local function forget_answer(one)
  local size = call('HGET', Z, one)
  if not size then return end
  local key = sub(one, 1, 16)
  call('HDEL', Z, one)
  call('ZREM', O..key, one)
  weigh(key, -size)
end

local function drop(one)
  forget_answer(one)
  call('UNLINK', A..one)
  call('ZREM', M, one)
  call('ZREM', T, one)
end

local function mark(one)
  call('ZADD', M, call('HINCRBY', S, 'number', 1), one)
end

local function expire()
  for _, one in ipairs(call('ZRANGEBYSCORE', T, '-inf', now - retention, 'LIMIT', 0, 200)) do drop(one) end
end

-- What is kept here: its digest and its record; nothing where its time is over.
local function kept()
  local at = tonumber(call('ZSCORE', T, id))
  if not at then return nil end
  local data = at + retention > now and call('GET', A..id)
  if not data then
    drop(id)
    return nil
  end
  return sub(data, 1, 32), sub(data, 33)
end

-- Who runs this: a token and a digest; nothing where the lease is over.
local function running()
  local claim = call('GET', R)
  if not claim or tonumber(sub(claim, 1, 16)) <= now then return nil end
  return sub(claim, 17, 32), sub(claim, 33)
end

local function run(digest, lease)
  call('SET', R, string.format('%016.0f', now + lease)..token..digest, 'PX', math.ceil(lease / 1000) + 1000)
end

local function is_mine()
  local whose = running()
  return not kept() and (not whose or whose == token)
end
"""

CLAIM: Final = Script(
    "idempotency claim",
    (
        _COMMON
        + r"""
local digest, lease = ARGV[7], tonumber(ARGV[8])
expire()
local known, record = kept()
if known then
  if known ~= digest then return {'other'} end
  if record == '' then return {'not_kept'} end
  return {'kept', record}
end
local whose, body = running()
if whose then return {body == digest and 'running' or 'other'} end
run(digest, lease)
return {'taken'}
"""
    ).encode(),
)

RENEW: Final = Script(
    "idempotency renew",
    (
        _COMMON
        + r"""
if not is_mine() then return 0 end
run(ARGV[7], tonumber(ARGV[8]))
return 1
"""
    ).encode(),
)

FINISH: Final = Script(
    "idempotency finish",
    (
        _COMMON
        + r"""
local digest, size, record = ARGV[7], tonumber(ARGV[8]), ARGV[11]
local most, share = tonumber(ARGV[9]), tonumber(ARGV[10])
expire()
if not is_mine() then return 0 end
local key = sub(id, 1, 16)
call('SET', A..id, digest..record, 'PX', ttl)
call('DEL', R)
call('ZADD', T, now, id)
if record == '' then
  mark(id)
else
  call('HSET', Z, id, size)
  call('ZADD', O..key, now, id)
  weigh(key, size)
end

while tonumber(call('HGET', S, 'bytes') or 0) + call('ZCARD', T) * over > most do
  local largest = call('ZREVRANGE', K, 0, 0)[1]
  local oldest = largest and call('ZRANGE', O..largest, 0, 0)[1]
  if call('ZCARD', M) * over * share > most or not oldest then
    local first = call('ZRANGE', M, 0, 0)[1]
    if not first then break end
    drop(first)
  else
    local data = call('GETRANGE', A..oldest, 0, 31)
    forget_answer(oldest)
    local left = call('PTTL', A..oldest)
    if left > 0 then call('SET', A..oldest, data, 'PX', left) end
    mark(oldest)
  end
end

for _, name in ipairs({T, Z, O..key, K, M, S}) do call('PEXPIRE', name, ttl) end
return 1
"""
    ).encode(),
)

RELEASE: Final = Script(
    "idempotency release",
    (
        _COMMON
        + r"""
if running() == token then call('DEL', R) end
return 1
"""
    ).encode(),
)

LOOK: Final = Script(
    "idempotency look",
    (
        _COMMON
        + r"""
return running() and 1 or 0
"""
    ).encode(),
)

FORGET: Final = Script(
    "idempotency forget",
    (
        _COMMON
        + r"""
local mine = call('ZRANGE', O..sub(id, 1, 16), 0, -1)
for _, one in ipairs(mine) do drop(one) end
return #mine
"""
    ).encode(),
)

SIZE: Final = Script(
    "idempotency size",
    (
        _COMMON
        + r"""
return tonumber(call('HGET', S, 'bytes') or 0) + call('ZCARD', T) * over
"""
    ).encode(),
)
