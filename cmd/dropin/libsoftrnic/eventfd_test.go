//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// readable reports which of the descriptors poll returns as readable.
func readable(t *testing.T, fds ...int) (is []bool) {
	t.Helper()
	var list []unix.PollFd
	for _, fd := range fds {
		list = append(list, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	if _, err := unix.Poll(list, 0); err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		is = append(is, p.Revents&unix.POLLIN != 0)
	}
	return is
}

// take reads one event of a descriptor, as a program does.
func take(t *testing.T, fd int) {
	t.Helper()
	if _, err := unix.Read(fd, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
}

// TestEventQueue: the descriptor counts the events. Discarded ones are not counted any more, and a
// closed queue touches no descriptor.
func TestEventQueue(t *testing.T) {
	q, err := newEventQueue[int]()
	if err != nil {
		t.Fatal(err)
	}
	fd := int(q.fd)
	var counted []int
	count := func(e int) { counted = append(counted, e) }
	if _, err := q.take(count); err != syscall.EAGAIN {
		t.Errorf("take: %v, want EAGAIN", err)
	}
	for i := range 5 {
		q.add(i)
	}
	q.discard(func(e int) bool { return e%2 != 0 })
	for _, want := range []int{0, 2, 4} {
		take(t, fd)
		if e, err := q.take(count); err != nil || e != want {
			t.Errorf("took %d, %v, want %d", e, err, want)
		}
	}
	if readable(t, fd)[0] || !slices.Equal(counted, []int{0, 2, 4}) {
		t.Errorf("the descriptor is readable, or the counted events %v are wrong", counted)
	}
	if err := q.close(); err != nil {
		t.Fatal(err)
	}
	reused, err := newEventfd() // gets the number
	if err != nil {
		t.Fatal(err)
	}
	defer reused.close()
	q.add(7)
	q.discard(func(int) bool { return true })
	if readable(t, int(reused))[0] {
		t.Error("an event after close")
	}
	if _, err := q.take(count); err != syscall.EAGAIN {
		t.Errorf("take after close: %v, want EAGAIN", err)
	}
}

// TestEventQueueDiscardsRead: an event is discarded after a thread has read the descriptor for it.
// The thread takes the next one, which is then counted no more, or none.
func TestEventQueueDiscardsRead(t *testing.T) {
	for _, next := range []bool{false, true} {
		q, err := newEventQueue[int]()
		if err != nil {
			t.Fatal(err)
		}
		defer q.close()
		q.add(1)
		take(t, int(q.fd))
		q.discard(func(int) bool { return true })
		want := error(syscall.EAGAIN)
		if next {
			q.add(2)
			want = nil
		}
		if e, err := q.take(func(int) {}); err != want || next && e != 2 {
			t.Errorf("with another event %t: took %d, %v", next, e, err)
		}
		if readable(t, int(q.fd))[0] {
			t.Errorf("with another event %t: the descriptor counts events that are not there", next)
		}
		q.add(3)
		take(t, int(q.fd))
		if e, err := q.take(func(int) {}); e != 3 || err != nil || readable(t, int(q.fd))[0] {
			t.Errorf("with another event %t: later took %d, %v", next, e, err)
		}
	}
}

// TestEventQueueAtOnce: threads that add, take and discard at once agree on the count.
func TestEventQueueAtOnce(t *testing.T) {
	q, err := newEventQueue[int]()
	if err != nil {
		t.Fatal(err)
	}
	defer q.close()
	const n = 2000
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range n {
				q.add(i)
			}
		})
	}
	all.Go(func() {
		for range 100 {
			q.discard(func(i int) bool { return i == 3 })
		}
	})
	for range 3 * n { // of those that are not discarded; others may be among them
		take(t, int(q.fd))
		if _, err := q.take(func(int) {}); err != nil {
			t.Fatal(err)
		}
	}
	all.Wait()
	q.discard(func(int) bool { return true })
	if readable(t, int(q.fd))[0] {
		t.Error("the descriptor counts events that are not there")
	}
}

// TestReadiness: a descriptor is readable while a thread waits and the rsocket is ready for the
// event.
func TestReadiness(t *testing.T) {
	r, err := newReadiness()
	if err != nil {
		t.Fatal(err)
	}
	in := r.fds[0]
	r.set(rsocket.Readable | rsocket.Writable)
	if readable(t, in)[0] {
		t.Error("readable without a waiting thread")
	}
	fds, err := r.arm(pollIn | pollOut)
	if err != nil || fds[0] != in || fds[1] < 0 {
		t.Fatalf("descriptors %v, %v, want %d and another", fds, err, in)
	}
	for _, c := range []struct {
		ready rsocket.Ready
		want  []bool
	}{
		{0, []bool{false, false}}, {rsocket.Readable, []bool{true, false}}, {rsocket.Writable, []bool{false, true}},
		{rsocket.HungUp, []bool{true, true}}, {0, []bool{false, false}}, {rsocket.Failed, []bool{true, true}},
		{rsocket.Readable, []bool{true, false}},
	} {
		if r.set(c.ready); !slices.Equal(readable(t, fds[:]...), c.want) {
			t.Errorf("ready for %b: readable %v, want %v", c.ready, readable(t, fds[:]...), c.want)
		}
	}
	if one, err := r.arm(pollIn); err != nil || one != [2]int{in, -1} {
		t.Errorf("descriptors %v, %v, want %d only", one, err, in)
	}
	r.disarm(pollIn)
	r.disarm(pollIn | pollOut)
	r.close()
	r.set(rsocket.Readable)
	if _, err := r.arm(pollIn); err != unix.EBADF {
		t.Errorf("arm after close: %v, want EBADF", err)
	}
}

func TestPollEvents(t *testing.T) {
	for r, want := range map[rsocket.Ready]int{0: 0, rsocket.Readable: unix.POLLIN, rsocket.Writable: unix.POLLOUT,
		rsocket.HungUp: unix.POLLHUP, rsocket.Failed: unix.POLLERR,
		rsocket.Readable | rsocket.Writable | rsocket.HungUp | rsocket.Failed: unix.POLLIN | unix.POLLOUT | unix.POLLHUP | unix.POLLERR} {
		if got := pollEvents(r); got != want {
			t.Errorf("%b: events %#x, want %#x", r, got, want)
		}
	}
}
