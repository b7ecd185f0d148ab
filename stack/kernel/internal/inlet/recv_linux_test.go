package inlet

import (
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
)

// TestBatch: how many messages a system call asks for, after batches of messages of some size.
func TestBatch(t *testing.T) {
	const short, long = 100, 60 << 10
	var b batch
	b.limit = 1
	for i, step := range []struct {
		sizes []int
		want  int
	}{
		{[]int{short}, 2},
		{[]int{short, short}, 4},
		{[]int{short, short, short}, 4}, // there were no more
		{[]int{short, short, short, short}, receiveBatch},
		{[]int{short, short, short, short, short, short, short, short}, receiveBatch},
		{[]int{short, long}, bulkBatch},
		{[]int{long, long}, bulkBatch},
		{[]int{long}, bulkBatch},
		{[]int{short, short}, 4},
	} {
		for j, n := range step.sizes {
			b.msgs[j].n = uint32(n)
		}
		b.adapt(len(step.sizes))
		if b.limit != step.want {
			t.Fatalf("after batch %d, of %v bytes, the next may have %d messages, want %d", i, step.sizes, b.limit, step.want)
		}
	}
}

// nobody takes what comes, which is nothing.
type nobody struct{}

func (nobody) Deliver(*Arrival, bool) {}
func (nobody) Polled() bool           { return true }

// TestPollsLetOthersRun: with one processor, who polls in vain lets other goroutines run. They may have what he waits for.
func TestPollsLetOthersRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s, err := Open(netip.MustParseAddr("127.21.7.1"), "", nobody{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var ran atomic.Bool
	go ran.Store(true)
	for polls := 0; !ran.Load(); polls++ {
		if polls > 4*goschedPollsOneP {
			t.Fatalf("after %d polls the other goroutine has not run", polls)
		}
		s.Poll()
	}
}
