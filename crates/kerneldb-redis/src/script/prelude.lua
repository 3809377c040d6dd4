-- The environment of scripts and functions. It gets the functions of the server (native.rs), and returns four functions: `run` runs a script,
-- `load` loads a library, `call` calls a function of a library, and `release` drops the globals of a script that has ended.
--
-- All scripts share the tables of this file, so they must not be able to change them: a script sees each through an empty table that
-- reads from it and refuses writes. They have no globals of their own.

local native = ...

local assert, error, getmetatable, ipairs, loadstring, next, pairs, pcall, rawequal, rawget, rawset, select, setfenv, setmetatable =
	assert, error, getmetatable, ipairs, loadstring, next, pairs, pcall, rawequal, rawget, rawset, select, setfenv, setmetatable
local tonumber, tostring, type, unpack, xpcall, collectgarbage = tonumber, tostring, type, unpack, xpcall, collectgarbage
local getinfo, floor, concat, find = debug.getinfo, math.floor, table.concat, string.find
local create, resume, rep = coroutine.create, coroutine.resume, string.rep

-- Longer texts and tables than this can keep one function busy for long.
local LONG = 10000

local protected = setmetatable({}, { __mode = "k" })

local READONLY = "Attempt to modify a readonly table"

local function refuse()
	error(READONLY, 2)
end

local function protect(t)
	local shown = setmetatable({}, { __index = t, __newindex = refuse, __metatable = false })
	protected[shown] = true
	return shown
end

local function copy(t, without)
	local copied = {}
	for key, value in pairs(t) do
		if not without[key] then
			copied[key] = value
		end
	end
	return copied
end

-- The globals of the run that is under way, its commands, and the keys and arguments of a script.
local environment, commands, keys, arguments

-- Returns the values of a protected call, and raises an error if the script has to end, because no script can catch that. An error that is a
-- table with a text becomes the text, as in Redis.
local function after_protected_call(succeeded, first, ...)
	native.check()
	if succeeded then
		return succeeded, first, ...
	end
	local failed = native.describe(first)
	if type(failed) == "table" and failed.err then
		failed = failed.err
	end
	return succeeded, failed
end

local globals = {
	_VERSION = _VERSION, assert = assert, error = error, getmetatable = getmetatable, ipairs = ipairs, next = next, pairs = pairs,
	rawequal = rawequal, rawget = rawget, select = select, tonumber = tonumber, tostring = tostring, type = type, unpack = unpack,
}

function globals.pcall(...)
	return after_protected_call(pcall(...))
end

function globals.xpcall(f, handler)
	return after_protected_call(xpcall(f, function(failed)
		-- While an error of the clock is handled, there is no clock.
		native.check()
		return handler(native.describe(failed))
	end))
end

function globals.rawset(t, key, value)
	if protected[t] then
		error(READONLY, 0)
	end
	return rawset(t, key, value)
end

function globals.setmetatable(t, metatable)
	if protected[t] then
		error(READONLY, 0)
	end
	return setmetatable(t, metatable)
end

-- Compiled code could do anything with memory, so only text is loaded.
function globals.loadstring(text, name)
	if type(text) == "string" and find(text, "^\27") then
		return nil, "attempt to load a binary chunk"
	end
	local loaded, failure = loadstring(text, name)
	return loaded and setfenv(loaded, environment), failure
end

