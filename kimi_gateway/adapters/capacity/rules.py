"""What the Lua scripts of shared places have in common: the rules of `kimi_gateway.core.routing.queue_book`.

One script is one operation, whole or not at all, in one round trip. All keys share a prefix with a hash tag, hence
one slot:

    epoch           when this state began; another one means that all of it was lost
    a:<account>     hash: its limits as last told, its buckets, the day's tokens, the ring's count, the pace
    h:<account>     zset hold -> when its lease ends
    g               hash hold -> account, what was charged, which place of the ticket
    w               hash waiter -> who waits for what
    l:<account>     zset key -> its turn: the ring of keys that stand in line
    f:<n>:<account><key>  zset waiter -> since when it waits; n is the account's length
    k:<account>     zset waiter -> from when on it may ask; it stands aside until then
    n               hash account -> how many wait there
    o:<owner>       set of an owner's waiters
    m:<owner>       hash waiter -> its place, of those that were given one and do not know it yet
    x:<id>          of one that gave up before it was heard of
    alive           zset owner -> until when its waiters count; gen: hash owner -> its life

Times are seconds, by the server's clock unless one is passed in; a zset keeps microseconds of them. Each answer
begins with the epoch, the owner's life, what it was given, and the accounts looked at: name, full, waiting.
"""

from typing import Final

