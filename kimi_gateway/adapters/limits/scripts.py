"""The Lua scripts of shared limits: the rules of `kimi_gateway.core.limit_book`, run by the server.

One script is one operation, whole or not at all, in one round trip. All keys share a prefix with a hash tag, hence
one slot:

    epoch             "born since": when this state began; another one means that all of it was lost
    keys              set of key names that have holds
    b:<key>           hash rl ra tl ta: levels of the buckets and when they were so
    h:<key>           hash request -> "nano highspeed tokens period"
    z:<key>           zset request -> when its lease ends
    d:<key>           hash request -> "nano highspeed period", of what has ended
    y:<key>           zset request -> when it ended
    m:<key>|<period>  hash total fast held heldfast loaded

Money is counted with HINCRBY (64-bit integers) and compared in doubles, exact below 2^53. Times are seconds, by
the server's clock unless one is passed in. A period of "" stands for no money at all.
"""

from typing import Final

from kimi_gateway.adapters.state.link import Script

_COMMON: Final = r"""
local P, call = KEYS[1], redis.call
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] + time[2] / 1000000
end
local MONTHS, HOUR = 3456000000, 3600000
local function exact(x) return string.format('%.17g', x) end
local function whole(x) return string.format('%.0f', x) end
local function H(key) return P..'h:'..key end
local function Z(key) return P..'z:'..key end
local function D(key) return P..'d:'..key end
local function Y(key) return P..'y:'..key end
local function B(key) return P..'b:'..key end
local function M(key, period) return P..'m:'..key..'|'..period end

local epoch = call('GET', P..'epoch')
if not epoch then
  epoch = exact(now)..' '..exact(now)
  call('SET', P..'epoch', epoch)
end

local function last(...)
  for _, name in ipairs({...}) do call('PEXPIRE', name, MONTHS) end
end

local function book(money, nano, fast)
  call('HINCRBY', money, 'total', nano)
  if fast == '1' then call('HINCRBY', money, 'fast', nano) end
  call('PEXPIRE', money, MONTHS)
end

local function hold(money, nano, fast)
  call('HINCRBY', money, 'held', nano)
  if fast == '1' then call('HINCRBY', money, 'heldfast', nano) end
  call('PEXPIRE', money, MONTHS)
end

local function minus(nano)
  if nano == '0' then return nano end
  if string.sub(nano, 1, 1) == '-' then return string.sub(nano, 2) end
  return '-'..nano
end

local function read_hold(key, id)
  local text = call('HGET', H(key), id)
  if not text then return nil end
  local nano, fast, tokens, period = string.match(text, '^(%S+) (%d) (%S+) (.*)$')
  return {nano = nano, fast = fast, tokens = tokens, period = period}
end

local function read_done(key, id)
  local text = call('HGET', D(key), id)
  if not text then return nil end
  local nano, fast, period = string.match(text, '^(%S+) (%d) (.*)$')
  return {nano = nano, fast = fast, period = period}
end

local function put_hold(key, id, nano, fast, tokens, period, until_s)
  call('HSET', H(key), id, nano..' '..fast..' '..tokens..' '..period)
  call('ZADD', Z(key), exact(until_s), id)
  call('SADD', P..'keys', key)
  last(H(key), Z(key), P..'keys')
  if period ~= '' then hold(M(key, period), nano, fast) end
end

local function put_done(key, id, nano, fast, period, at)
  call('HSET', D(key), id, nano..' '..fast..' '..period)
  if at then call('ZADD', Y(key), exact(at), id) end
  last(D(key), Y(key))
end

local function drop_hold(key, id, held)
  call('HDEL', H(key), id)
  call('ZREM', Z(key), id)
  if call('EXISTS', H(key)) == 0 then call('SREM', P..'keys', key) end
  if held.period ~= '' then hold(M(key, held.period), minus(held.nano), held.fast) end
end

local function drop_done(key, old)
  if #old > 0 then
    call('HDEL', D(key), unpack(old))
    call('ZREM', Y(key), unpack(old))
  end
end

local function known(key, period)
  local found, held, holds, done = {}, {}, call('HGETALL', H(key)), call('HGETALL', D(key))
  for at = 1, #holds, 2 do
    held[holds[at]] = true
    if string.match(holds[at + 1], '^%S+ %d %S+ (.*)$') == period then found[#found + 1] = holds[at] end
  end
  for at = 1, #done, 2 do
    local its = string.match(done[at + 1], '^%S+ %d (.*)$')
    if its == period and not held[done[at]] then found[#found + 1] = done[at] end
  end
  return found
end

-- The level of a bucket now; what is not there is full.
local function filled(key, level_name, at_name, per_minute)
  if per_minute == 0 then return nil end
  local found = call('HMGET', B(key), level_name, at_name)
  local level, at = tonumber(found[1]) or per_minute, tonumber(found[2]) or now
  return math.min(per_minute, level + math.max(0, now - at) * per_minute / 60), math.max(at, now)
end

local function keep_level(key, level_name, at_name, level, at)
  if level then
    call('HSET', B(key), level_name, exact(level), at_name, exact(at))
    call('PEXPIRE', B(key), HOUR)
  end
end

local function sums(key, period)
  if period == '' then return {0, 0, 0, 0} end
  local found = call('HMGET', M(key, period), 'total', 'fast', 'held', 'heldfast')
  for at = 1, 4 do found[at] = found[at] or '0' end
  return found
end

local function is_loaded(key, period)
  return period == '' or call('HGET', M(key, period), 'loaded') == '1'
end
"""

