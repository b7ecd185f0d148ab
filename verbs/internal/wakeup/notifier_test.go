package wakeup_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// TestOneTokenForTwoElements: two goroutines find the queue empty, and two elements are added
// before either sleeps. The first Notify leaves a token that represents both elements. The
// goroutine that takes the token must wake the other.
func TestOneTokenForTwoElements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := wakeup.New(machine{})
		var mu sync.Mutex
		var queue []int
		var polled sync.WaitGroup // until both goroutines have found the queue empty
		polled.Add(2)
		filled := make(chan struct{})
		var got sync.WaitGroup
		for range 2 {
			got.Go(func() {
				first := true
				_, err := wakeup.Wait(t.Context(), n, func() (v int, ok, more bool) {
					if first {
						first = false
						polled.Done()
						<-filled
						return 0, false, false
					}
					mu.Lock()
					defer mu.Unlock()
					if len(queue) == 0 {
						return 0, false, false
					}
					v, queue = queue[0], queue[1:]
					return v, true, len(queue) > 0
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		polled.Wait()
		for i := range 2 {
			queue = append(queue, i)
			n.Notify()
		}
		close(filled)
		got.Wait() // if a goroutine is not woken, synctest reports a deadlock
	})
}

func TestWaitEnds(t *testing.T) {
	none := func() (v int, ok, more bool) { return 0, false, false }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n := wakeup.New(machine{})
	if _, err := wakeup.Wait(ctx, n, none); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v after the context's end", err)
	}
	n.Close()
	if _, err := wakeup.Wait(t.Context(), n, none); err != wakeup.ErrClosed {
		t.Errorf("error %v after Close", err)
	}
	v, err := wakeup.Wait(ctx, n, func() (int, bool, bool) { return 7, true, false })
	if v != 7 || err != nil {
		t.Errorf("%d, %v: Wait must take what is in the queue before it looks at ctx", v, err)
	}
}

// machine is a clock without turns.
type machine struct{}

func (machine) Virtual() bool    { return false }
func (machine) Go(f func())      { go f() }
func (machine) Park(func() bool) {}
