"""What an application does with redis-py, against the server at HOST and PORT.

    python3 smoke.py HOST PORT

The program prints a line for each run that succeeds, and ends with an exception at the first wrong reply.
"""

import asyncio
import concurrent.futures
import sys
import time

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import LockError, LockNotOwnedError
from redis.retry import Retry

HOST, PORT = sys.argv[1], int(sys.argv[2])
ONCE = Retry(NoBackoff(), 0)

# A fixed window: it counts a call, and starts the window at the first one.
RATE_LIMIT = """
local calls = redis.call('INCR', KEYS[1])
if calls == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return calls <= tonumber(ARGV[2])
"""


def equal(found, expected, what):
    if found != expected:
        raise AssertionError(f"{what}: {found!r} instead of {expected!r}")


def true(condition, what):
    equal(bool(condition), True, what)


def raises(kind, action, text=""):
    """The action must raise exactly this class of exception, with this text in its message."""
    try:
        result = action()
    except Exception as error:
        equal(type(error), kind, f"the exception ({error})")
        true(text in str(error), f"{text!r} in {error}")
        return
    raise AssertionError(f"{result!r} instead of {kind.__name__}")


def connection(client, protocol):
    info = client.client_info()
    equal(int(info["resp"]), protocol, "the protocol of the connection")
    equal((info["lib-name"], info["lib-ver"]), ("redis-py", redis.__version__), "CLIENT SETINFO")
    true(client.ping(), "PING")
    equal(client.info("server")["redis_mode"], "standalone", "INFO")
    true(client.config_get("maxmemory")["maxmemory"], "CONFIG GET")
    equal(client.select(0), True, "SELECT")
    true(client.command_count() > 50, "COMMAND COUNT")


def values(client):
    equal(client.get("missing"), None, "GET of no key")
    equal(client.set("k", "v"), True, "SET")
    equal(client.set("k", "other", nx=True), None, "SET NX of a key")
    equal(client.set("no", "other", xx=True), None, "SET XX of no key")
    equal(client.set("k", "w", xx=True, get=True), b"v", "SET XX GET")
    equal(client.set("fresh", "w", ex=100, get=True), None, "SET EX GET of no key")
    true(0 < client.ttl("fresh") <= 100, "the TTL of SET EX")
    client.set("fresh", "x", keepttl=True)
    true(0 < client.pttl("fresh") <= 100_000, "the TTL of SET KEEPTTL")
    equal(client.getex("fresh", persist=True), b"x", "GETEX PERSIST")
    equal((client.ttl("fresh"), client.ttl("missing")), (-1, -2), "TTL")
    true(client.expire("fresh", 50, nx=True), "EXPIRE NX")
    true(not client.expire("fresh", 10, gt=True), "EXPIRE GT of a shorter one")
    true(client.expireat("fresh", int(time.time()) + 60), "EXPIREAT")
    true(client.persist("fresh"), "PERSIST")
    client.set("short", "v", px=20)
    time.sleep(0.05)
    equal((client.get("short"), client.exists("short", "k")), (None, 1), "a key after its expiry")
    equal(client.mset({"a": 1, "b": 2.5}), True, "MSET")
    equal(client.mget("a", "b", "missing"), [b"1", b"2.5", None], "MGET")
    equal(client.msetnx({"a": 9, "new": 9}), False, "MSETNX")
    equal((client.incr("a", 41), client.decr("a"), client.incrbyfloat("b", 0.25)), (42, 41, 2.75), "counters")
    equal((client.append("k", "!"), client.strlen("k"), client.getrange("k", 0, 0)), (2, 2, b"w"), "ranges")
    equal((client.setbit("bits", 9, 1), client.bitcount("bits"), client.getbit("bits", 9)), (0, 1, 1), "bits")
    equal((client.rename("k", "l"), client.getdel("l"), client.delete("a", "b")), (True, b"w!", 2), "GETDEL, DEL")
    equal((client.type("fresh"), client.copy("fresh", "copy"), client.unlink("copy")), (b"string", True, 1), "COPY")
    every_byte = bytes(range(256)) * 256
    client.set(every_byte[:255], every_byte)
    equal(client.get(every_byte[:255]), every_byte, "65,536 bytes of all values")
    client.set("text", "naïve ☃ 𝄞")
    equal(client.get("text").decode(), "naïve ☃ 𝄞", "text")


def errors(client):
    client.set("word", "abc")
    raises(redis.ResponseError, lambda: client.incr("word"), "not an integer")
    raises(redis.ResponseError, lambda: client.execute_command("NO-SUCH", "x"), "unknown command")
    raises(redis.ResponseError, lambda: client.execute_command("GET"), "wrong number of arguments")
    raises(redis.ResponseError, lambda: client.set("word", b"x" * 65_537))
    raises(redis.ResponseError, lambda: client.execute_command("SELECT", 1), "out of range")
    equal(client.get("word"), b"abc", "the connection after errors")


def pipelines(client):
    with client.pipeline(transaction=False) as pipe:
        for i in range(2000):
            pipe.set(f"p:{i}", i, ex=1000)
        equal(pipe.execute(), [True] * 2000, "a pipeline of SETs")
        for i in range(2000):
            pipe.get(f"p:{i}")
        equal(pipe.execute(), [str(i).encode() for i in range(2000)], "a pipeline of GETs")
        pipe.set("q", "text").incr("q").get("q")
        replies = pipe.execute(raise_on_error=False)
        equal((replies[0], type(replies[1]), replies[2]), (True, redis.ResponseError, b"text"), "an error in a pipeline")
    found = list(client.scan_iter(match="p:*", count=100))
    equal((len(found), len(set(found))), (2000, 2000), "scan_iter")
    equal(sorted(client.keys("p:199?")), sorted(f"p:199{i}".encode() for i in range(10)), "KEYS")


def transactions(client, other):
    with client.pipeline() as pipe:
        equal(pipe.set("t", 1).incr("t").get("t").execute(), [True, 2, b"2"], "MULTI and EXEC")
        raises(redis.ResponseError, lambda: pipe.set("t", "x").incr("t").execute(), "not an integer")
        equal(client.get("t"), b"x", "a transaction after an error of one command")
        raises(redis.ResponseError, lambda: pipe.set("t", 1).execute_command("GET").execute(), "wrong number")
        equal(client.get("t"), b"x", "a transaction with a refused command")
        pipe.reset()
        pipe.watch("t")
        other.set("t", 5)
        pipe.multi()
        pipe.set("t", 6)
        raises(redis.WatchError, pipe.execute)
    equal(client.get("t"), b"5", "a watched key that has changed")

    def add_ten(pipe):
        value = int(pipe.get("t"))
        pipe.multi()
        pipe.set("t", value + 10)

    client.set("t", 0)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: client.transaction(add_ten, "t"), range(40)))
    equal(client.get("t"), b"400", "40 optimistic transactions of 8 threads")


def scripts(client):
    limit = client.register_script(RATE_LIMIT)
    client.script_flush()
    equal([limit(keys=["rate"], args=[60_000, 3]) for _ in range(5)], [1, 1, 1, None, None], "a rate limiter")
    equal(client.script_exists(limit.sha), [True], "SCRIPT EXISTS")
    true(0 < client.pttl("rate") <= 60_000, "the window of the rate limiter")
    client.script_flush()
    raises(redis.exceptions.NoScriptError, lambda: client.evalsha(limit.sha, 1, "rate", 1, 1), "No matching script")
    with client.pipeline() as pipe:
        limit(keys=["rate"], args=[60_000, 9], client=pipe)
        equal(pipe.execute(), [1], "a script in a transaction that loads it")
    equal(client.eval("return {1, 'two', {KEYS[1], ARGV[1]}}", 1, "k", b"\xff\x00"), [1, b"two", [b"k", b"\xff\x00"]], "EVAL")
    raises(redis.ResponseError, lambda: client.eval("return redis.error_reply('MINE own')", 0), "MINE own")
    client.function_load("#!lua name=smoke\nredis.register_function('twice', function(_, a) return a[1] * 2 end)", True)
    equal(client.fcall("twice", 0, 21), 42, "FCALL")


def locks(client):
    lock = client.lock("lock", timeout=10)
    true(lock.acquire(), "a free lock")
    equal(client.lock("lock", timeout=10).acquire(blocking=False), False, "a lock that is held")
    true(lock.extend(20), "Lock.extend")
    true(client.pttl("lock") > 20_000, "the time of a lock that was extended")
    true(lock.reacquire() and 0 < client.pttl("lock") <= 10_000, "Lock.reacquire")
    lock.release()
    equal(client.exists("lock"), 0, "a lock that was released")
    raises(LockError, lock.release)
    lost = client.lock("lock", timeout=0.02)
    lost.acquire()
    time.sleep(0.05)
    raises(LockNotOwnedError, lost.release)
    inside, most = [0], [0]

    def work(_):
        with client.lock("lock", timeout=10, sleep=0.002):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.001)
            inside[0] -= 1

    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(24)))
    equal(most[0], 1, "threads that hold the lock at a time")


