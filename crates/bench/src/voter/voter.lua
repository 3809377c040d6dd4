#!lua name=voter
-- Voter's procedures as a Redis Function, on the same keys as kerneldb's library (voter_procedures.bpf.c).

local states = {
  "AK", "AL", "AR", "AZ", "CA", "CO", "CT", "DC", "DE", "FL", "GA", "HI", "IA", "ID", "IL", "IN", "KS", "KY",
  "LA", "MA", "MD", "ME", "MI", "MN", "MO", "MS", "MT", "NC", "ND", "NE", "NH", "NJ", "NM", "NV", "NY", "OH",
  "OK", "OR", "PA", "RI", "SC", "SD", "TN", "TX", "UT", "VA", "VT", "WA", "WI", "WV", "WY", "XX",
}

-- FCALL voter_vote 1 PHONE CONTESTANT LIMIT: 0 = accepted, 1 = there is no such contestant, 2 = over the limit.
local function vote(keys, arguments)
  local phone, contestant, limit = keys[1], arguments[1], tonumber(arguments[2])
  if #phone ~= 10 or not tonumber(phone) or not tonumber(contestant) or not limit then
    return redis.error_reply('ERR wrong arguments')
  end
  if not redis.call('GET', 'contestant:' .. contestant) then
    return 1
  end
  local votes = tonumber(redis.call('GET', 'phone:' .. phone) or 0)
  if votes >= limit then
    return 2
  end
  local state = redis.call('GET', 'area:' .. string.sub(phone, 1, 3)) or 'XX'
  redis.call('INCR', 'phone:' .. phone)
  redis.call('SET', 'vote:' .. phone .. struct.pack('>I8', votes + 1), contestant .. ' ' .. state)
  redis.call('INCR', 'count:' .. state .. ':' .. contestant)
  return 0
end

-- FCALL voter_results 0 CONTESTANT: the contestant's votes from all states.
local function results(_, arguments)
  local total = 0
  for _, state in ipairs(states) do
    total = total + tonumber(redis.call('GET', 'count:' .. state .. ':' .. arguments[1]) or 0)
  end
  return total
end

redis.register_function('voter_vote', vote)
redis.register_function{function_name = 'voter_results', callback = results, flags = {'no-writes'}}
