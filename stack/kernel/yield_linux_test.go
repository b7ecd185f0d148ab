package kernel_test

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// TestPollersYield checks that with GOMAXPROCS 1 pollers let the goroutines of streams receive.
// Otherwise these would run only every 10 ms, after some thousands of polls.
func TestPollersYield(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	from, to := newHost(t, "127.0.0.1"), newHost(t, "127.0.0.2")
	a, b := connect(t, from, to, "127.0.0.2")
	var came atomic.Int64
	go func() {
		for b.Wait() == nil {
			var c counter
			if b.Receive(&c) != nil {
				return
			}
			came.Add(int64(c.n))
		}
	}()
	const messages, maxPolls = 50, 200
	late, nic := 0, to.NICs()[0]
	for n := range int64(messages) {
		if _, err := a.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		polls := 0
		for ; came.Load() <= n; polls++ {
			if !nic.Poll() {
				runtime.Gosched()
			}
		}
		if polls > maxPolls {
			late++
		}
	}
	nic.EndPoll()
	if late > messages/2 {
		t.Errorf("%d of %d messages arrived after more than %d polls", late, messages, maxPolls)
	}
}
