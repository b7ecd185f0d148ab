package rdmatransport_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// A long message is copied in parts. Between two parts anything may happen to either side. The
// outcome is the same as in packets.

// severalParts is the length of a message that is copied in parts. A message in packets takes a
// while if it is longer than TCP's buffers. bigBuffers are the memory of a and b.
const (
	severalParts = 4 << 20
	beyondTCP    = 24 << 20
)

var bigBuffers = sync.OnceValue(func() (b [2][]byte) {
	for i := range b {
		b[i] = touched(beyondTCP)
	}
	return b
})

// midway is a connection with a long message in progress.
type midway struct {
	*testing.T
	setting
	a, b *mwEnd
	op   verbs.WROpcode
	size int        // of the long message
	got  []verbs.WC // completions of a that are not checked yet
	tcp  bool       // a request that fails may have completed earlier, because TCP had accepted it
	raw  *rawEnd    // of b's device, for tests that look at packets
}

// mwEnd is an end with a region for the long message.
type mwEnd struct {
	*end
	qp  *verbs.QP
	big *verbs.MR
}

// newMidway connects two QPs. For RoCE it does not use rdma_cm, whose timeouts are long. If givesUp
// is set, a has a timeout of 67 ms and no retry.
func newMidway(t *testing.T, s setting, op verbs.WROpcode, givesUp bool) *midway {
	t.Helper()
	m := &midway{T: t, setting: s, op: op, size: severalParts}
	if s.wrap != nil {
		m.size = beyondTCP
	}
	pair := newEnds(t, s, 4096)
	for i, to := range []**mwEnd{&m.a, &m.b} {
		e := &mwEnd{end: &pair.side[i]}
		e.qp = e.QP()
		if s.transport == verbs.RoCEv2 {
			e.qp = e.newQP(t)
		}
		big, err := e.mr.PD().RegMR(bigBuffers()[i][:m.size], iwarpAccess|verbs.AccessMWBind)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := big.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
				t.Error(err)
			}
		})
		e.big = big
		*to = e
	}
	if s.transport == verbs.RoCEv2 {
		m.a.to(t, m.b.device, m.b.qp, func(a *verbs.QPAttr) {
			if givesUp {
				a.Timeout, a.RetryCnt = 14, 0
			}
		})
		m.b.to(t, m.a.device, m.a.qp, nil)
	}
	return m
}

// newQP creates another QP like an end's own.
func (e *end) newQP(t *testing.T) *verbs.QP {
	t.Helper()
	qp, err := e.mr.PD().CreateQP(&verbs.QPInitAttr{Type: verbs.RC, Transport: verbs.RoCEv2, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 3, MaxRecvSGE: 3}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := qp.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
	})
	return qp
}

// to connects a QP of e with another, with the attributes that change modifies.
func (e *mwEnd) to(t *testing.T, dev *device, peer *verbs.QP, change func(*verbs.QPAttr)) {
	t.Helper()
	connectQP(t, e.device, e.qp, dev, peer, change)
}

// connectQP moves a QP from RESET to RTS, with first PSN 100 in both directions, path MTU 1024 and
// 16 READs. change may modify these attributes, and may be nil.
func connectQP(t *testing.T, dev *device, qp *verbs.QP, peerDev *device, peer *verbs.QP, change func(*verbs.QPAttr)) {
	t.Helper()
	const init = verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccessFlags
	const rtr = verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN |
		verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer
	const rts = verbs.QPAttrState | verbs.QPAttrSQPSN | verbs.QPAttrTimeout | verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry |
		verbs.QPAttrMaxQPRDAtomic
	attr := verbs.QPAttr{PortNum: 1, QPAccessFlags: verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic,
		PathMTU: verbs.MTU1024, DestQPNum: peer.Num(), RQPSN: 100, SQPSN: 100, MaxDestRDAtomic: 16, MaxRDAtomic: 16,
		MinRNRTimer: 12, Timeout: 18, RetryCnt: 7, RNRRetry: 7,
		AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: peerDev.gid(t), SGIDIndex: dev.gidIndex(t)}}}
	if change != nil {
		change(&attr)
	}
	for _, step := range []struct {
		to   verbs.QPState
		mask verbs.QPAttrMask
	}{{verbs.StateInit, init}, {verbs.StateRTR, rtr}, {verbs.StateRTS, rts}} {
		attr.QPState = step.to
		if err := qp.Modify(&attr, step.mask); err != nil {
			t.Fatal(err)
		}
	}
}

// gidIndex returns the index of the device's address for RoCEv2.
func (d *device) gidIndex(t *testing.T) uint8 {
	t.Helper()
	table, err := d.GIDTable(1)
	if err != nil {
		t.Fatal(err)
	}
	return uint8(slices.IndexFunc(table, func(e verbs.GIDEntry) bool { return e.GID.Addr().String() == d.addr }))
}

