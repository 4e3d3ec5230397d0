"""The operations on shared places and their queue, each a Lua script that begins with `rules`."""

from typing import Final

from kimi_gateway.adapters.capacity.rules import RULES
from kimi_gateway.adapters.state.link import Script

_ENTER: Final = r"""
-- ARGV: now, owner, heartbeat, lease, pending, id, key, tokens, how many may wait (-1: this one must not), how
-- long it has waited elsewhere ('': it has not), its patience, then for each place: account, in how many seconds
-- it may be asked, four limits.
-- After the head: granted and the place, queued, full or timeout and in how many seconds to come back, gone.
local id, key, tokens, most = ARGV[6], ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9])
local age, patience = tonumber(ARGV[10]), tonumber(ARGV[11])
forget_dead()
if call('EXISTS', X(id)) == 1 then return answer('gone', '') end
local given = packed(G, id)
if given then return answer('granted', given.at) end
local function told(at)
  local a = account(ARGV[at])
  for number, field in ipairs({'conc', 'rpm', 'tpm', 'tpd'}) do
    local limit = tonumber(ARGV[at + 1 + number])
    if a[field] ~= limit then a[field], a.dirty = limit, true end
  end
  fill(a)
  serve({[a.name] = true})
  return a
end
if call('HEXISTS', W, id) == 1 then
  greet()
  for at = 12, #ARGV, 6 do told(at) end
  return answer('queued', '')
end
local places, ready, sooner = {}, {}, nil
for at = 12, #ARGV, 6 do
  local a = told(at)
  local may = now + tonumber(ARGV[at + 1])
  places[#places + 1] = {a.name, may}
  if may <= now and fits(a, tokens) and not first(a) then
    take(a, id, tokens, #places - 1, now + lease)
    return answer('granted', #places - 1)
  end
  if is_spent(a, tokens) then may = math.max(may, midnight) end
  ready[a.name] = math.min(may, ready[a.name] or may)
  sooner = math.min(may, sooner or may)
end
if most < 0 then return answer('full', '0') end
if sooner - now > patience or patience <= 0 then
  return answer('timeout', exact(math.max(sooner - now, soonest(places, tokens))))
end
if not age and call('HLEN', W) >= most then return answer('full', exact(soonest(places, tokens))) end
local since = now - (age or 0)
if not age then  -- microseconds apart, so that who came first goes first
  since = math.max(now, tonumber(call('GET', P..'last') or 0) + 0.000001)
  call('SET', P..'last', exact(since), 'PX', DAYS)
end
call('HSET', W, id, cmsgpack.pack(
  {owner = owner, key = key, tokens = tokens, places = places, ready = ready, since = since}))
call('SADD', O(owner), id)
for _, name in ipairs({W, N, O(owner)}) do call('PEXPIRE', name, DAYS) end
for name, may in pairs(ready) do
  local a = account(name)
  a.waiting = call('HINCRBY', N, name, 1)
  if may <= now then
    stand(a, id, key, since)
  else
    call('ZADD', K(name), exact(may), id)
    call('PEXPIRE', K(name), DAYS)
  end
end
greet()
return answer('queued', '')
"""

_LEAVE: Final = r"""
-- ARGV: now, owner, heartbeat, lease, pending, then for each: id, what it has used ('': unknown, its bound stays
-- charged; 'none': nobody has used the place, or it waited).
-- After the head: in how many seconds the last of those that waited may come back.
forget_dead()
local touched, hint = {}, 0
for at = 6, #ARGV, 2 do
  local id, used = ARGV[at], tonumber(ARGV[at + 1])
  local waiter, given = packed(W, id), packed(G, id)
  call('HDEL', M(owner), id)
  if waiter and ARGV[at + 1] == 'none' then
    drop(id, waiter)
    hint = soonest(waiter.places, waiter.tokens)
    for name in pairs(waiter.ready) do touched[name] = true end
  elseif given then
    local a = account(given.acc)
    given = packed(G, id)  -- its lease may have just been found to be over
    if given then
      touched[a.name], a.dirty = true, true
      call('HDEL', G, id)
      call('ZREM', H(a.name), id)
      a.running = a.running - 1
      local minute, day_tokens = used or given.mt, used or given.dt
      if ARGV[at + 1] == 'none' then
        minute, day_tokens = 0, 0
        if a.rpm > 0 then a.rl = math.min(a.rpm, a.rl + given.rq) end
      elseif a.waiting > 0 then
        if a.freed then
          local gap = now - a.freed
          a.gap = a.gap > 0 and 0.8 * a.gap + 0.2 * gap or gap
        end
        a.freed = now
      else
        a.freed = nil
      end
      if a.tpm > 0 then a.tl = math.min(a.tpm, a.tl + given.mt - minute) end
      if given.dt > 0 and given.day == a.day then
        a.used, a.held = a.used + day_tokens - given.dt, a.held - given.dt
      end
    end
  elseif ARGV[at + 1] == 'none' then
    call('SET', X(id), '1', 'PX', 60000)
  end
end
serve(touched)
return answer(exact(hint))
"""

_TEND: Final = r"""
-- ARGV: now, owner, heartbeat, lease, pending, '1' where the owner has waiters, then for each hold: id, account.
-- Renews holds, or takes them up again; gives what time has made free.
forget_dead()
if ARGV[6] == '1' then greet() end
for at = 7, #ARGV, 2 do
  local a, id = account(ARGV[at + 1]), ARGV[at]
  if call('HEXISTS', G, id) == 1 then
    call('ZADD', H(a.name), exact(now + lease), id)
    call('PEXPIRE', H(a.name), DAYS)
    call('PEXPIRE', G, DAYS)
  else
    hold(a, id, 0, 0, 0, 0, now + lease)
  end
  call('HDEL', M(owner), id)
end
local due = {}
for _, name in ipairs(call('HKEYS', N)) do due[name] = true end
serve(due)
return answer()
"""


def _script(name: str, body: str) -> Script:
    return Script(name, (RULES + body).encode())


ENTER: Final = _script("capacity.enter", _ENTER)
LEAVE: Final = _script("capacity.leave", _LEAVE)
TEND: Final = _script("capacity.tend", _TEND)
