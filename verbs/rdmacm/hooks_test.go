package rdmacm_test

import (
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestOnEvent: the hook is called for each event that is added, or dropped because its ID was
// closed or migrated. TryGetEvent returns these events. Close waits for the acknowledgement of
// events that TryGetEvent has returned.
func TestOnEvent(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		pending := 0
		want := func(what string, n int) {
			t.Helper()
			synctest.Wait() // the hook is called on a goroutine of its own
			if pending != n {
				t.Errorf("%s: the sum of the hook's numbers minus the events taken is %d, want %d", what, pending, n)
			}
		}
		take := func(want rdmacm.EventType) *rdmacm.Event {
			t.Helper()
			e, err := a.ch.TryGetEvent()
			must(t, err)
			if pending--; e.Type != want {
				t.Fatalf("%v, want %v", e.Type, want)
			}
			return e
		}
		_, err := a.ch.TryGetEvent()
		wantErr(t, err, verbs.ErrAgain)
		wantErr(t, err, syscall.EAGAIN)

		l := a.listen(rdmacm.TCP)
		clients := []*rdmacm.ID{b.resolve(rdmacm.TCP, v4A+":7471"), b.resolve(rdmacm.TCP, v4A+":7471")}
		must(t, clients[0].Connect(nil))
		synctest.Wait()
		a.ch.OnEvent(func(n int) { pending += n })
		want("one request before the hook was set", 1)
		must(t, clients[1].Connect(nil))
		synctest.Wait()
		want("another request", 2)

		to, err := rdmacm.CreateEventChannel(a.dev)
		must(t, err)
		moved := 0
		to.OnEvent(func(n int) { moved += n })
		must(t, l.Migrate(t.Context(), to))
		if want("migrated", 0); moved != 2 {
			t.Errorf("the other channel's hook got %d, want 2", moved)
		}
		must(t, l.Migrate(t.Context(), a.ch))
		want("and back", 2)

		e := take(rdmacm.ConnectRequest)
		done := make(chan error, 1)
		go func() { done <- l.Close() }()
		synctest.Wait()
		select {
		case <-done:
			t.Error("Close of the listener did not wait for the event")
		default:
		}
		want("the listener is closed", 0)
		must(t, e.Ack())
		must(t, <-done)
		a.ch.OnEvent(nil)
		must(t, e.ID.Close())
		must(t, a.ch.Close())
		_, err = a.ch.TryGetEvent()
		wantErr(t, err, verbs.ErrClosed)
	})
}

// TestWaitCallbacks: when WaitCallbacks returns, the hook has been called for the events that Close
// dropped.
func TestWaitCallbacks(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		pending := 0
		b.ch.OnEvent(func(n int) { pending += n })
		id := b.resolve(rdmacm.TCP, v4A+":7471") // takes its events
		must(t, id.Connect(nil))                 // without a listener, an event follows
		synctest.Wait()
		b.ch.WaitCallbacks()
		before := pending
		must(t, id.Close())
		b.ch.WaitCallbacks()
		if pending != before-1 {
			t.Errorf("the sum of the hook's numbers is %d, and was %d before an event was dropped", pending, before)
		}
		b.ch.OnEvent(nil)
	})
}
