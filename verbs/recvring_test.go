package verbs_test

import (
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// ring is a program's half of a RecvRing.
type ring struct {
	verbs.RecvRing
	qp     *verbs.QP
	next   int
	posted uint32
}

func newRing(wrs, sges int) *ring {
	return &ring{RecvRing: verbs.RecvRing{Posted: new(atomic.Uint32), Completed: new(atomic.Uint32), Closed: new(atomic.Uint32),
		WRs: make([]verbs.RingRecvWR, wrs), SGEs: make([]verbs.SGE, wrs*sges)}}
}

// post posts a request through the ring, or if that is not possible by a call.
func (r *ring) post(wr *verbs.RecvWR) (inRing bool, err error) {
	if r.Closed.Load() != 0 || r.posted-r.Completed.Load() >= uint32(len(r.WRs)) {
		if err = r.qp.PostRecv(wr); err == nil {
			r.posted++
		}
		return false, err
	}
	most := len(r.SGEs) / len(r.WRs)
	r.WRs[r.next] = verbs.RingRecvWR{WRID: wr.WRID, NumSGE: uint32(len(wr.SGList))}
	copy(r.SGEs[r.next*most:], wr.SGList)
	r.next = (r.next + 1) % len(r.WRs)
	r.posted++
	r.Posted.Add(1)
	if r.Closed.Load() != 0 {
		err = r.qp.PostRecv()
	}
	return true, err
}

// use gives a ring to the QP of a rig.
func (r *rig) use(t *testing.T, ring *ring) {
	t.Helper()
	ring.qp = r.qp
	check(t, r.qp.UseRecvRing(&ring.RecvRing))
}

// receive completes the oldest receive request, and returns its list.
func (r *rig) receive(t *testing.T, id uint64) (list []verbs.SGE) {
	t.Helper()
	r.lq.Lock()
	recv := r.lq.Recv()
	if recv == nil {
		r.lq.Unlock()
		t.Fatalf("no receive request, want %d", id)
	}
	length := uint64(0)
	for _, e := range recv.SGList {
		length += uint64(e.Length)
	}
	if recv.WRID != id || recv.Length() != length {
		t.Errorf("receive request %d of %d bytes in %v, want %d", recv.WRID, recv.Length(), recv.SGList, id)
	}
	list = slices.Clone(recv.SGList)
	r.lq.CompleteRecv(&verbs.WC{Opcode: verbs.WCRecv}, false)
	r.lq.Unlock()
	return list
}

// ids polls completions of one status, and returns their WRIDs.
func (r *rig) ids(t *testing.T, status verbs.WCStatus) (ids []uint64) {
	t.Helper()
	for {
		var wcs [4]verbs.WC
		n, err := r.cq.Poll(wcs[:])
		check(t, err)
		if n == 0 {
			return ids
		}
		for _, wc := range wcs[:n] {
			if wc.Status != status {
				t.Errorf("request %d: %v, want %v", wc.WRID, wc.Status, status)
			}
			ids = append(ids, wc.WRID)
		}
	}
}

// TestRecvRing: requests of the ring and of PostRecv are received in the order in which they were
// posted, also when the ring wraps, and never more than MaxRecvWR are posted.
func TestRecvRing(t *testing.T) {
	r, ring := newRig(t), newRing(8, 4)
	r.use(t, ring)
	if _, err := ring.post(&verbs.RecvWR{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a post in RESET: %v", err)
	}
	r.moveTo(t, verbs.StateRTR)
	list := []verbs.SGE{{Addr: 1, Length: 2, LKey: 3}, {Addr: 4, Length: 5, LKey: 6}}
	posted, received, through := uint64(0), uint64(0), 0
	var completed []uint64
	for range 30 {
		for posted-received < 8 {
			wr := &verbs.RecvWR{WRID: posted, SGList: list[:posted%3]}
			if posted%5 == 4 { // by a call, in between
				check(t, r.qp.PostRecv(wr))
				ring.posted++
			} else if in, err := ring.post(wr); err != nil {
				t.Fatal(err)
			} else if in {
				through++
			}
			posted++
		}
		if s := must(r.qp.Stats())(t); s.Recvs != 8 {
			t.Fatalf("%d requests are posted, want 8", s.Recvs)
		}
		if in, err := ring.post(&verbs.RecvWR{}); in || !errors.Is(err, verbs.ErrQueueFull) {
			t.Fatalf("a ninth request: %v, %v", in, err)
		}
		for range 1 + received%8 {
			if got := r.receive(t, received); !slices.Equal(got, list[:received%3]) {
				t.Errorf("request %d has the list %v", received, got)
			}
			completed = append(completed, r.ids(t, verbs.WCSuccess)...)
			received++
		}
	}
	if want := int(posted) - int(posted)/5; through != want { // although all are posted most of the time
		t.Errorf("%d of %d requests went through the ring, want %d", through, posted, want)
	}
	if len(completed) != int(received) || !slices.IsSorted(completed) {
		t.Errorf("%d requests are complete, want %d: %v", len(completed), received, completed)
	}
}

// TestRecvRingStates: what is in the ring is flushed in ERR and dropped in RESET, and the ring is
// open where requests may wait for messages.
func TestRecvRingStates(t *testing.T) {
	r, ring := newRig(t), newRing(8, 4)
	r.use(t, ring)
	closed := func(want uint32) {
		t.Helper()
		if got := ring.Closed.Load(); got != want {
			t.Fatalf("in %v: Closed is %d, want %d", r.qp.State(), got, want)
		}
	}
	post := func(ids ...uint64) {
		t.Helper()
		for _, id := range ids {
			if _, err := ring.post(&verbs.RecvWR{WRID: id}); err != nil {
				t.Fatal(err)
			}
		}
	}
	reset := func() {
		t.Helper()
		check(t, r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateReset}, verbs.QPAttrState))
		closed(1)
	}
	closed(1)
	r.moveTo(t, verbs.StateInit)
	closed(0)
	post(1, 2)
	reset()
	r.moveTo(t, verbs.StateRTS)
	closed(0)
	post(3, 4, 5)
	r.receive(t, 3)
	post(6)
	r.moveTo(t, verbs.StateErr)
	closed(1)
	post(7)
	var wcs [8]verbs.WC
	n, err := r.cq.Poll(wcs[:])
	check(t, err)
	var ids []uint64
	for i, wc := range wcs[:n] {
		ids = append(ids, wc.WRID)
		if flushed := wc.Status == verbs.WCWRFlushErr; flushed != (i > 0) {
			t.Errorf("request %d: %v", wc.WRID, wc.Status)
		}
	}
	if want := []uint64{3, 4, 5, 6, 7}; !slices.Equal(ids, want) {
		t.Errorf("completions %v, want %v", ids, want)
	}
	reset()
	ring.Posted.Add(1) // by a thread that found the ring open before RESET
	ring.posted++
	ring.next++
	check(t, r.qp.PostRecv())
	r.moveTo(t, verbs.StateInit)
	for range 8 { // nothing is left of what was posted before
		if in, err := ring.post(&verbs.RecvWR{}); !in || err != nil {
			t.Fatalf("a post after RESET: %v, %v", in, err)
		}
	}
	check(t, r.qp.Close())
	if ring.Closed.Load() != 1 {
		t.Error("the ring of a closed QP is open")
	}
}

