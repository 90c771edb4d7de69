package pgtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// firstKernelPort is the first of those that the kernel may give to connections, and to
// those who listen on any: 32768 on Linux, 49152 elsewhere.
const firstKernelPort = 32768

// given are the ports that freePort has returned.
var given sync.Map

// FreeAddress returns an address of loopback that nobody listens on, for a server of a
// test's own that is told its address, or restarted there. The kernel gives its port to
// nobody, and no other call in this process returns it: a port that was listened on for a
// moment may be that of another test's connection before the server has it.
func FreeAddress(t testing.TB) string {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint("127.0.0.1:", port)
}

func freePort() (port int, err error) {
	for range 1000 {
		port = 10_000 + rand.IntN(firstKernelPort-10_000)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)); err != nil {
			continue
		}
		err = l.Close()
		if _, twice := given.LoadOrStore(port, true); !twice {
			return port, err
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}
