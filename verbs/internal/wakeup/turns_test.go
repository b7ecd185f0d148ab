package wakeup_test

import (
	"context"
	"sync"
	"testing"

	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// turns is a clock of goroutines that take turns. What they wait for must have happened.
type turns struct {
	machine
	t *testing.T
}

func (turns) Virtual() bool { return true }

func (c turns) Park(ready func() bool) {
	if !ready() {
		c.t.Error("a wait for what never happens")
	}
}

// TestBothHappen: if what is waited for comes at the end of the wait, it is taken each time.
func TestBothHappen(t *testing.T) {
	c := turns{t: t}
	ended, end := context.WithCancel(t.Context())
	end()
	ch := make(chan int, 1)
	n := wakeup.New(c)
	for i := range 100 {
		ch <- i
		if v, ok := wakeup.Take(c, ch, ended.Done()); v != i || !ok {
			t.Fatalf("Take returns %d, %t", v, ok)
		}
		if _, ok := wakeup.Take(c, ch, ended.Done()); ok {
			t.Fatal("Take returns an element of an empty channel")
		}
		if err := wakeup.ReceiveContext(ended, c, ended.Done()); err != nil {
			t.Fatal("ReceiveContext: ", err)
		}
		n.Notify()
		looks := 0
		if _, err := wakeup.Wait(ended, n, func() (v int, ok, more bool) {
			looks++
			return 0, looks == 2, false
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLock: who waits for a lock lets others run.
func TestLock(t *testing.T) {
	var l sync.Mutex
	l.Lock()
	c := unlocking{turns{t: t}, &l}
	wakeup.Lock(c, &l)
	if l.TryLock() {
		t.Error("it is not locked")
	}
}

// unlocking is a clock with a goroutine that unlocks a lock when others wait.
type unlocking struct {
	turns
	l *sync.Mutex
}

func (c unlocking) Park(ready func() bool) {
	if ready() {
		c.t.Error("a locked lock is ready")
	}
	c.l.Unlock()
	c.turns.Park(ready)
}