// TestRecvRingRace: a request that is posted while the QP enters ERR is flushed, whoever is first.
func TestRecvRingRace(t *testing.T) {
	const rounds = 5000
	r, ring := newRig(t), newRing(8, 4)
	r.use(t, ring)
	var begun, ended atomic.Uint32 // rounds
	defer begun.Store(rounds)
	var failed error
	go func() {
		for round := uint32(1); round < rounds; round++ {
			for begun.Load() < round {
				runtime.Gosched()
			}
			for range round % 512 { // at another moment of the flush
				begun.Load()
			}
			if _, err := ring.post(&verbs.RecvWR{WRID: 7}); err != nil {
				failed = err
			}
			ended.Add(1)
		}
	}()
	for round := uint32(1); round < rounds; round++ {
		r.moveTo(t, verbs.StateInit)
		for id := range uint64(7) {
			if in, err := ring.post(&verbs.RecvWR{WRID: id}); !in || err != nil {
				t.Fatalf("round %d: %v, %v", round, in, err)
			}
		}
		begun.Store(round)
		r.moveTo(t, verbs.StateErr)
		for ended.Load() < round {
			runtime.Gosched()
		}
		check(t, failed)
		if got, want := r.ids(t, verbs.WCWRFlushErr), []uint64{0, 1, 2, 3, 4, 5, 6, 7}; !slices.Equal(got, want) {
			t.Fatalf("round %d: %v were flushed, want %v", round, got, want)
		}
		check(t, r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateReset}, verbs.QPAttrState))
	}
}

// TestRecvRingRefused: a ring of another size, for a QP that cannot have one, or too late.
func TestRecvRingRefused(t *testing.T) {
	r := newRig(t)
	for _, c := range [][2]int{{7, 4}, {9, 4}, {8, 3}, {8, 5}} {
		if err := r.qp.UseRecvRing(&newRing(c[0], c[1]).RecvRing); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("a ring of %v: %v", c, err)
		}
	}
	s := must(r.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 8, MaxSGE: 4}}))(t)
	for what, a := range map[string]verbs.QPInitAttr{
		"with an SRQ":      {Type: verbs.RC, SRQ: s},
		"over iWARP":       {Type: verbs.RC, Transport: verbs.IWARP, Cap: verbs.QPCap{MaxRecvWR: 8, MaxRecvSGE: 4}},
		"without receives": {Type: verbs.RC},
	} {
		a.SendCQ, a.RecvCQ = r.cq, r.cq
		qp := must(r.pd.CreateQP(&a))(t)
		if err := qp.UseRecvRing(&newRing(8, 4).RecvRing); !errors.Is(err, verbs.ErrNotSupported) {
			t.Errorf("a QP %s: %v", what, err)
		}
	}
	r.moveTo(t, verbs.StateInit)
	if err := r.qp.UseRecvRing(&newRing(8, 4).RecvRing); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("in INIT: %v", err)
	}
	check(t, r.qp.Close())
	if err := r.qp.UseRecvRing(&newRing(8, 4).RecvRing); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("a closed QP: %v", err)
	}
}
