-- wrk script: reservations are made, completed and freed in turn (http_load.Lives says which).
-- wrk -s lives.lua URL -- FILE PREFIX ID_FIELD AHEAD

local here = debug.getinfo(1, "S").source:match("^@(.*/)")
dofile(here .. "select.lua")

local json = { ["content-type"] = "application/json" }
local bodies = {}
local prefix, id_field, ahead
local sent = -1 -- wrk asks once for a request that it looks at and never sends

function init(arguments)
  for body in io.lines(arguments[1]) do
    bodies[#bodies + 1] = body:sub(1, -2)
  end
  prefix, id_field, ahead = arguments[2], arguments[3], tonumber(arguments[4])
end

function request()
  local step, number = sent % 3, math.floor(sent / 3) + 1
  sent = sent + 1
  if step == 0 then
    local name = string.format(',"%s":"%s%d"}', id_field, prefix, number + 2 * ahead)
    local body = bodies[(number - 1) % #bodies + 1] .. name
    return wrk.format("POST", "/select_and_reserve", json, body)
  elseif step == 1 then
    return wrk.format("POST", "/reservations/" .. prefix .. number + ahead .. "/prefill_complete")
  end
  return wrk.format("DELETE", "/reservations/" .. prefix .. number)
end
