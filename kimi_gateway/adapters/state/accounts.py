"""What the scripts of the shared store have in common: its keys, its sums, and what leaves it.

All keys share a prefix with a hash tag, hence one slot. `owner` is key (16 bytes) and end user (32), `id` is owner
and conversation (32); all are digests, so that they can be cut apart again.

    meta          hash     bytes, thoughts, notes: sums over all
    age           zset     id -> time of the last use in microseconds
    size          hash     id -> "bytes thoughts"
    keys          zset     key -> bytes
    u:<key>       zset     end user -> bytes
    l:<owner>     zset     conversation -> time of the last use
    i:<owner>     hash     chain -> conversation, digest of the thought, anchor or ""
    a:<owner>     zset     anchor and chain, ordered by their bytes
    c:<id>        hash     chain -> record
    n:<owner><place>       a note
    o:<key>       zset     end user and place -> time of the last use
    nk            zset     key -> notes

What was not used for the retention time is removed by the next script that runs, up to a number at a time, and
meets nobody before. Every key also has a time to live, a little longer, for when no gateway runs. Should the
server have removed a conversation first, or have evicted keys, its traces are cleared where they are met.
"""

from typing import Final

COMMON: Final = r"""
local P, call, sub = KEYS[1], redis.call, string.sub
local META, AGE, SIZE, KEYS_, NOTES = P..'meta', P..'age', P..'size', P..'keys', P..'nk'
local key, user, owner = ARGV[4], ARGV[5], ARGV[4]..ARGV[5]
local now, retention, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local expired, evicted, evicted_bytes = 0, 0, 0
local torn = {}

local function chunks(list, size)
  local at = 1 - size
  return function()
    at = at + size
    if at <= #list then return at, math.min(at + size - 1, #list) end
  end
end

local function size_of(id)
  local held = call('HGET', SIZE, id)
  if not held then return 0, 0 end
  local bytes, count = string.match(held, '^(%d+) (%d+)$')
  return tonumber(bytes), tonumber(count)
end

local function less(field, by)
  if call('HINCRBY', META, field, by) < 0 then call('HSET', META, field, 0) end
  call('PEXPIRE', META, ttl)
end

-- An owner has so many bytes more. Who has no conversation left holds nothing, whatever the sums say.
local function resize(whose, by)
  local its_key, its_user = sub(whose, 1, 16), sub(whose, 17)
  local users = P..'u:'..its_key
  local held = tonumber(call('ZINCRBY', users, by, its_user))
  if held <= 0 or call('EXISTS', P..'l:'..whose) == 0 then
    call('ZREM', users, its_user)
    if held > 0 then by = by - held end
  end
  local sum = tonumber(call('ZINCRBY', KEYS_, by, its_key))
  if sum <= 0 or call('EXISTS', users) == 0 then
    call('ZREM', KEYS_, its_key)
    if sum > 0 then by = by - sum end
  end
  less('bytes', by)
end

local function clear(whose, chains, conversation)
  local index = P..'i:'..whose
  for from, to in chunks(chains, 500) do
    local homes, gone = call('HMGET', index, unpack(chains, from, to)), {}
    local mine = {}
    for at, home in ipairs(homes) do
      local chain = chains[from + at - 1]
      if home and sub(home, 1, 32) == conversation then
        mine[#mine + 1] = chain
        if #home > 48 then gone[#gone + 1] = sub(home, 49)..chain end
      end
    end
    if #mine > 0 then call('HDEL', index, unpack(mine)) end
    if #gone > 0 then call('ZREM', P..'a:'..whose, unpack(gone)) end
  end
end

local function remove(id)
  local whose, conversation = sub(id, 1, 48), sub(id, 49)
  local bytes, count = size_of(id)
  local chains = call('HKEYS', P..'c:'..id)
  if #chains < count then torn[whose] = true end
  clear(whose, chains, conversation)
  call('UNLINK', P..'c:'..id)
  call('ZREM', AGE, id)
  call('HDEL', SIZE, id)
  call('ZREM', P..'l:'..whose, conversation)
  resize(whose, 0 - bytes)  -- not -bytes: a zero would be spelled -0
  less('thoughts', 0 - count)
  if call('EXISTS', P..'l:'..whose) == 0 then
    call('UNLINK', P..'i:'..whose, P..'a:'..whose)
    torn[whose] = nil
  end
  return count
end

-- Takes out of an owner's index what belongs to no conversation.
local function mend()
  for whose in pairs(torn) do
    local all, here = call('HGETALL', P..'i:'..whose), {}
    for at = 1, #all, 2 do
      local conversation = sub(all[at + 1], 1, 32)
      if here[conversation] == nil then
        here[conversation] = call('ZSCORE', P..'l:'..whose, conversation) or {}
      end
      if type(here[conversation]) == 'table' then table.insert(here[conversation], all[at]) end
    end
    for conversation, chains in pairs(here) do
      if type(chains) == 'table' then clear(whose, chains, conversation) end
    end
  end
end

local function expire()
  if call('EXISTS', AGE) == 0 then  -- nothing is kept, whatever sums a server that evicts has left
    call('HDEL', META, 'bytes', 'thoughts')
    call('UNLINK', KEYS_, SIZE)
  end
  for _, id in ipairs(call('ZRANGEBYSCORE', AGE, '-inf', now - retention, 'LIMIT', 0, 256)) do
    remove(id)
    expired = expired + 1
  end
end

local function alive(conversation)
  local id = owner..conversation
  local used = tonumber(call('ZSCORE', AGE, id))
  if not used then
    call('ZREM', P..'l:'..owner, conversation)
    call('UNLINK', P..'c:'..id)
    torn[owner] = true
    return false
  end
  if used + retention > now and call('EXISTS', P..'c:'..id) == 1 then return true end
  remove(id)
  expired = expired + 1
  return false
end

local function touch(conversation)
  call('ZADD', AGE, now, owner..conversation)
  call('ZADD', P..'l:'..owner, now, conversation)
  call('PEXPIRE', P..'c:'..owner..conversation, ttl)
end

local function last(names)
  for _, name in ipairs(names) do call('PEXPIRE', name, ttl) end
end

local everybodys = {AGE, META, SIZE, KEYS_, NOTES}
local its_own = {P..'l:'..owner, P..'i:'..owner, P..'a:'..owner, P..'u:'..key, P..'o:'..key}

local function count_notes(of)
  local count = call('ZCARD', P..'o:'..of)
  local before = tonumber(call('ZSCORE', NOTES, of)) or 0
  if count > 0 then call('ZADD', NOTES, count, of) else call('ZREM', NOTES, of) end
  call('PEXPIRE', NOTES, ttl)
  if count ~= before then less('notes', count - before) end
end

local function drop_notes(of, members)
  if #members > 0 then
    local names = {}
    for at, member in ipairs(members) do names[at] = P..'n:'..of..member end
    call('UNLINK', unpack(names))
    call('ZREM', P..'o:'..of, unpack(members))
  end
  count_notes(of)
end

local function expire_notes()
  local old = call('ZRANGEBYSCORE', P..'o:'..key, '-inf', now - retention, 'LIMIT', 0, 256)
  if #old > 0 then drop_notes(key, old) end
end
"""
