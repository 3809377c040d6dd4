package main

import (
	"bufio"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

// ring spreads keys over servers. It writes "stop" when the test is to end the last server, and "start" when the test is to
// start it again, and waits for a line each time.
func ring(addresses []string) {
	names := map[string]string{}
	for i, address := range addresses {
		names[fmt.Sprint("server-", i+1)] = address
	}
	client := redis.NewRing(&redis.RingOptions{Addrs: names, HeartbeatFrequency: 50 * time.Millisecond, MaxRetries: -1, DialerRetries: 1})
	defer client.Close()
	const keys = 300
	key := func(i int) string { return fmt.Sprint("ring:", i) }
	for i := range keys {
		ok(client.Set(ctx, key(i), i, 0).Err(), "SET")
	}
	replies, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range keys {
			pipe.Get(ctx, key(i))
		}
		return nil
	})
	ok(err, "a pipeline over all servers")
	for i, get := range replies {
		equal(get.(*redis.StringCmd).Val(), fmt.Sprint(i), "a GET of a pipeline over all servers")
	}
	var last []string
	for i, address := range addresses {
		server := redis.NewClient(&redis.Options{Addr: address})
		names := reply(server.Keys(ctx, "ring:*").Result())
		equal(len(names) > keys/10, true, fmt.Sprint("a share of the keys on server ", i+1))
		last = names
		server.Close()
	}
	// A command on several keys goes to the server of the first one, which does not have all of the others.
	found := 0
	for _, value := range reply(client.MGet(ctx, key(0), key(1), key(2), key(3), key(4), key(5), key(6), key(7)).Result()) {
		if value != nil {
			found++
		}
	}
	equal(found > 0 && found < 8, true, "MGET of keys on several servers")
	// Keys with the same tag are on the same server, so that commands on several keys find all of them.
	ok(client.MSet(ctx, "{user:1}:name", "x", "{user:1}:mail", "y").Err(), "MSET of keys with a tag")
	equal(reply(client.MGet(ctx, "{user:1}:name", "{user:1}:mail").Result()), []any{"x", "y"}, "MGET of keys with a tag")
	_, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Incr(ctx, "{user:1}:visits")
		return pipe.Incr(ctx, "{user:1}:visits").Err()
	})
	ok(err, "MULTI and EXEC of keys with a tag")
	equal(reply(client.Get(ctx, "{user:1}:visits").Result()), "2", "MULTI and EXEC of keys with a tag")

	lines := bufio.NewScanner(os.Stdin)
	ask := func(what string) {
		fmt.Println(what)
		equal(lines.Scan(), true, "an answer")
	}
	ask("stop")
	equal(client.Get(ctx, last[0]).Err() != nil, true, "an error or no key, of a server that is gone")
	until(func() bool { return client.Len() == len(addresses)-1 })
	// The other servers take over its part of the keys, and begin with nothing.
	for i := range keys {
		if err := client.Get(ctx, key(i)).Err(); err != redis.Nil {
			ok(err, "GET without one server")
		}
	}
	equal(client.Get(ctx, last[0]).Err(), error(redis.Nil), "a key of the server that is gone")
	ok(client.Set(ctx, last[0], "meanwhile", 0).Err(), "SET of such a key")
	ask("start")
	until(func() bool { return client.Len() == len(addresses) })
	// What was written meanwhile is on another server, and its old value is back.
	equal(reply(client.Get(ctx, last[0]).Result()) != "meanwhile", true, "a key of the server that came back")
	fmt.Printf("go-redis %s ring\n", redis.Version())
}

func until(condition func() bool) {
	for range 1000 {
		if condition() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	panic("not within 10 seconds")
}