_HELLO: Final = r"""
-- ARGV: now, "1" where nobody else can have anything under way
if ARGV[2] == '1' and string.match(epoch, '^(%S+)') == exact(now) then
  epoch = exact(now)..' 0'
  call('SET', P..'epoch', epoch)
end
return epoch
"""

_ADMIT: Final = r"""
-- ARGV: now, epoch, key, id, period, nano, fast, tokens, budget, fast budget, rpm, tpm, concurrency, lease
if ARGV[2] ~= epoch then return {'epoch', epoch} end
local key, id, period, nano, fast = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local tokens, rpm, tpm, places = tonumber(ARGV[8]), tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
if not is_loaded(key, period) then return {'load', epoch} end
local requests, requests_at = filled(key, 'rl', 'ra', rpm)
local allowed, allowed_at = filled(key, 'tl', 'ta', tpm)
local money, refused = sums(key, period), ''
local budget, fast_budget = tonumber(ARGV[9]), tonumber(ARGV[10])
if budget and tonumber(nano) > budget - money[1] - money[3] then
  refused = 'budget'
elseif fast == '1' and fast_budget and tonumber(nano) > fast_budget - money[2] - money[4] then
  refused = 'highspeed_budget'
elseif places > 0 and call('ZCOUNT', Z(key), '('..exact(now), '+inf') >= places then
  refused = 'concurrency'
elseif requests and requests < 1 then
  refused = 'requests'
elseif allowed and allowed < math.min(tokens, tpm) then
  refused = 'tokens'
else
  if requests then requests = requests - 1 end
  if allowed then allowed = allowed - math.min(tokens, tpm) end
  put_hold(key, id, nano, fast, ARGV[8], period, now + tonumber(ARGV[14]))
  money = sums(key, period)
end
keep_level(key, 'rl', 'ra', requests, requests_at)
keep_level(key, 'tl', 'ta', allowed, allowed_at)
return {'ok', epoch, refused, money[1], money[2], money[3], money[4],
        requests and exact(requests) or '', allowed and exact(allowed) or ''}
"""

_STANDING: Final = r"""
-- ARGV: now, epoch, key, period, rpm, tpm
local key, period = ARGV[3], ARGV[4]
if ARGV[2] ~= epoch then return {'epoch', epoch} end
if not is_loaded(key, period) then return {'load', epoch} end
local requests = filled(key, 'rl', 'ra', tonumber(ARGV[5]))
local allowed = filled(key, 'tl', 'ta', tonumber(ARGV[6]))
local money = sums(key, period)
return {'ok', epoch, '', money[1], money[2], money[3], money[4],
        requests and exact(requests) or '', allowed and exact(allowed) or ''}
"""

_SETTLE: Final = r"""
-- ARGV: now, how long ended requests are kept, then for each: key, id, period, nano, fast, tokens, tpm
local over = {}
for at = 3, #ARGV, 7 do
  local key, id, period, nano, fast = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local used, tpm = tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  drop_done(key, call('ZRANGEBYSCORE', Y(key), '-inf', exact(now - tonumber(ARGV[2])), 'LIMIT', 0, 16))
  local held, ended, excess = read_hold(key, id), read_done(key, id), 0
  if held then
    local level, level_at = filled(key, 'tl', 'ta', tpm)
    if used and level then
      level = math.min(tpm, level + math.min(tonumber(held.tokens), tpm) - used)
      keep_level(key, 'tl', 'ta', level, level_at)
    end
    drop_hold(key, id, held)
    if held.period ~= '' then
      book(M(key, held.period), nano, fast)
      put_done(key, id, nano, fast, held.period, now)
      excess = math.max(0, tonumber(nano) - tonumber(held.nano))
    end
  elseif ended then
    book(M(key, ended.period), minus(ended.nano), ended.fast)
    book(M(key, ended.period), nano, fast)
    put_done(key, id, nano, fast, ended.period)
  elseif period ~= '' then
    put_done(key, id, nano, fast, period, now)
    call('HSET', M(key, period), 'loaded', '0')
    last(M(key, period))
  end
  over[#over + 1] = whole(excess)
end
return over
"""

_RESTORE: Final = r"""
-- ARGV: now, lease, then for each: key, id, period, nano, fast, tokens
for at = 3, #ARGV, 6 do
  local key, id, period = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if not read_hold(key, id) and not read_done(key, id) then
    put_hold(key, id, ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], period, now + tonumber(ARGV[2]))
    if period ~= '' then call('HSET', M(key, period), 'loaded', '0') end
  end
end
return epoch
"""

