-- wrk script: POST /select with the bodies of a file, one per line, in turn.
-- wrk -s select.lua URL -- FILE

local requests = {}
local next_request = 0

function init(arguments)
  local headers = { ["content-type"] = "application/json" }
  for body in io.lines(arguments[1]) do
    requests[#requests + 1] = wrk.format("POST", "/select", headers, body)
  end
end

function request()
  next_request = next_request % #requests + 1
  return requests[next_request]
end

function done(summary, latency)
  -- A timeout (2 s) is a late answer, which the latencies show; the others are wrong answers.
  local errors = summary.errors
  io.write(string.format("requests=%d errors=%d us=%.1f %.1f %.1f\n", summary.requests,
    errors.connect + errors.read + errors.write + errors.status,
    latency:percentile(50), latency:percentile(99), latency.max))
end