func (d *device) gid(t *testing.T) verbs.GID {
	t.Helper()
	table, err := d.GIDTable(1)
	if err != nil {
		t.Fatal(err)
	}
	return table[d.gidIndex(t)].GID
}

// twoAtOnce lets two goroutines run at the same time until the end of the test, even with one
// processor.
func twoAtOnce(t *testing.T) {
	before := runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0)))
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// run posts a WRITE of 8 bytes, the long message and another WRITE, numbered 1 to 3. It calls
// happen in the middle of the long message, and returns when PostSend has returned. inTime reports
// whether it was in the middle.
func (m *midway) run(happen func() error) (inTime bool) {
	m.Helper()
	small := func(id uint64) *verbs.SendWR {
		return &verbs.SendWR{WRID: id, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{m.a.mr.SGE(0, 8)}, RemoteAddr: m.b.mr.Addr(), RKey: m.b.mr.RKey()}
	}
	long := &verbs.SendWR{WRID: 2, Opcode: m.op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{m.a.big.SGE(0, m.size)},
		RemoteAddr: m.b.big.Addr(), RKey: m.b.big.RKey()}
	switch m.op {
	case verbs.Send:
		ok(m.T, m.b.qp.PostRecv(&verbs.RecvWR{WRID: 9, SGList: []verbs.SGE{m.b.big.SGE(0, m.size)}}))
	case verbs.RDMAWriteWithImm:
		ok(m.T, m.b.qp.PostRecv(&verbs.RecvWR{WRID: 9}))
	}
	// PostSend, or the goroutine that receives its packets, waits for b's lock. happen waits for
	// the lock after it. So only the first part of the long message is copied before happen.
	var busy, happening sync.WaitGroup
	b := m.b.handles.of(m.b.qp)
	b.Lock()
	var posted error
	busy.Go(func() { posted = m.a.qp.PostSend(small(1), long, small(3)) })
	for !b.Contended() {
		runtime.Gosched()
	}
	happening.Go(func() {
		b.Lock()
		//lint:ignore SA2001 it is enough to have had the lock after the sender
		b.Unlock()
		// In packets, a may not know yet that number 1 has arrived. (Only the test's goroutine may
		// call Fatal.)
		var err error
		n, packets := 0, m.wrap != nil
		for deadline := time.Now().Add(time.Minute); packets && n == 0 && err == nil && time.Now().Before(deadline); runtime.Gosched() {
			n, err = m.a.cq.Poll(m.a.wcs[:])
		}
		err = errors.Join(err, happen())
		m.got = append(m.got, m.a.wcs[:n]...)
		if err != nil {
			m.Error(err)
		}
	})
	for range 100 {
		runtime.Gosched()
	}
	b.Unlock()
	happening.Wait()
	n := m.a.poll(m.T)
	m.got = append(m.got, m.a.wcs[:n]...)
	inTime = len(m.got) > 0 && m.got[0].Status == verbs.WCSuccess // number 1 completed before
	for _, wc := range m.got {
		inTime = inTime && (wc.WRID != 2 || wc.Status != verbs.WCSuccess)
	}
	if busy.Wait(); inTime {
		m.got = m.got[1:]
	}
	if posted != nil && (inTime || !errors.Is(posted, verbs.ErrClosed)) {
		m.Error(posted)
	}
	return inTime
}

// end destroys both QPs, so that nothing accesses the buffers, which the next connection uses.
func (m *midway) end() {
	m.Helper()
	for _, e := range []*mwEnd{m.a, m.b} {
		if err := e.qp.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			m.Error(err)
		}
	}
}

// fillWith fills memory with a pattern of 32-bit numbers.
func fillWith(b []byte, seed byte) {
	for i := 0; i < len(b); i += 4 {
		binary.LittleEndian.PutUint32(b[i:], uint32(i)*2654435761+uint32(seed))
	}
}

// sent returns a's next n completions.
func (m *midway) sent(n int) (list string) {
	m.Helper()
	for len(m.got) < n {
		m.got = append(m.got, m.a.next(m.T))
	}
	for _, wc := range m.got[:n] {
		if m.tcp && wc.Status == verbs.WCSuccess {
			wc.Status = verbs.WCWRFlushErr
		}
		list += fmt.Sprintf("%d %v, ", wc.WRID, wc.Status)
	}
	m.got = m.got[n:]
	return list
}

// received returns the completion of b's receive request, if there is one. It moves b to ERR if the
// request has not completed.
func (m *midway) received() string {
	m.Helper()
	if m.op != verbs.Send && m.op != verbs.RDMAWriteWithImm {
		return ""
	}
	if n := m.b.poll(m.T); n == 1 {
		return fmt.Sprintf("b %v, ", m.b.wcs[0].Status)
	}
	ok(m.T, toErr(m.b))
	return fmt.Sprintf("b %v, ", m.b.next(m.T).Status)
}

