package wakeup_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// TestOneTokenForTwo: two goroutines find the queue empty, and before either sleeps two things are put in. The first Ring
// leaves a token and the second finds it there, so that whoever gets it has to wake the other.
func TestOneTokenForTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := wakeup.New()
		var mu sync.Mutex
		var queue []int
		var looked sync.WaitGroup // the goroutines have found nothing
		looked.Add(2)
		filled := make(chan struct{})
		var got sync.WaitGroup
		for range 2 {
			got.Go(func() {
				first := true
				_, err := wakeup.Wait(t.Context(), b, func() (v int, ok, more bool) {
					if first {
						first = false
						looked.Done()
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
		looked.Wait()
		for i := range 2 {
			queue = append(queue, i)
			b.Ring()
		}
		close(filled)
		got.Wait() // a goroutine that nobody wakes is a deadlock, which ends the test
	})
}

func TestEndOfWait(t *testing.T) {
	none := func() (v int, ok, more bool) { return 0, false, false }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := wakeup.New()
	if _, err := wakeup.Wait(ctx, b, none); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v after the context's end", err)
	}
	b.Close()
	if _, err := wakeup.Wait(t.Context(), b, none); err != wakeup.ErrClosed {
		t.Errorf("error %v after Close", err)
	}
	v, err := wakeup.Wait(ctx, b, func() (int, bool, bool) { return 7, true, false })
	if v != 7 || err != nil {
		t.Errorf("%d, %v: what is in the queue comes first", v, err)
	}
}