RULES: Final = r"""
local P, call = KEYS[1], redis.call
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] + time[2] / 1000000
end
local owner, beat, lease, pending = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local DAYS, ROUNDING = 172800000, 0.000001
local function exact(x) return string.format('%.17g', x) end
local function A(name) return P..'a:'..name end
local function H(name) return P..'h:'..name end
local function L(name) return P..'l:'..name end
local function K(name) return P..'k:'..name end
local function F(name, key) return P..'f:'..#name..':'..name..key end
local function O(name) return P..'o:'..name end
local function M(name) return P..'m:'..name end
local function X(id) return P..'x:'..id end
local G, W, N, ALIVE, GEN = P..'g', P..'w', P..'n', P..'alive', P..'gen'
local day = math.floor(now / 86400)
local midnight = (day + 1) * 86400

local epoch = call('GET', P..'epoch')
if not epoch then
  epoch = exact(now)
  call('SET', P..'epoch', epoch)
end

local function charge(tokens, allowance) return math.min(math.max(1, tokens), allowance) end
local function packed(key, id)
  local text = call('HGET', key, id)
  return text and cmsgpack.unpack(text)
end

-- Accounts that this script looks at; what it changes of them is written at its end.
local accounts = {}
local FIELDS = {'conc', 'rpm', 'tpm', 'tpd', 'rl', 'tl', 'at', 'day', 'used', 'held', 'turn', 'gap', 'freed'}

local function expire(a)
  local late = call('ZRANGEBYSCORE', H(a.name), '-inf', exact(now))
  for _, id in ipairs(late) do
    local hold = packed(G, id)
    if hold and hold.day == a.day then a.held = a.held - hold.dt end
    call('HDEL', G, id)
    call('ZREM', H(a.name), id)
    a.dirty = true
  end
end

local function fill(a)
  if not a.at or now > a.at then
    local minutes = a.at and (now - a.at) / 60 or 0
    if a.rpm > 0 then a.rl = math.min(a.rpm, (a.rl or a.rpm) + minutes * a.rpm) end
    if a.tpm > 0 then a.tl = math.min(a.tpm, (a.tl or a.tpm) + minutes * a.tpm) end
    a.at = now
  end
  if a.rpm > 0 then a.rl = math.min(a.rpm, a.rl or a.rpm) end
  if a.tpm > 0 then a.tl = math.min(a.tpm, a.tl or a.tpm) end
end

local function account(name)
  local a = accounts[name]
  if a then return a end
  a = {name = name}
  for at, value in ipairs(call('HMGET', A(name), unpack(FIELDS))) do a[FIELDS[at]] = tonumber(value or nil) end
  for _, field in ipairs({'conc', 'rpm', 'tpm', 'tpd', 'day', 'used', 'held', 'turn', 'gap'}) do
    a[field] = a[field] or 0
  end
  if a.day ~= day then a.day, a.used, a.held = day, 0, 0 end
  expire(a)
  a.running = call('ZCARD', H(name))
  fill(a)
  a.waiting = tonumber(call('HGET', N, name) or 0)
  accounts[name] = a
  return a
end

local function fits(a, tokens)
  return not (a.conc > 0 and a.running >= a.conc or a.rpm > 0 and a.rl + ROUNDING < 1
    or a.tpm > 0 and a.tl + ROUNDING < charge(tokens, a.tpm)
    or a.tpd > 0 and a.used + charge(tokens, a.tpd) > a.tpd)
end

local function is_spent(a, tokens)
  return a.tpd > 0 and a.used - a.held + charge(tokens, a.tpd) > a.tpd
end

local function hold(a, id, place, minute, day_tokens, requests, until_s)
  local text = cmsgpack.pack({acc = a.name, mt = minute, dt = day_tokens, rq = requests, day = day, at = place})
  call('HSET', G, id, text)
  call('ZADD', H(a.name), exact(until_s), id)
  call('PEXPIRE', G, DAYS)
  call('PEXPIRE', H(a.name), DAYS)
  a.running = a.running + 1
end

local function take(a, id, tokens, place, until_s)
  local minute, day_tokens, requests = 0, 0, 0
  if a.rpm > 0 then a.rl, requests = a.rl - 1, 1 end
  if a.tpm > 0 then minute = charge(tokens, a.tpm) a.tl = a.tl - minute end
  if a.tpd > 0 then
    day_tokens = charge(tokens, a.tpd)
    a.used, a.held = a.used + day_tokens, a.held + day_tokens
  end
  a.dirty = true
  hold(a, id, place, minute, day_tokens, requests, until_s)
end

local function stand(a, id, key, since)
  if call('ZADD', F(a.name, key), exact(since), id) == 1 and not call('ZSCORE', L(a.name), key) then
    a.turn, a.dirty = a.turn + 1, true
    call('ZADD', L(a.name), a.turn, key)
  end
  call('PEXPIRE', F(a.name, key), DAYS)
  call('PEXPIRE', L(a.name), DAYS)
end

-- Whose turn it is at an account: who stood aside until now stands in line first.
local function first(a)
  if a.waiting == 0 then return nil end
  for _, id in ipairs(call('ZRANGEBYSCORE', K(a.name), '-inf', exact(now))) do
    local waiter = packed(W, id)
    call('ZREM', K(a.name), id)
    if waiter then stand(a, id, waiter.key, waiter.since) end
  end
  local key = call('ZRANGE', L(a.name), 0, 0)[1]
  return key and call('ZRANGE', F(a.name, key), 0, 0)[1], key
end

local function unline(name, id, key)
  if call('ZREM', F(name, key), id) == 1 then
    if call('EXISTS', F(name, key)) == 0 then call('ZREM', L(name), key) end
  else
    call('ZREM', K(name), id)
  end
end

local function drop(id, waiter)
  for name in pairs(waiter.ready) do
    local a = account(name)
    unline(name, id, waiter.key)
    a.waiting = call('HINCRBY', N, name, -1)
    if a.waiting <= 0 then call('HDEL', N, name) end
  end
  call('HDEL', W, id)
  call('SREM', O(waiter.owner), id)
end

-- The first of its places that it may have; one at account a is among them.
local function choice(id, waiter, a)
  for at, place in ipairs(waiter.places) do
    if place[2] <= now then
      if place[1] == a.name then return at end
      local b = account(place[1])
      if first(b) == id and fits(b, waiter.tokens) then return at end
    end
  end
end

-- Whose turn it is at an account, where there is room for it.
local function next_at(a)
  local id, key = first(a)
  while id do
    local waiter = packed(W, id)
    if not waiter then
      unline(a.name, id, key)
    elseif is_spent(a, waiter.tokens) then
      unline(a.name, id, key)
      call('ZADD', K(a.name), midnight, id)
      call('PEXPIRE', K(a.name), DAYS)
    else
      return fits(a, waiter.tokens) and id, waiter
    end
    id, key = first(a)
  end
end

local function give(id, waiter, a)
  local chosen = choice(id, waiter, a)
  local b = account(waiter.places[chosen][1])
  drop(id, waiter)
  if call('ZSCORE', L(b.name), waiter.key) then
    b.turn, b.dirty = b.turn + 1, true
    call('ZADD', L(b.name), b.turn, waiter.key)
  end
  take(b, id, waiter.tokens, chosen - 1, now + pending)
  call('HSET', M(waiter.owner), id, chosen - 1)
  call('PEXPIRE', M(waiter.owner), DAYS)
end

-- Gives the free places of these accounts, a set, to whose turn it is. Who gets one leaves the lines of others.
local function serve(due)
  local name = next(due)
  while name do
    for other in pairs(due) do if other < name then name = other end end
    due[name] = nil
    local a = account(name)
    local id, waiter = next_at(a)
    while id do
      give(id, waiter, a)
      for other in pairs(waiter.ready) do due[other] = true end
      due[name] = nil
      id, waiter = next_at(a)
    end
    name = next(due)
  end
end

local function forget_dead()
  for _, name in ipairs(call('ZRANGEBYSCORE', ALIVE, '-inf', exact(now), 'LIMIT', 0, 8)) do
    for _, id in ipairs(call('SMEMBERS', O(name))) do
      local waiter = packed(W, id)
      if waiter then drop(id, waiter) end
    end
    call('DEL', O(name), M(name))
    call('ZREM', ALIVE, name)
    call('HDEL', GEN, name)
  end
end

local function greet()
  if not call('ZSCORE', ALIVE, owner) then call('HSET', GEN, owner, exact(now)..'.'..call('INCR', P..'lives')) end
  call('ZADD', ALIVE, exact(now + beat), owner)
end

-- In how many seconds a place may be had, as far as is known; 0: nobody knows.
local function retry(a, tokens, ready)
  local wait, ahead = math.max(0, ready - now), a.waiting
  if is_spent(a, tokens) then return math.max(wait, midnight - now) end
  if a.rpm > 0 then wait = math.max(wait, (ahead + 1 - a.rl) * 60 / a.rpm) end
  if a.tpm > 0 then wait = math.max(wait, (charge(tokens, a.tpm) - a.tl) * 60 / a.tpm) end
  if a.conc > 0 and (ahead > 0 or a.running >= a.conc) then wait = math.max(wait, (ahead + 1) * a.gap) end
  return wait
end

local function soonest(places, tokens)
  local known = 0
  for _, place in ipairs(places) do
    local wait = retry(account(place[1]), tokens, place[2])
    if wait > 0 and (known == 0 or wait < known) then known = wait end
  end
  return known
end

local function answer(...)
  local seen = {}
  for name, a in pairs(accounts) do
    local full = '0'
    if not fits(a, 1) or first(a) then full = '1' end
    seen[#seen + 1], seen[#seen + 2], seen[#seen + 3] = name, full, a.waiting
    if a.dirty then
      local told = {}
      for _, field in ipairs(FIELDS) do
        if a[field] then told[#told + 1] = field told[#told + 1] = exact(a[field]) end
      end
      if not a.freed then call('HDEL', A(name), 'freed') end
      call('HSET', A(name), unpack(told))
      call('PEXPIRE', A(name), DAYS)
    end
  end
  return {epoch, call('HGET', GEN, owner) or '', call('HGETALL', M(owner)), seen, ...}
end
"""