// arrived waits until b has the long message, and returns the completion of its receive request.
func (m *midway) arrived() string {
	m.Helper()
	if m.op == verbs.Send || m.op == verbs.RDMAWriteWithImm {
		return fmt.Sprintf("b %v, ", m.b.next(m.T).Status)
	}
	if m.transport == verbs.IWARP { // a READ is answered after earlier writes
		ok(m.T, m.a.qp.PostSend(&verbs.SendWR{WRID: 4, Opcode: verbs.RDMARead, Flags: verbs.SendSignaled}))
		if list := m.sent(1); list != "4 SUCCESS, " {
			return list
		}
	}
	return ""
}

// event returns the next event of an end's QP.
func (m *midway) event(e *mwEnd) string {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), time.Minute)
	defer cancel()
	for {
		ev, err := e.Device.GetAsyncEvent(ctx)
		if err != nil {
			m.Fatal(err)
		}
		if ev.QP == e.qp {
			return ev.Type.String() + ", "
		}
	}
}

// awaitErr waits until an end's QP is in ERR. It returns false if the long message was a READ whose
// responses were sent before.
func (m *midway) awaitErr(e *mwEnd) bool {
	m.Helper()
	for deadline := time.Now().Add(time.Minute); e.qp.State() != verbs.StateErr; {
		if time.Now().After(deadline) {
			m.Fatalf("QP %#x is in %v", e.qp.Num(), e.qp.State())
		}
		if m.op == verbs.RDMARead {
			m.got = append(m.got, m.a.wcs[:m.a.poll(m.T)]...)
			if slices.ContainsFunc(m.got, func(wc verbs.WC) bool { return wc.WRID == 2 && wc.Status == verbs.WCSuccess }) {
				return false
			}
		}
		runtime.Gosched()
	}
	return true
}

func toErr(e *mwEnd) error {
	return e.qp.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState)
}

const sentInSQD = "a request is sent in SQD"

// late reports whether an unexpected outcome is explained by happen having been called too late,
// though the long message had not completed. The responses of a READ may have been in flight
// already. In packets, the whole message may have been in flight. Then the peer has received it,
// and the requests after it were sent before SQD.
func (m *midway) late(got, want string) bool {
	switch {
	case m.op == verbs.RDMARead && got == "2 SUCCESS, 3 SUCCESS, ":
		return true
	case m.wrap == nil:
		return false
	}
	const received = "b SUCCESS, "
	return strings.HasSuffix(got, received) && !strings.HasSuffix(want, received) || strings.HasSuffix(got, sentInSQD)
}

