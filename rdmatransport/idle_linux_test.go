package rdmatransport_test

import (
	"os"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// QPs on the machine's sockets share them: however many there are, and though each has sent, two hosts have a few sockets and
// threads. With SOFTRNIC_LONG set there are a hundred thousand.
func TestSocketsOfIdleQPs(t *testing.T) {
	n := 2000
	if os.Getenv("SOFTRNIC_LONG") != "" {
		n = idleQPs
	}
	files, threads := entriesOf(t, "/proc/self/fd"), entriesOf(t, "/proc/self/task")
	var nodes [2]idleNode
	for i := range nodes {
		h, _ := loopbackHost(t)
		nodes[i].open(t, h)
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
	t.Logf("%d QPs: %d files and %d threads more", n, files, threads)
	// A host has one socket to receive from, eight to send from and one of netlink; the runtime has a few files of its own.
	if files > 2*(1+8+1)+6 {
		t.Errorf("%d files were opened for %d QPs", files, n)
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

// entriesOf counts those of a directory.
func entriesOf(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	noError(t, err)
	return len(entries)
}
