package netstack_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/softrnic/softrnic/stack"
)

// TestNotifyReadable checks that NotifyReadable calls its function once, for each kind of event,
// before or after.
func TestNotifyReadable(t *testing.T) {
	noError := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	for name, act := range map[string]func(a, b stack.Stream){
		"data": func(_, b stack.Stream) {
			_, err := b.Write([]byte{1})
			noError(err)
		},
		"the end":              func(_, b stack.Stream) { noError(b.CloseWrite()) },
		"a reset":              func(_, b stack.Stream) { b.Abort() },
		"its own end":          func(a, _ stack.Stream) { noError(a.Close()) },
		"its own abort":        func(a, _ stack.Stream) { a.Abort() },
		"a deadline":           func(a, _ stack.Stream) { noError(a.SetReadDeadline(time.Now().Add(time.Millisecond))) },
		"a deadline long past": func(a, _ stack.Stream) { noError(a.SetReadDeadline(time.Unix(1, 0))) },
	} {
		for _, before := range []bool{true, false} {
			when := map[bool]string{true: " before", false: " after"}[before]
			t.Run(name+when, func(t *testing.T) {
				l := newLane(t, nil)
				a, b := l.dial(0)
				defer a.Abort()
				defer b.Abort()
				calls := make(chan struct{}, 2)
				if before {
					act(a, b)
				}
				a.(stack.ReadNotifier).NotifyReadable(func() { calls <- struct{}{} })
				if !before {
					act(a, b)
				}
				select {
				case <-calls:
				case <-time.After(10 * time.Second):
					t.Fatal("not called")
				}
				a.Abort() // no call, because there is no waiting function
				select {
				case <-calls:
					t.Error("called again")
				default:
				}
			})
		}
	}
}

// TestNotifyReadableAgain checks that a second NotifyReadable reports data that arrived meanwhile.
func TestNotifyReadableAgain(t *testing.T) {
	const n = 1000
	l := newLane(t, nil)
	a, b := l.dial(0)
	defer a.Abort()
	defer b.Abort()
	done := make(chan int)
	got := 0
	var read func()
	read = func() {
		if err := a.Receive(consumerFunc(func(b []byte) bool { got += len(b); return true })); err != nil {
			t.Error(err)
		}
		if got == n {
			done <- got
			return
		}
		a.(stack.ReadNotifier).NotifyReadable(read)
	}
	a.(stack.ReadNotifier).NotifyReadable(read)
	for range n {
		if _, err := b.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("bytes arrived without a notification")
	}
}

// TestNotifyReadableAfterDeadline checks that a deadline that has passed and was removed does not
// call the function, although its timer may still be running.
func TestNotifyReadableAfterDeadline(t *testing.T) {
	l := newLane(t, nil)
	a, b := l.dial(0)
	defer a.Abort()
	defer b.Abort()
	received := make(chan int)
	read := func() {
		n := 0
		if err := a.Receive(consumerFunc(func(b []byte) bool { n += len(b); return true })); err != nil {
			t.Error(err)
		}
		received <- n
	}
	rounds := 10_000
	if testing.Short() {
		rounds = 1000
	}
	for range rounds {
		deadline := time.Now().Add(10 * time.Microsecond)
		if err := a.SetReadDeadline(deadline); err != nil {
			t.Fatal(err)
		}
		for time.Now().Before(deadline) { // a sleeper would be late, and the timer over
			runtime.Gosched()
		}
		if err := a.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		a.(stack.ReadNotifier).NotifyReadable(read)
		if _, err := b.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		if n := <-received; n != 1 {
			t.Fatalf("called when %d bytes had arrived, want 1", n)
		}
	}
}