def pools(protocol):
    pool = redis.BlockingConnectionPool(max_connections=3, timeout=20, host=HOST, port=PORT, protocol=protocol)
    client = redis.Redis(connection_pool=pool)
    with concurrent.futures.ThreadPoolExecutor(12) as threads:
        list(threads.map(lambda _: client.incr("pooled"), range(600)))
    equal(client.get("pooled"), b"600", "12 threads with 3 connections")
    pool.disconnect()
    with redis.Redis.from_url(f"redis://{HOST}:{PORT}/0?protocol={protocol}", decode_responses=True) as client:
        equal(client.get("pooled"), "600", "a client from a URL that decodes replies")
    with redis.Redis(host=HOST, port=PORT, protocol=protocol, client_name="named", health_check_interval=1) as client:
        equal(client.client_info()["name"], "named", "the name of a connection")


def reconnection(client, other):
    with redis.Redis(host=HOST, port=PORT, protocol=client.get_connection_kwargs().get("protocol"), single_connection_client=True) as one:
        before = one.client_id()
        equal(other.client_kill_filter(_id=before), 1, "CLIENT KILL")
        equal(one.incr("reconnected"), 1, "a command after the server closed the connection")
        true(one.client_id() != before, "another connection")
        with redis.Redis(host=HOST, port=PORT, retry=ONCE) as strict:
            with strict.pipeline() as pipe:
                pipe.watch("reconnected")
                other.client_kill_filter(_id=pipe.execute_command("CLIENT", "ID"))
                pipe.multi()
                pipe.incr("reconnected")
                raises(redis.WatchError, pipe.execute)
    equal(client.get("reconnected"), b"1", "a transaction whose connection was closed")


def authentication(client, protocol):
    def connect(**options):
        # By default, redis-py tries a refused password ten times more, for seconds.
        return redis.Redis(host=HOST, port=PORT, protocol=protocol, retry=ONCE, **options)

    client.config_set("requirepass", "säcret")
    try:
        raises(redis.AuthenticationError, lambda: connect().get("k"))
        raises(redis.AuthenticationError, lambda: connect(password="wrong").get("k"))
        raises(redis.AuthenticationError, lambda: connect(username="nobody", password="säcret").get("k"))
        equal(connect(password="säcret").set("k", 1), True, "a password")
        equal(connect(username="default", password="säcret").get("k"), b"1", "a user and a password")
    finally:
        client.config_set("requirepass", "")
    equal(connect().get("k"), b"1", "no password again")


async def asynchronous(protocol):
    client = redis.asyncio.Redis(host=HOST, port=PORT, protocol=protocol)
    equal(await client.set("async", 1, ex=100), True, "SET")
    await asyncio.gather(*(client.incr("async") for _ in range(100)))
    async with client.pipeline(transaction=True) as pipe:
        value, ttl = await pipe.incr("async").ttl("async").execute()
        equal((value, 90 < ttl <= 100), (102, True), "MULTI and EXEC")
    async with client.lock("async-lock", timeout=5):
        equal(await client.exists("async-lock"), 1, "a lock that is held")
    equal(await client.register_script("return ARGV[1]")(args=["x"]), b"x", "a script")
    equal(len([key async for key in client.scan_iter("async*")]), 1, "scan_iter")
    async with client.client() as one:
        await client.client_kill_filter(_id=await one.client_id())
        equal(await one.get("async"), b"102", "a command after the server closed the connection")
    await client.aclose()


for protocol in (2, 3):
    client, other = (redis.Redis(host=HOST, port=PORT, protocol=protocol) for _ in range(2))
    client.flushall()
    connection(client, protocol)
    values(client)
    errors(client)
    pipelines(client)
    transactions(client, other)
    scripts(client)
    locks(client)
    pools(protocol)
    reconnection(client, other)
    authentication(client, protocol)
    asyncio.run(asynchronous(protocol))
    client.close()
    other.close()
    print(f"redis-py {redis.__version__} RESP{protocol}", flush=True)