_RENEW: Final = r"""
-- ARGV: now, lease, then for each: key, id. Gives back the epoch and the numbers of those that are not held.
local missing = {}
for at = 3, #ARGV, 2 do
  if call('HEXISTS', H(ARGV[at]), ARGV[at + 1]) == 1 then
    call('ZADD', Z(ARGV[at]), exact(now + tonumber(ARGV[2])), ARGV[at + 1])
    last(H(ARGV[at]), Z(ARGV[at]))
  else
    missing[#missing + 1] = (at - 3) / 2
  end
end
return {epoch, missing}
"""

_KNOWN: Final = r"""
-- ARGV: now, key, period, "1" to have its sums read again. Gives back the epoch, its age and what is known.
if ARGV[4] == '1' then call('HSET', M(ARGV[2], ARGV[3]), 'loaded', '0') end
return {epoch, exact(now - tonumber(string.match(epoch, ' (%S+)$'))), known(ARGV[2], ARGV[3])}
"""

_INSTALL: Final = r"""
-- ARGV: now, epoch, key, period, total, fast, lease, how many were asked about, their ids, then for each row of
-- the ledger: id, state, nano, fast, bound
if ARGV[2] ~= epoch then return 0 end
local key, period, lease, count = ARGV[3], ARGV[4], tonumber(ARGV[7]), tonumber(ARGV[8])
local asked, rows, order = {}, {}, {}
for at = 9, 8 + count do asked[ARGV[at]] = true end
for at = 9 + count, #ARGV, 5 do
  rows[ARGV[at]] = {state = ARGV[at + 1], nano = ARGV[at + 2], fast = ARGV[at + 3], bound = ARGV[at + 4]}
  order[#order + 1] = ARGV[at]
end
local ids = known(key, period)
for _, id in ipairs(ids) do
  if not asked[id] then return 0 end
end
local money, is_known = M(key, period), {}
call('DEL', money)
book(money, ARGV[5], '0')
call('HINCRBY', money, 'fast', ARGV[6])
for _, id in ipairs(ids) do
  local held, ended, row = read_hold(key, id), read_done(key, id), rows[id]
  if held then
    hold(money, held.nano, held.fast)
    if row then book(money, minus(row.nano), row.fast) end
  elseif row and row.state == 'settled' then
    put_done(key, id, row.nano, row.fast, period)
  else
    if row then book(money, minus(row.nano), row.fast) end
    book(money, ended.nano, ended.fast)
  end
end
for _, id in ipairs(order) do
  local row = rows[id]
  if row.state ~= 'settled' and not read_hold(key, id) and not read_done(key, id) then
    book(money, minus(row.nano), row.fast)
    if row.state == 'open' then
      put_hold(key, id, row.bound, row.fast, '0', period, now + lease)
    else
      put_done(key, id, row.bound, row.fast, period, now)
      book(money, row.bound, row.fast)
    end
  end
end
call('HSET', money, 'loaded', '1')
last(money)
return 1
"""

_LAPSED: Final = r"""
-- ARGV: now, at most so many
local found, most = {}, tonumber(ARGV[2])
for _, key in ipairs(call('SMEMBERS', P..'keys')) do
  if #found >= most then break end
  local late = call('ZRANGEBYSCORE', Z(key), '-inf', exact(now), 'WITHSCORES', 'LIMIT', 0, most - #found)
  for at = 1, #late, 2 do
    local held = read_hold(key, late[at])
    if held then
      found[#found + 1] = {key, late[at], held.period, held.nano, held.fast, exact(now - tonumber(late[at + 1]))}
    else
      call('ZREM', Z(key), late[at])
    end
  end
end
return found
"""

_RESOLVE: Final = r"""
-- ARGV: now, then for each: key, id, nano, fast
local done = 0
for at = 2, #ARGV, 4 do
  local key, id, nano, fast = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local held, lease = read_hold(key, id), tonumber(call('ZSCORE', Z(key), id) or nil)
  if held and lease and lease <= now then
    drop_hold(key, id, held)
    if held.period ~= '' then
      book(M(key, held.period), nano, fast)
      put_done(key, id, nano, fast, held.period, now)
    end
    done = done + 1
  end
end
return done
"""


def _script(name: str, body: str) -> Script:
    return Script(name, (_COMMON + body).encode())


HELLO: Final = _script("limits.hello", _HELLO)
ADMIT: Final = _script("limits.admit", _ADMIT)
STANDING: Final = _script("limits.standing", _STANDING)
SETTLE: Final = _script("limits.settle", _SETTLE)
RESTORE: Final = _script("limits.restore", _RESTORE)
RENEW: Final = _script("limits.renew", _RENEW)
KNOWN: Final = _script("limits.known", _KNOWN)
INSTALL: Final = _script("limits.install", _INSTALL)
LAPSED: Final = _script("limits.lapsed", _LAPSED)
RESOLVE: Final = _script("limits.resolve", _RESOLVE)
