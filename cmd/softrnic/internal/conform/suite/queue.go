package suite

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
)

// Queue is a QP of the target with its memory region, as a case controls it.
type Queue struct {
	T       *T
	Control *control.Client
	Handle  int                  // from the answer to create_qp
	Wait    func() time.Duration // returns how long a case waits for a completion or an event
}

// Do sends a request for the QP to the target. If it fails, the case ends.
func (q *Queue) Do(r control.Request) control.Reply {
	r.QP = q.Handle
	reply, err := q.Control.Do(&r)
	if err != nil {
		q.T.Failf("%v", err)
	}
	return reply
}

// Holds compares a part of the region.
func (q *Queue) Holds(off int, want []byte) {
	got := q.Do(control.Request{Op: control.Read, Offset: off, Length: len(want)}).Data
	Is(q.T, fmt.Sprintf("the target's memory from byte %d on", off), fmt.Sprintf("% x", Head(got)), fmt.Sprintf("% x", Head(want)))
	if !bytes.Equal(got, want) {
		q.T.Failf("the target's memory from byte %d on differs after the first bytes", off)
	}
}

// Put writes to the region as a local program.
func (q *Queue) Put(off int, data []byte) {
	q.Do(control.Request{Op: control.Write, Offset: off, Data: data})
}

// Recv posts a receive.
func (q *Queue) Recv(id uint64, off, length int) {
	q.Do(control.Request{Op: control.PostRecv, WRID: id, Offset: off, Length: length})
}

// Poll waits for completions, and returns those of one poll.
func (q *Queue) Poll() []control.Completion {
	return q.Do(control.Request{Op: control.Poll, WaitMillis: int(q.Wait().Milliseconds())}).Completions
}

// Completion waits for one completion.
func (q *Queue) Completion() control.Completion {
	got := q.Poll()
	if len(got) != 1 {
		q.T.Failf("%d completions, want 1", len(got))
	}
	return got[0]
}

// Completes waits for one completion, which must have a status.
func (q *Queue) Completes(status string) control.Completion {
	wc := q.Completion()
	Is(q.T, "the completion's status", wc.Status, status)
	return wc
}

// None checks that there is no completion.
func (q *Queue) None() {
	Is(q.T, "the number of completions", len(q.Do(control.Request{Op: control.Poll}).Completions), 0)
}

// State checks the QP's state, if the target knows it. It waits for it: rxe of Linux 6.12 sends a
// NAK before it changes the state.
func (q *Queue) State(want string) {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		state := q.Do(control.Request{Op: control.State}).State
		switch {
		case state == "":
			q.T.Skipf("the target does not know the state of its QPs")
		case state == want || time.Since(began) > q.Wait():
			Is(q.T, "the QP's state", state, want)
			return
		}
	}
}

// Intact checks the bytes around the region.
func (q *Queue) Intact() {
	Is(q.T, "that the bytes around the region are intact", q.Do(control.Request{Op: control.Guard}).Intact, true)
}

// NextEvent waits for the QP's next event of rdma_cm, and returns a Reply without an Event if there
// is none.
func (q *Queue) NextEvent(wait time.Duration) control.Reply {
	return q.Do(control.Request{Op: control.CMEvent, WaitMillis: int(wait.Milliseconds())})
}

// Event waits for an event of rdma_cm.
func (q *Queue) Event(want string) control.Reply {
	r := q.NextEvent(q.Wait())
	Is(q.T, "the target's event", r.Event, want)
	return r
}

// AllRights returns all rights of a QP or a region.
func AllRights() []string { return []string{"remote_write", "remote_read", "remote_atomic"} }

// Deny removes a right of the region, or of the QP.
func Deny(c *control.Create, right string, ofQP bool) {
	rights := &c.MRAccess
	if ofQP {
		rights = &c.QPAccess
	}
	*rights = slices.DeleteFunc(slices.Clone(*rights), func(r string) bool { return r == right })
}

// Pattern returns n bytes that depend on seed.
func Pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed + byte(i)*3 + byte(i>>8)
	}
	return b
}

// Head returns the beginning of b, for messages.
func Head(b []byte) []byte { return b[:min(len(b), 32)] }

// Word returns a word as it is in the memory of the target, which has this machine's byte order.
func Word(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }
