package rdmatransport_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
)

// QPs on the kernel's sockets share them. Two hosts have a few sockets and threads, for any number
// of QPs that have sent. The same holds for two hosts at one address, which lease their numbers
// from a hub. In the long run there are a hundred thousand QPs.
func TestSocketsOfIdleQPs(t *testing.T) {
	n := stacktest.Size(200, 2000, idleQPs)
	t.Run("alone", func(t *testing.T) {
		// A host has one socket to receive from, with an epoll instance. It has eight to send from,
		// and one of netlink. The runtime has a few files of its own.
		idleOnSockets(t, n, 2*(2+8+1)+6, func() stacktest.Host { return stacktest.OnLoopback(t, nil).Host })
	})
	t.Run("hub", func(t *testing.T) {
		dir := stacktest.Hub(t)
		addr := fmt.Sprintf("127.%d.%d.%d", 1+rand.N(254), rand.N(255), 1+rand.N(254))
		// A host has one connection to the hub, one to the other host, one socket to receive from with
		// its epoll instance, eight to send from and one of netlink. The hub has the connections and
		// the receiving sockets of both, one listener, and one end of the connection between them. It
		// also has one socket to receive from with its epoll instance, and one that claims the address.
		idleOnSockets(t, n, 2*(1+1+2+8+1)+2*2+5+6, func() stacktest.Host {
			wait := func(string) error { return nil } // the hub is about to start
			h, err := kernel.New(&kernel.Config{Addrs: []string{addr}, Sharing: &kernel.Sharing{Directory: dir, QPs: n, Start: wait}})
			noError(t, err)
			return h
		})
	})
}

// idleOnSockets lets n QPs of two hosts send to each other, and checks how many files were opened.
func idleOnSockets(t *testing.T, n, most int, open func() stacktest.Host) {
	files, threads := entriesOf(t, "/proc/self/fd"), entriesOf(t, "/proc/self/task")
	var nodes [2]idleNode
	for i := range nodes {
		nodes[i].open(t, open())
	}
	qps := connectedQPs(t, &nodes, n)
	for i, qp := range qps {
		noError(t, qps[i^1].PostRecv(&verbs.RecvWR{}))
		noError(t, qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}))
		for _, node := range nodes {
			if status := completed(t, node.cq); status != verbs.WCSuccess {
				t.Fatalf("QP %d of %d: %v", i, n, status)
			}
		}
	}
	files, threads = entriesOf(t, "/proc/self/fd")-files, entriesOf(t, "/proc/self/task")-threads
	t.Logf("result: %d QPs: %d additional files and %d threads", n, files, threads)
	if files > most {
		t.Errorf("%d files were opened for %d QPs, want at most %d", files, n, most)
	}
	if threads > 16 {
		t.Errorf("%d threads were started for %d QPs", threads, n)
	}
}

// completed waits for a completion.
func completed(t *testing.T, cq *verbs.CQ) verbs.WCStatus {
	t.Helper()
	var wc [1]verbs.WC
	for give := time.Now().Add(20 * time.Second); time.Now().Before(give); {
		n, err := cq.Poll(wc[:])
		noError(t, err)
		if n == 1 {
			return wc[0].Status
		}
	}
	t.Fatal("no completion")
	return 0
}

// entriesOf returns the number of entries in a directory.
func entriesOf(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	noError(t, err)
	return len(entries)
}
