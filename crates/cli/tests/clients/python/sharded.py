"""What an application does with redis-py through twemproxy, which spreads keys over several servers.

    python3 sharded.py (error|eject) PASSWORD PROXY_PORT PORT...

The servers listen at the other ports. The program writes "stop" when the test is to end the last server, and "start" when the test
is to start it again, and waits for a line each time. "eject" says that the proxy leaves a server out that does not answer.
The program prints a line at the end, and ends with an exception at the first wrong reply.
"""

import sys
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

KEYS = [f"key:{i}" for i in range(300)]


def connect(port, password):
    # The proxy closes a connection that sends HELLO, CLIENT, SELECT, or anything else that it does not know.
    return redis.Redis(port=port, password=password, protocol=2, driver_info=None, retry=Retry(NoBackoff(), 0))


def equal(found, expected, what):
    if found != expected:
        raise AssertionError(f"{what}: {found!r} instead of {expected!r}")


def ask(what):
    print(what, flush=True)
    sys.stdin.readline()


def attempt(action):
    """The reply, or the class of the error."""
    try:
        return action()
    except redis.RedisError as error:
        return type(error)


def until(condition, what):
    end = time.monotonic() + 20
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within 20 seconds: {what}")
        time.sleep(0.02)


def main(mode, password, proxy_port, *ports):
    password = password or None
    proxy = connect(int(proxy_port), password)
    servers = [redis.Redis(port=int(port), password=password) for port in ports]
    with proxy.pipeline(transaction=False) as pipe:
        for i, key in enumerate(KEYS):
            pipe.set(key, i, ex=1000)
        equal(pipe.execute(), [True] * len(KEYS), "a pipeline of SETs over all servers")
        for key in KEYS:
            pipe.get(key)
        numbers = [str(i).encode() for i in range(len(KEYS))]
        equal(pipe.execute(), numbers, "a pipeline of GETs over all servers")
    equal(proxy.mget(KEYS), numbers, "MGET over all servers")
    shares = [set(key.decode() for key in server.scan_iter("key:*")) for server in servers]
    equal(set.union(*shares), set(KEYS), "the keys of all servers")
    equal(sum(map(len, shares)), len(KEYS), "each key on one server")
    equal(min(map(len, shares)) > len(KEYS) / 10, True, f"a share of the keys on each server: {list(map(len, shares))}")
    equal(proxy.mset({f"several:{i}": i for i in range(20)}), True, "MSET over all servers")
    equal(proxy.exists(*(f"several:{i}" for i in range(30))), 20, "EXISTS over all servers")
    equal(proxy.delete(*(f"several:{i}" for i in range(30))), 20, "DEL over all servers")
    equal((proxy.incr("n"), proxy.ttl(KEYS[0]) > 0), (1, True), "INCR and TTL")
    every_byte = bytes(range(256)) * 256
    proxy.set("bytes", every_byte)
    equal(proxy.get("bytes"), every_byte, "65,536 bytes of all values")
    # Keys with the same tag are on the same server, so a script finds all of them.
    move = "redis.call('SET', KEYS[2], redis.call('GETDEL', KEYS[1])) return redis.call('GET', KEYS[2])"
    proxy.set("{user:1}:old", "x")
    equal(proxy.eval(move, 2, "{user:1}:old", "{user:1}:new"), b"x", "a script with two keys of a tag")
    for refused in (
        lambda: proxy.pipeline(transaction=True).set("a", 1).execute(),
        lambda: proxy.scan(),
        lambda: proxy.keys(),
        lambda: proxy.info(),
        lambda: proxy.script_load("return 1"),
        lambda: proxy.msetnx({"a": 1, "b": 2}),
    ):
        equal(attempt(refused), redis.ConnectionError, "a command that the proxy does not have")

    lost, kept = max(shares[-1]), max(shares[0])
    ask("stop")
    if mode == "error":
        for _ in range(5):
            equal(attempt(lambda: proxy.get(lost)), redis.ResponseError, "GET of a key of the server that is gone")
            equal(proxy.get(kept), str(KEYS.index(kept)).encode(), "GET of a key of another server")
            equal(attempt(lambda: proxy.mget(lost, kept)), redis.ResponseError, "MGET with such a key")
            # After an MGET that has failed, the proxy sometimes closes the client's connection, also in front of Redis.
            until(lambda: attempt(proxy.ping) is True, "the client is connected again")
    else:
        # From time to time the proxy tries the server again, which gives errors.
        until(lambda: attempt(lambda: proxy.get(lost)) is None, "another server is asked for the key")
        until(lambda: attempt(lambda: proxy.set(lost, "meanwhile")) is True, "SET of such a key")
        until(lambda: attempt(lambda: proxy.get(lost)) == b"meanwhile", "GET of such a key")
    ask("start")
    value = str(KEYS.index(lost)).encode()
    until(lambda: attempt(lambda: proxy.get(lost)) == value, "the server that came back has its value")
    until(lambda: attempt(lambda: proxy.mget(KEYS)) == numbers, "all keys are there again")
    if mode == "eject":
        stale = [server.get(lost) for server in servers[:-1]]
        equal(b"meanwhile" in stale, True, "the value that was written meanwhile is left on another server")
    print(f"redis-py {redis.__version__} {mode}", flush=True)


main(*sys.argv[1:])
