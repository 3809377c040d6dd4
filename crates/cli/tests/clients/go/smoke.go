package main

import (
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A fixed window: it counts a call, and starts the window at the first one.
var rateLimit = redis.NewScript(`
local calls = redis.call('INCR', KEYS[1])
if calls == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return calls <= tonumber(ARGV[2])
`)

// Deletes a lock only if the caller still holds it.
var release = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
`)

// smoke runs everything with one protocol; 0 is the library's default.
func smoke(address string, protocol int) {
	options := func() *redis.Options { return &redis.Options{Addr: address, Protocol: protocol} }
	client, other := redis.NewClient(options()), redis.NewClient(options())
	defer client.Close()
	defer other.Close()
	ok(client.FlushAll(ctx).Err(), "FLUSHALL")
	resp := connection(client, protocol)
	values(client)
	refusals(client)
	pipelines(client)
	transactions(client, other)
	scripts(client)
	pools(options())
	reconnection(client, other)
	authentication(client, options)
	fmt.Printf("go-redis %s RESP%d\n", redis.Version(), resp)
}

func connection(client *redis.Client, protocol int) int {
	info := reply(client.ClientInfo(ctx).Result())
	if protocol == 0 {
		protocol = 3
	}
	equal(info.Resp, protocol, "HELLO")
	equal(strings.HasPrefix(info.LibName, "go-redis"), true, "CLIENT SETINFO LIB-NAME")
	equal(info.LibVer, redis.Version(), "CLIENT SETINFO LIB-VER")
	equal(reply(client.Ping(ctx).Result()), "PONG", "PING")
	equal(strings.Contains(reply(client.Info(ctx, "server").Result()), "redis_mode:standalone"), true, "INFO")
	equal(len(reply(client.ConfigGet(ctx, "maxmemory").Result())), 1, "CONFIG GET")
	equal(reply(client.Command(ctx).Result())["get"].Name, "get", "COMMAND")
	return info.Resp
}

func values(client *redis.Client) {
	equal(client.Get(ctx, "missing").Err(), error(redis.Nil), "GET of no key")
	equal(reply(client.Set(ctx, "k", "v", 0).Result()), "OK", "SET")
	equal(reply(client.SetNX(ctx, "k", "other", time.Minute).Result()), false, "SET NX of a key")
	equal(reply(client.SetXX(ctx, "no", "other", 0).Result()), false, "SET XX of no key")
	equal(reply(client.SetArgs(ctx, "k", "w", redis.SetArgs{Mode: "XX", Get: true}).Result()), "v", "SET XX GET")
	ok(client.Set(ctx, "k", "w", 100*time.Second).Err(), "SET EX")
	equal(reply(client.TTL(ctx, "k").Result()) > 90*time.Second, true, "TTL")
	ok(client.Set(ctx, "k", "x", redis.KeepTTL).Err(), "SET KEEPTTL")
	equal(reply(client.PTTL(ctx, "k").Result()) > 90*time.Second, true, "PTTL")
	equal(reply(client.Persist(ctx, "k").Result()), true, "PERSIST")
	equal(reply(client.ExpireNX(ctx, "k", 50*time.Second).Result()), true, "EXPIRE NX")
	equal(reply(client.ExpireGT(ctx, "k", 10*time.Second).Result()), false, "EXPIRE GT of a shorter one")
	equal(reply(client.GetEx(ctx, "k", 20*time.Millisecond).Result()), "x", "GETEX PX")
	time.Sleep(50 * time.Millisecond)
	equal(reply(client.Exists(ctx, "k").Result()), int64(0), "a key after its expiry")
	equal(reply(client.MSet(ctx, "a", 1, "b", 2.5).Result()), "OK", "MSET")
	equal(reply(client.MGet(ctx, "a", "b", "missing").Result()), []any{"1", "2.5", nil}, "MGET")
	equal(reply(client.MSetNX(ctx, "a", 9, "new", 9).Result()), false, "MSETNX")
	equal(reply(client.Incr(ctx, "a").Result()), int64(2), "INCR")
	equal(reply(client.IncrByFloat(ctx, "b", 0.25).Result()), 2.75, "INCRBYFLOAT")
	equal(reply(client.Append(ctx, "a", "!").Result()), int64(2), "APPEND")
	equal(reply(client.GetRange(ctx, "a", 0, 0).Result()), "2", "GETRANGE")
	equal(reply(client.GetDel(ctx, "a").Result()), "2!", "GETDEL")
	equal(reply(client.Del(ctx, "a", "b").Result()), int64(1), "DEL")
	every := make([]byte, 65_536)
	for i := range every {
		every[i] = byte(i)
	}
	ok(client.Set(ctx, string(every[:255]), every, 0).Err(), "SET of 65,536 bytes of all values")
	equal(reply(client.Get(ctx, string(every[:255])).Bytes()), every, "65,536 bytes of all values")
	now := time.Unix(1, 5).UTC()
	ok(client.Set(ctx, "time", now, 0).Err(), "SET of a time")
	equal(reply(client.Get(ctx, "time").Time()), now, "a time")
}

func refusals(client *redis.Client) {
	ok(client.Set(ctx, "word", "abc", 0).Err(), "SET")
	refused(client.Incr(ctx, "word").Err(), "not an integer")
	refused(client.Do(ctx, "NO-SUCH", "x").Err(), "unknown command")
	refused(client.Set(ctx, "word", strings.Repeat("x", 65_537), 0).Err(), "ERR")
	equal(reply(client.Get(ctx, "word").Result()), "abc", "the connection after errors")
}

func pipelines(client *redis.Client) {
	const keys = 2000
	_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range keys {
			pipe.Set(ctx, fmt.Sprint("p:", i), i, time.Hour)
		}
		return nil
	})
	ok(err, "a pipeline of SETs")
	replies, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range keys {
			pipe.Get(ctx, fmt.Sprint("p:", i))
		}
		return nil
	})
	ok(err, "a pipeline of GETs")
	for i, get := range replies {
		equal(get.(*redis.StringCmd).Val(), strconv.Itoa(i), "a GET in a pipeline")
	}
	pipe := client.Pipeline()
	set, incr, get := pipe.Set(ctx, "q", "text", 0), pipe.Incr(ctx, "q"), pipe.Get(ctx, "q")
	_, err = pipe.Exec(ctx)
	refused(err, "not an integer")
	refused(incr.Err(), "not an integer")
	equal(set.Val()+get.Val(), "OKtext", "the replies around an error in a pipeline")
	found := map[string]bool{}
	iterator := client.Scan(ctx, 0, "p:*", 100).Iterator()
	for iterator.Next(ctx) {
		found[iterator.Val()] = true
	}
	ok(iterator.Err(), "SCAN")
	equal(len(found), keys, "SCAN")
	names := reply(client.Keys(ctx, "p:199?").Result())
	sort.Strings(names)
	equal(names[9], "p:1999", "KEYS")
}

func transactions(client, other *redis.Client) {
	pipe := client.TxPipeline()
	set, incr, get := pipe.Set(ctx, "t", 1, 0), pipe.Incr(ctx, "t"), pipe.Get(ctx, "t")
	reply(pipe.Exec(ctx))
	equal([]any{set.Val(), incr.Val(), get.Val()}, []any{"OK", int64(2), "2"}, "MULTI and EXEC")
	_, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "t", 1, 0)
		return pipe.Do(ctx, "GET").Err()
	})
	refused(err, "EXECABORT")
	equal(reply(client.Get(ctx, "t").Result()), "2", "a transaction with a refused command")
	set10 := func(tx *redis.Tx) error {
		value, err := tx.Get(ctx, "t").Int()
		if err != nil {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			return pipe.Set(ctx, "t", value+10, 0).Err()
		})
		return err
	}
	err = client.Watch(ctx, func(tx *redis.Tx) error {
		ok(other.Set(ctx, "t", 0, 0).Err(), "SET")
		return set10(tx)
	}, "t")
	equal(errors.Is(err, redis.TxFailedErr), true, "a watched key that has changed")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 5 {
				err := error(redis.TxFailedErr)
				for errors.Is(err, redis.TxFailedErr) {
					err = client.Watch(ctx, set10, "t")
				}
				ok(err, "an optimistic transaction")
			}
		})
	}
	all.Wait()
	equal(reply(client.Get(ctx, "t").Result()), "400", "40 optimistic transactions of 8 clients")
}

func scripts(client *redis.Client) {
	ok(client.ScriptFlush(ctx).Err(), "SCRIPT FLUSH")
	refused(rateLimit.EvalSha(ctx, client, []string{"rate"}, 1, 1).Err(), "NOSCRIPT")
	for i := range 5 {
		err := rateLimit.Run(ctx, client, []string{"rate"}, 60_000, 3).Err()
		equal(err == nil, i < 3, "a rate limiter")
		equal(err == redis.Nil, i >= 3, "a rate limiter beyond its limit")
	}
	equal(reply(rateLimit.Exists(ctx, client).Result()), []bool{true}, "SCRIPT EXISTS")
	nested := client.Eval(ctx, "return {1, 'two', {KEYS[1], ARGV[1]}}", []string{"k"}, "\xff\x00")
	equal(reply(nested.Result()), []any{int64(1), "two", []any{"k", "\xff\x00"}}, "EVAL")
	refused(client.Eval(ctx, "return redis.error_reply('MINE own')", nil).Err(), "MINE own")
	equal(reply(client.SetNX(ctx, "lock", "me", 10*time.Second).Result()), true, "a lock")
	equal(reply(release.Run(ctx, client, []string{"lock"}, "other").Int()), 0, "another one's release")
	equal(reply(release.Run(ctx, client, []string{"lock"}, "me").Int()), 1, "the release of a lock")
}

func pools(options *redis.Options) {
	options.PoolSize = 4
	client := redis.NewClient(options)
	defer client.Close()
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 25 {
				ok(client.Incr(ctx, "pooled").Err(), "INCR")
			}
		})
	}
	all.Wait()
	equal(reply(client.Get(ctx, "pooled").Result()), "400", "16 goroutines with 4 connections")
	equal(client.PoolStats().TotalConns <= 4, true, "the size of a pool")
}

func reconnection(client, other *redis.Client) {
	one := client.Conn()
	id := reply(one.ClientID(ctx).Result())
	equal(reply(other.ClientKillByFilter(ctx, "ID", strconv.FormatInt(id, 10)).Result()), int64(1), "CLIENT KILL")
	equal(one.Incr(ctx, "reconnected").Err() != nil, true, "a command on the connection that the server closed")
	ok(one.Close(), "Close")
	// The pool has closed connections now, and replaces them.
	ok(other.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Err(), "CLIENT KILL TYPE")
	for i := range 10 {
		equal(reply(client.Incr(ctx, "reconnected").Result()), int64(i+1), "a command after the server closed the connections")
	}
}

func authentication(client *redis.Client, options func() *redis.Options) {
	ok(client.ConfigSet(ctx, "requirepass", "secret").Err(), "CONFIG SET")
	try := func(username, password string) error {
		with := options()
		with.Username, with.Password = username, password
		attempt := redis.NewClient(with)
		defer attempt.Close()
		return attempt.Set(ctx, "k", 1, 0).Err()
	}
	refused(try("", ""), "NOAUTH")
	equal(redis.IsAuthError(try("", "wrong")), true, "a wrong password")
	equal(redis.IsAuthError(try("nobody", "secret")), true, "an unknown user")
	ok(try("", "secret"), "a password")
	ok(try("default", "secret"), "a user and a password")
	ok(client.ConfigSet(ctx, "requirepass", "").Err(), "CONFIG SET")
	ok(try("", ""), "no password again")
}