// TestDirectMidway calls happen functions in the middle of a long message.
func TestDirectMidway(t *testing.T) {
	twoAtOnce(t)
	const (
		send, write, writeImm, read = verbs.Send, verbs.RDMAWrite, verbs.RDMAWriteWithImm, verbs.RDMARead
		flushed                     = "2 WR_FLUSH_ERR, 3 WR_FLUSH_ERR, "
	)
	type ops []verbs.WROpcode
	// the completions of a, and of b's receive request
	outcome := func(m *midway) string { return m.sent(2) + m.received() }
	for i, c := range []struct {
		name        string
		ops         ops
		happen      func(m *midway) error
		outcome     func(m *midway) string
		roce, iwarp string // the outcome, without b's receive request; "" skips the transport
		// Completion of b's receive request; "" is WR_FLUSH_ERR; SUCCESS also requires the right
		// data.
		received  string
		iwarpRead string // if it differs from iwarp
	}{
		{
			"the peer's memory is deregistered", ops{write, writeImm, read},
			func(m *midway) error { return m.b.big.Close() },
			func(m *midway) string {
				if !m.awaitErr(m.b) {
					return outcome(m)
				}
				return m.event(m.b) + outcome(m)
			},
			"QP_ACCESS_ERR, 2 REM_ACCESS_ERR, 3 WR_FLUSH_ERR, ", "QP_ACCESS_ERR, " + flushed, "",
			"QP_ACCESS_ERR, 2 REM_ACCESS_ERR, 3 WR_FLUSH_ERR, ",
		},
		{
			"own memory is deregistered", ops{send, write, writeImm, read},
			func(m *midway) error { return m.a.big.Close() },
			outcome,
			"2 LOC_PROT_ERR, 3 WR_FLUSH_ERR, ", "2 LOC_PROT_ERR, 3 WR_FLUSH_ERR, ", "", "",
		},
		{
			"the memory of the receive request is deregistered", ops{send},
			func(m *midway) error { return m.b.big.Close() },
			func(m *midway) string {
				m.awaitErr(m.b)
				return outcome(m)
			},
			"2 REM_OP_ERR, 3 WR_FLUSH_ERR, ", flushed, "LOC_PROT_ERR", "",
		},
		{
			"the peer withdraws the access right", ops{write, writeImm},
			func(m *midway) error { return m.b.qp.Modify(&verbs.QPAttr{}, verbs.QPAttrAccessFlags) },
			func(m *midway) string {
				m.awaitErr(m.b)
				return outcome(m)
			},
			"2 REM_INV_REQ_ERR, 3 WR_FLUSH_ERR, ", flushed, "", "",
		},
		{
			"the peer goes to ERR", ops{send, write, writeImm, read},
			func(m *midway) error { return toErr(m.b) },
			outcome,
			"2 RETRY_EXC_ERR, 3 WR_FLUSH_ERR, ", flushed, "", "",
		},
		{
			"the peer is closed", ops{send, write, writeImm, read},
			func(m *midway) error { return m.b.qp.Close() },
			func(m *midway) string { return m.sent(2) },
			"2 RETRY_EXC_ERR, 3 WR_FLUSH_ERR, ", flushed, "none", "",
		},
		{
			"the sender goes to ERR", ops{send, write, writeImm, read},
			func(m *midway) error { return toErr(m.a) },
			outcome,
			flushed, flushed, "", "",
		},
		{
			"the sender is closed", ops{send, write, writeImm, read},
			func(m *midway) error { return m.a.qp.Close() },
			func(m *midway) string { return "nothing, " + m.received() },
			"nothing, ", "nothing, ", "", "",
		},
		{
			"the sender goes to SQD, and back", ops{send, write, writeImm, read},
			func(m *midway) error {
				return m.a.qp.Modify(&verbs.QPAttr{QPState: verbs.StateSQD, EnSQDAsyncNotify: true},
					verbs.QPAttrState|verbs.QPAttrEnSQDAsyncNotify)
			},
			func(m *midway) string {
				outcome := m.sent(1) + m.event(m.a)
				if m.a.poll(m.T) > 0 || len(m.got) > 0 {
					return outcome + sentInSQD
				}
				ok(m.T, m.a.qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrState))
				return outcome + m.sent(1) + m.arrived()
			},
			"2 SUCCESS, SQ_DRAINED, 3 SUCCESS, ", "", "SUCCESS", "",
		},
		{
			"packet capture begins", ops{send, write, writeImm, read},
			func(m *midway) error {
				b := m.b.handles.of(m.b.qp)
				b.Lock() // nothing is copied meanwhile
				defer b.Unlock()
				flow, err := m.raw.qp.CreateFlow(&verbs.FlowAttr{Type: verbs.FlowSniffer, Port: 1})
				if err == nil {
					m.Cleanup(func() { ok(m.T, flow.Close()) })
				}
				return err
			},
			func(m *midway) string { return m.sent(2) + m.arrived() },
			"2 SUCCESS, 3 SUCCESS, ", "2 SUCCESS, 3 SUCCESS, ", "SUCCESS", "",
		},
	} {
		if testing.Short() {
			c.ops = c.ops[i%len(c.ops):][:1]
		}
		for _, op := range c.ops {
			t.Run(fmt.Sprintf("%s/%v", c.name, op), func(t *testing.T) {
				twoNodes(t, func(t *testing.T, s setting) {
					want := c.roce
					if s.transport == verbs.IWARP {
						want = c.iwarp
						if op == read && c.iwarpRead != "" {
							want = c.iwarpRead
						}
					}
					if want == "" {
						return
					}
					if (op == send || op == writeImm) && c.received != "none" {
						want += fmt.Sprintf("b %s, ", cmp.Or(c.received, "WR_FLUSH_ERR"))
					}
					for range 30 { // the call may come before the message, or too late
						m := newMidway(t, s, op, strings.Contains(want, "RETRY_EXC_ERR"))
						m.tcp = s.transport == verbs.IWARP && op != read && c.received != "SUCCESS"
						from, to := m.a.big.Buf(), m.b.big.Buf()
						if op == read {
							from, to = to, from
						}
						if c.received == "SUCCESS" {
							m.raw = newRawEnd(t, m.b.mr.PD(), m.b.Device, 8192, nil)
							fillWith(from, byte(m.a.qp.Num()))
						}
						if !m.run(func() error { return c.happen(m) }) {
							m.end()
							continue
						}
						got := c.outcome(m)
						if got != want && m.late(got, want) {
							m.end()
							continue
						}
						if got != want {
							t.Errorf("%s\nwant %s", got, want)
						}
						if c.received == "SUCCESS" && !bytes.Equal(from, to) {
							t.Error("the data is not what was sent")
						}
						return
					}
					t.Error("it always happens before or after the message")
				})
			})
		}
	}
}
