"""The Lua scripts of the shared store of thoughts: the rules of `kimi_gateway.core.thoughts`, run by the server.

One script is one operation, whole or not at all, in one round trip. The clock is the server's own, unless one is
passed in: several gateways then agree on the age of a conversation however wrong their clocks are. It is not made
monotonic: one that is set back only keeps things a little longer, one that was ahead for a moment does no harm.
"""

from typing import Final

from kimi_gateway.adapters.state.accounts import COMMON
from kimi_gateway.adapters.state.link import Script

_RECALL: Final = r"""
local chains, anchors, places, most = ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9])
local index, asked, homes = P..'i:'..owner, {}, {}
-- First of all a write that needs no memory: after one, a server that is full lets the rest of a script pass.
call('PEXPIRE', META, ttl)
expire()
expire_notes()

for at = 1, #chains / 32 do asked[at] = sub(chains, at * 32 - 31, at * 32) end
for from, to in chunks(asked, 1000) do
  for at, home in ipairs(call('HMGET', index, unpack(asked, from, to))) do homes[from + at - 1] = home end
end

local living = {}
local function lives(conversation)
  if living[conversation] == nil then
    living[conversation] = alive(conversation)
    if living[conversation] then touch(conversation) end
  end
  return living[conversation]
end

local function alike(anchor)
  local last = string.rep('\255', 33)
  local hung = call('ZRANGEBYLEX', P..'a:'..owner, '['..anchor, '['..anchor..last, 'LIMIT', 0, 9)
  local found, stale = {}, false
  for _, member in ipairs(hung) do
    local chain = sub(member, 33)
    local home = call('HGET', index, chain)
    if home and sub(home, 49) == anchor and alive(sub(home, 1, 32)) then
      found[#found + 1] = {chain, home}
    else
      call('ZREM', P..'a:'..owner, member)
      stale = true
    end
  end
  if stale then return alike(anchor) end
  if #found == 0 or #found > 8 then return nil end
  for _, one in ipairs(found) do
    if sub(one[2], 33, 48) ~= sub(found[1][2], 33, 48) then return nil end
  end
  for _, one in ipairs(found) do lives(sub(one[2], 1, 32)) end
  return found[1]
end

local none, signs, heads, records, sent = string.rep('\0', 32), {}, {}, {}, 0
for at = #asked, 1, -1 do
  local home, chain, sign = homes[at], asked[at], 'c'
  if not home or not lives(sub(home, 1, 32)) then
    local anchor = sub(anchors, at * 32 - 31, at * 32)
    local found = anchor ~= none and alike(anchor)
    if found then
      chain, home, sign = found[1], found[2], 'a'
    else
      home = nil
    end
  end
  local record = home and call('HGET', P..'c:'..owner..sub(home, 1, 32), chain)
  if record and sent + #record <= most then
    sent = sent + #record
    signs[at], heads[at], records[at] = sign, sub(home, 1, 32)..chain, record
  else
    signs[at], heads[at], records[at] = '-', '', ''
  end
end
mend()

local notes, first = {}, true
for at = 1, #places / 32 do
  local member = user..sub(places, at * 32 - 31, at * 32)
  local used = tonumber(call('ZSCORE', P..'o:'..key, member))
  local note = used and used + retention > now and call('GET', P..'n:'..key..member)
  if note and first then
    call('ZADD', P..'o:'..key, now, member)
    call('PEXPIRE', P..'n:'..key..member, ttl)
    first = false
  end
  notes[at] = note or ''
end

-- What was renewed a moment ago has long enough. Nothing here is new, so nothing is without a time to live.
local long_enough = ttl - (ttl - retention / 1000) / 2
if call('PTTL', AGE) < long_enough then last(everybodys) end
if call('PTTL', its_own[1]) < long_enough then last(its_own) end
return {table.concat(signs), table.concat(heads), records, notes, expired}
"""

