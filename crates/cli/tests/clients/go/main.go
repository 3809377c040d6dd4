// What an application does with go-redis.
//
//	clients smoke HOST:PORT
//	clients ring HOST:PORT HOST:PORT HOST:PORT
//
// The program prints a line for each run that succeeds, and panics at the first wrong reply.
package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

// equal also demands equal types.
func equal(found, expected any, what string) {
	if !reflect.DeepEqual(found, expected) {
		panic(fmt.Sprintf("%s: %#v instead of %#v", what, found, expected))
	}
}

func ok(err error, what string) {
	if err != nil {
		panic(fmt.Sprintf("%s: %v", what, err))
	}
}

// reply is the value of a command that must succeed.
func reply[T any](value T, err error) T {
	ok(err, fmt.Sprintf("a reply with %T", value))
	return value
}

// refused demands an error reply of the server with this text.
func refused(err error, text string) {
	if _, isReply := err.(redis.Error); !isReply || !strings.Contains(err.Error(), text) {
		panic(fmt.Sprintf("%v instead of an error reply with %q", err, text))
	}
}

func main() {
	switch os.Args[1] {
	case "smoke":
		// RESP3 is the default.
		for _, protocol := range []int{2, 0} {
			smoke(os.Args[2], protocol)
		}
	case "ring":
		ring(os.Args[2:])
	default:
		panic("unknown command " + os.Args[1])
	}
}