function globals.load(part, name)
	local parts = {}
	local text = part()
	while text and text ~= "" do
		parts[#parts + 1] = text
		text = part()
	end
	return globals.loadstring(concat(parts), name or "=(load)")
end

function globals.collectgarbage(option)
	return option == "count" and collectgarbage("count") or 0
end

local strings = copy(string, {})
-- These can take long, and have no look at the clock. The matcher of patterns recurses for each item of a pattern.
for _, name in ipairs({ "find", "match", "gmatch", "gsub" }) do
	local search = string[name]
	strings[name] = function(text, pattern, ...)
		if type(pattern) == "string" and #pattern > native.pattern_bytes then
			error("the pattern is too long", 0)
		end
		if type(text) == "string" and #text > LONG then
			native.check()
		end
		return search(text, pattern, ...)
	end
end
function strings.rep(text, count)
	if text == "" then
		return text
	end
	native.check()
	return rep(text, count)
end
globals.string = protect(strings)
getmetatable("").__index = strings
getmetatable("").__metatable = protect({})
local tables = copy(table, { setn = true })
-- These write without regard to metatables.
for _, name in ipairs({ "insert", "remove", "sort" }) do
	local write = table[name]
	tables[name] = function(t, ...)
		if protected[t] then
			error(READONLY, 0)
		end
		if type(t) == "table" and #t > LONG then
			native.check()
		end
		return write(t, ...)
	end
end
function tables.concat(t, ...)
	native.check()
	return concat(t, ...)
end
globals.table = protect(tables)
globals.bit = protect(native.bit)
globals.cjson = protect(native.cjson)
globals.cmsgpack = protect(native.cmsgpack)
globals.struct = protect(native.struct)

local maths = copy(math, {})
function maths.random(low, high)
	local random = native.random() % 2147483647 / 2147483647
	if not low then
		return random
	end
	if not high then
		low, high = 1, low
	end
	assert(low <= high, "interval is empty")
	return floor(random * (high - low + 1)) + low
end
maths.randomseed = native.seed
globals.math = protect(maths)

local routines = copy(coroutine, {})
function routines.resume(...)
	return after_protected_call(resume(...))
end
function routines.wrap(f)
	local routine = create(f)
	local function result(done, ...)
		native.check()
		if not done then
			error(native.describe((...)), 0)
		end
		return ...
	end
	return function(...)
		return result(resume(routine, ...))
	end
end
globals.coroutine = protect(routines)

local redis = {
	LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
	REPL_NONE = 0, REPL_AOF = 1, REPL_SLAVE = 2, REPL_REPLICA = 2, REPL_ALL = 3,
	REDIS_VERSION = native.version, REDIS_VERSION_NUM = native.version_number,
}

-- A table with an error. One with a dash before it has a code of its own: "-CODE text".
local function failure(text)
	text = text:gsub("^%-", "")
	if not find(text, " ", 1, true) then
		text = "ERR " .. text
	end
	return { err = text }
end

local function one_text(make)
	return function(...)
		local text = ...
		if select("#", ...) ~= 1 or type(text) ~= "string" then
			return failure("ERR wrong number or type of arguments")
		end
		return make(text)
	end
end

redis.error_reply = one_text(failure)
redis.status_reply = one_text(function(text)
	return { ok = text }
end)

redis.log = native.log
redis.sha1hex = native.sha1hex

function redis.setresp(...)
	local version = ...
	if select("#", ...) ~= 1 then
		error({ err = "ERR redis.setresp() requires one argument." }, 0)
	elseif version ~= 2 and version ~= 3 then
		error({ err = "ERR RESP version must be 2 or 3." }, 0)
	elseif version == 3 then
		error({ err = "ERR scripts get replies in RESP2" }, 0)
	end
end

-- There are no replicas.
function redis.set_repl() end
local script_redis = setmetatable({
	replicate_commands = function()
		return true
	end,
}, { __index = redis })

-- What scripts get as the metatable of their globals.
local shown_metatable = protect({})

-- The metatable of a table of globals. `find_global` finds a value by its name.
local function visible(find_global)
	return {
		__index = function(_, name)
			local value = find_global(name)
			if value == nil then
				error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
			end
			return value
		end,
		__newindex = refuse,
		__metatable = shown_metatable,
	}
end

-- The table `redis` of a run. It is the same one in all runs, because functions of libraries may keep it. Its commands are those of the
-- present run.
local function command_table(api)
	local shown = setmetatable({}, {
		__index = function(_, name)
			return commands[name] or api[name]
		end,
		__newindex = refuse,
		__metatable = false,
	})
	protected[shown] = true
	return shown
end

local script_commands, function_commands = command_table(script_redis), command_table(redis)

local script_environment
script_environment = setmetatable({}, visible(function(name)
	if name == "redis" then
		return script_commands
	elseif name == "KEYS" then
		return keys
	elseif name == "ARGV" then
		return arguments
	elseif name == "_G" then
		return script_environment
	end
	return globals[name]
end))
protected[script_environment] = true

-- While a library is loaded, the function that registers functions. The library sees nothing but `redis` meanwhile.
local registering

-- A library may keep its function for later, when it registers nothing.
local function register_function(...)
	if not registering then
		error({ err = "ERR redis.register_function can only be called on FUNCTION LOAD command" }, 0)
	end
	return registering(...)
end

local loading = setmetatable({}, visible(function(name)
	if name == "register_function" then
		return register_function
	elseif name == "log" or type(name) == "string" and (find(name, "^LOG_") or find(name, "^REDIS_")) then
		return redis[name]
	end
end))

local function_environment
function_environment = setmetatable({}, visible(function(name)
	if registering then
		return name == "redis" and loading or nil
	elseif name == "redis" then
		return function_commands
	elseif name == "_G" then
		return function_environment
	end
	return globals[name]
end))
protected[loading], protected[function_environment] = true, true

-- Describes an error; also returns where it has happened. Functions of this file are not the place.
local function describe(failed)
	local level = 3
	local place = getinfo(level, "Sl")
	while place and (place.what == "C" or place.what == "tail" or place.source == "=prelude") do
		level = level + 1
		place = getinfo(level, "Sl")
	end
	return native.describe(failed, place and place.short_src .. ":" .. place.currentline .. ": " or ""), place
end

-- Adds where an error has happened.
local function locate(failed)
	local place
	failed, place = describe(failed)
	if failed == "not enough memory" then
		return failed
	end
	if type(failed) ~= "table" then
		failed = { err = "ERR " .. tostring(failed) }
	end
	if place then
		failed.source, failed.line = place.source, place.currentline
	end
	return failed
end

local function run(script, script_keys, script_arguments, call, protected_call, check)
	commands = { call = call, pcall = protected_call, acl_check_cmd = check }
	environment, keys, arguments = script_environment, script_keys, script_arguments
	setfenv(script, script_environment)
	return xpcall(script, locate)
end

-- Calls a function of a library.
local function call_function(f, function_keys, function_arguments, call, protected_call, check)
	commands = { call = call, pcall = protected_call, acl_check_cmd = check }
	environment = function_environment
	return xpcall(function()
		return f(function_keys, function_arguments)
	end, locate)
end

-- Runs the code of a library, which registers functions by `register`.
local function load(library, register)
	registering, environment = register, function_environment
	setfenv(library, function_environment)
	return xpcall(library, function(failed)
		return (describe(failed))
	end)
end

local function release()
	environment, commands, keys, arguments, registering = nil, nil, nil, nil, nil
end

return { run = run, call = call_function, load = load, release = release }