_KEEP: Final = r"""
local max_bytes, max_key_bytes, new_bytes = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local wished, max_notes = {ARGV[9], ARGV[10]}, tonumber(ARGV[11])
local thoughts = tonumber(ARGV[12])
local index = P..'i:'..owner
expire()

local function lost(whose, held)
  local its_key = sub(whose, 1, 16)
  call('ZREM', P..'u:'..its_key, sub(whose, 17))
  if tonumber(call('ZINCRBY', KEYS_, -held, its_key)) <= 0 then call('ZREM', KEYS_, its_key) end
  less('bytes', -held)
end

local function out_of_user(whose)
  local first = call('ZRANGE', P..'l:'..whose, 0, 0)[1]
  return first and whose..first
end

-- The largest member besides one, what it holds, and what it would give first.
local function largest(zset, besides, prefix, next_out, gone)
  while true do
    local top = call('ZREVRANGE', zset, 0, 1, 'WITHSCORES')
    local at = top[1] == besides and 3 or 1
    if not top[at] then return nil end
    local held = tonumber(top[at + 1])
    local out = next_out(prefix..top[at])
    if out then return top[at], held, out end
    gone(prefix..top[at], held)
  end
end

local function out_of_key(its_key)
  local _, _, out = largest(P..'u:'..its_key, nil, its_key, out_of_user, lost)
  return out
end

local function lost_key(its_key, held)
  call('ZREM', KEYS_, its_key)
  less('bytes', -held)
end

-- What another may have to give, and whether it gives before `own` does; as `core.shares.Ranking.contest`.
local function contest(own, need, room, zset, prefix, next_out, gone)
  local other, held, out = largest(zset, own, prefix, next_out, gone)
  if not other then return nil, false end
  local mine = tonumber(call('ZSCORE', zset, own))
  local fair = math.floor(room / (call('ZCARD', zset) + (mine and 0 or 1)))
  local wanted = need + (mine or 0)
  if wanted <= fair then return out, true end
  if held - size_of(out) < fair then return nil, false end
  return out, held > wanted
end

local function from_key(need, growing)
  local room = math.min(max_key_bytes, (tonumber(call('ZSCORE', KEYS_, key)) or 0) + need)
  local out, first = contest(user, need, room, P..'u:'..key, key, out_of_user, lost)
  if first then return out end
  local mine = out_of_user(owner)
  if mine and mine ~= growing then return mine end
  return out
end

local function from_all(need, growing)
  local out, first = contest(key, need, max_bytes, KEYS_, '', out_of_key, lost_key)
  if first then return out end
  return call('ZSCORE', KEYS_, key) and from_key(need, growing) or out
end

local function make_room(need, growing)
  while true do
    local victim
    if (tonumber(call('ZSCORE', KEYS_, key)) or 0) + need > max_key_bytes then
      victim = from_key(need, growing)
    elseif (tonumber(call('HGET', META, 'bytes')) or 0) + need > max_bytes then
      victim = from_all(need, growing)
    else
      return true
    end
    if not victim then return false end
    evicted, evicted_bytes = evicted + 1, evicted_bytes + size_of(victim)
    remove(victim)
  end
end

local function joined()
  for _, conversation in ipairs(wished) do
    if #conversation == 32 and call('ZSCORE', AGE, owner..conversation) and alive(conversation) then
      return conversation
    end
  end
end

local function keep(chain, anchor, tag, size, record)
  local known = call('HGET', index, chain)
  local home = known and sub(known, 1, 32)
  if home and alive(home) then
    if call('HEXISTS', P..'c:'..owner..home, chain) == 1 then
      touch(home)
      return 'known'
    end
    remove(owner..home)
  end
  home = joined()
  if home then touch(home) end
  local bytes, count = 0, 0
  if home then bytes, count = size_of(owner..home) end
  local more = size + (home and 0 or new_bytes)
  local alone = more + bytes
  if alone > math.min(max_bytes, max_key_bytes) or not make_room(more, home and owner..home) then
    return 'refused'
  end
  home = home or chain
  call('HSET', P..'c:'..owner..home, chain, record)
  call('HSET', SIZE, owner..home, string.format('%.0f %d', alone, count + 1))
  call('HSET', index, chain, home..tag..anchor)
  if #anchor > 0 then call('ZADD', P..'a:'..owner, 0, anchor..chain) end
  touch(home)
  resize(owner, more)
  call('HINCRBY', META, 'thoughts', 1)
  return 'kept'
end

local outcomes, at = {}, 13
for one = 1, thoughts do
  outcomes[one] = keep(ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3]), ARGV[at + 4])
  at = at + 5
end
mend()

if at < #ARGV then
  expire_notes()
  for from = at, #ARGV, 2 do
    local member = user..ARGV[from]
    call('SET', P..'n:'..key..member, ARGV[from + 1], 'PX', ttl)
    call('ZADD', P..'o:'..key, now, member)
  end
  count_notes(key)
  while (tonumber(call('HGET', META, 'notes')) or 0) > max_notes do
    local most = call('ZREVRANGE', NOTES, 0, 0)[1]
    if not most then
      call('HSET', META, 'notes', 0)
    else
      drop_notes(most, call('ZRANGE', P..'o:'..most, 0, 0))
    end
  end
end
last(everybodys)
last(its_own)
return {table.concat(outcomes, ' '), expired, evicted, evicted_bytes}
"""

_FORGET: Final = r"""
local forgotten = 0
expire()
for _, name in ipairs(call('ZRANGE', P..'u:'..key, 0, -1)) do
  for _, conversation in ipairs(call('ZRANGE', P..'l:'..key..name, 0, -1)) do
    forgotten = forgotten + remove(key..name..conversation)
  end
end
mend()
local kept = call('ZRANGE', P..'o:'..key, 0, -1)
for from, to in chunks(kept, 500) do drop_notes(key, {unpack(kept, from, to)}) end
return {forgotten, expired}
"""

_STATISTICS: Final = r"""
expire()
mend()
local sums = call('HMGET', META, 'bytes', 'thoughts', 'notes')
return {tonumber(sums[1]) or 0, tonumber(sums[2]) or 0, call('ZCARD', AGE), tonumber(sums[3]) or 0, expired}
"""

RECALL: Final = Script("recall", (COMMON + _RECALL).encode())
KEEP: Final = Script("keep", (COMMON + _KEEP).encode())
FORGET: Final = Script("forget", (COMMON + _FORGET).encode())
STATISTICS: Final = Script("statistics", (COMMON + _STATISTICS).encode())
