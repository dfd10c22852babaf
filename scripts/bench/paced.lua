-- wrk script: select.lua with a pause before each request of a connection, in milliseconds.
-- wrk -s paced.lua URL -- FILE PAUSE

local here = debug.getinfo(1, "S").source:match("@(.*/)")
dofile(here .. "select.lua")

local read_bodies = init
local pause = 0

function init(arguments)
  read_bodies(arguments)
  pause = tonumber(arguments[2])
end

function delay()
  return pause
end
