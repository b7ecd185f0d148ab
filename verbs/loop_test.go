package verbs_test

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/verbs"
)

// loop is a provider without a network. Its QPs complete sends when they are posted, or the test
// completes them.
type loop struct {
	clock   clock.Clock
	attr    verbs.DeviceAttr
	port    verbs.PortAttr
	onDereg func(*verbs.MR)
	event   func(verbs.AsyncEventType, uint8)
	flow    *verbs.FlowAttr // the last flow created, nil if it is closed
	onFlow  func() error    // called by CreateFlow, which fails with its error

	progressed, endedProgress atomic.Int64 // calls of Progress and EndProgress
	busy                      bool         // the result of Progress

	shutdown error // the result of Shutdown
	counters error // of HWCounters and PortCounters

	mu   sync.Mutex
	keys uint32
	qps  map[uint32]*loopQP
}

type loopQP struct {
	verbs.QPHandle
	hold      bool // leave sends in the queue
	modifyErr error
	doorbells int
	modified  [][2]verbs.QPState
	closed    bool
	placed    int                // calls of Placed without an error
	failed    []verbs.PlaceError // the others
}

func newLoop() *loop {
	return &loop{
		qps: make(map[uint32]*loopQP),
		attr: verbs.DeviceAttr{MaxMRSize: 1 << 40, MaxQP: 64, MaxQPWR: 1024, MaxSGE: 32, MaxSGERd: 32,
			MaxInlineData: 512, MaxCQ: 64, MaxCQE: 4096, MaxMR: 64, MaxPD: 4, MaxQPRDAtom: 16, MaxQPInitRDAtom: 8,
			MaxSRQ: 4, MaxSRQWR: 256, MaxSRQSGE: 16, MaxAH: 3, MaxMcastGrp: 2, MaxMcastQPAttach: 2, MaxTotalMcastQPAttach: 3,
			DeviceCapFlags: verbs.DeviceXRC | verbs.DeviceFlushGlobal | verbs.DeviceAtomicWrite, AtomicCap: verbs.AtomicGlob,
			PhysPortCnt: 2, MaxPKeys: 1},
		port: verbs.PortAttr{State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: verbs.MTU1024, GIDTblLen: 1,
			MaxMsgSz: 1 << 30, PKeyTblLen: 1},
	}
}

func (l *loop) Name() string                                  { return "loop0" }
func (l *loop) Clock() verbs.Clock                            { return l.clock }
func (l *loop) QueryDevice() verbs.DeviceAttr                 { return l.attr }
func (l *loop) QueryPort(port uint8) (verbs.PortAttr, error)  { return l.port, nil }
func (l *loop) Close() error                                  { return nil }
func (l *loop) Watch(f func(verbs.AsyncEventType, uint8))     { l.event = f }
func (l *loop) HWCounters() (map[string]uint64, error)        { return nil, l.counters }
func (l *loop) PortCounters(uint8) (map[string]uint64, error) { return nil, l.counters }
func (l *loop) Shutdown(context.Context) error                { return l.shutdown }
func (l *loop) Progress() bool                                { l.progressed.Add(1); return l.busy }
func (l *loop) EndProgress()                                  { l.endedProgress.Add(1) }

func (l *loop) CreateAH(*verbs.AHAttr) (verbs.ProviderAH, error) { return loopAH{}, nil }

func (l *loop) AttachMcast(verbs.ProviderQP, verbs.GID) error { return nil }
func (l *loop) DetachMcast(verbs.ProviderQP, verbs.GID) error { return nil }

func (l *loop) CreateFlow(_ verbs.ProviderQP, attr *verbs.FlowAttr) (verbs.ProviderFlow, error) {
	if l.onFlow != nil {
		if err := l.onFlow(); err != nil {
			return nil, err
		}
	}
	l.flow = attr
	return &loopFlow{l}, nil
}

type loopFlow struct{ l *loop }

func (f *loopFlow) Destroy() { f.l.flow = nil }

type loopAH struct{}

func (loopAH) Destroy() {}

func (l *loop) GIDTable(port uint8) ([]verbs.GIDEntry, error) {
	return []verbs.GIDEntry{{GID: localGID, PortNum: port, Type: verbs.GIDTypeRoCEv2}}, nil
}

func (l *loop) RegMR(*verbs.MR) (lkey, rkey uint32, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys += 0x100
	return l.keys, l.keys + 1, nil
}

func (l *loop) DeregMR(mr *verbs.MR) {
	if l.onDereg != nil {
		l.onDereg(mr)
	}
}

func (l *loop) AllocMW(*verbs.MW) (uint32, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys += 0x100
	return 1<<31 | l.keys<<8, nil
}

func (l *loop) DeallocMW(*verbs.MW) {}

func (l *loop) CreateQP(h verbs.QPHandle, attr *verbs.QPInitAttr) (verbs.ProviderQP, uint32, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := &loopQP{QPHandle: h}
	num := uint32(0x10 + len(l.qps))
	l.qps[num] = q
	return q, num, nil
}

func (q *loopQP) Modify(from, to verbs.QPState, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.modified = append(q.modified, [2]verbs.QPState{from, to})
	return q.modifyErr
}

func (q *loopQP) Query(attr *verbs.QPAttr)    { attr.SQPSN, attr.RQPSN = 0x111111, 0x222222 }
func (q *loopQP) Destroy()                    { q.closed = true }
func (q *loopQP) PostRecv()                   {}
func (q *loopQP) Counters() map[string]uint64 { return nil }
func (q *loopQP) Peer() netip.Addr            { return netip.Addr{} }

func (q *loopQP) Placed(e *verbs.PlaceError) {
	if e == nil {
		q.placed++
	} else {
		q.failed = append(q.failed, *e)
	}
}

func (q *loopQP) PostSend() {
	q.doorbells++
	for !q.hold && q.SendLen() > 0 {
		q.CompleteSend(verbs.WCSuccess, 0)
	}
}

// locked runs f as the provider would, with the QP locked.
func (q *loopQP) locked(f func()) {
	q.Lock()
	defer q.Unlock()
	f()
}

var localGID = verbs.GIDFromAddr(netip.MustParseAddr("10.0.0.1"))

// must returns v, and ends the test on an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is a device with one PD, one CQ and one QP.
type rig struct {
	l   *loop
	dev *verbs.Device
	pd  *verbs.PD
	ch  *verbs.CompChannel
	cq  *verbs.CQ
	qp  *verbs.QP
	lq  *loopQP
}

func newRig(t testing.TB) *rig {
	return newRigWith(t, verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}, 64)
}

func newRigWith(t testing.TB, c verbs.QPCap, cqe int) *rig {
	t.Helper()
	r := &rig{l: newLoop()}
	r.open(t, c, cqe)
	return r
}

// open creates the objects of the rig on r.l.
func (r *rig) open(t testing.TB, c verbs.QPCap, cqe int) {
	t.Helper()
	r.dev = must(verbs.Open(r.l))(t)
	r.pd = must(r.dev.AllocPD())(t)
	r.ch = must(r.dev.CreateCompChannel())(t)
	r.cq = must(r.dev.CreateCQ(cqe, &verbs.CQInitAttr{Channel: r.ch}))(t)
	r.qp = must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq, Cap: c}))(t)
	r.lq = r.l.qps[r.qp.Num()]
}

// Attributes for the transition to each state, and their masks.
var (
	steps = map[verbs.QPState]verbs.QPAttr{
		verbs.StateInit: {PortNum: 1, QPAccessFlags: verbs.AccessRemoteWrite},
		verbs.StateRTR: {PathMTU: verbs.MTU1024, DestQPNum: 0x123, RQPSN: 5, MaxDestRDAtomic: 16, MinRNRTimer: 12,
			AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: localGID}}},
		verbs.StateRTS: {Timeout: 14, RetryCnt: 7, RNRRetry: 7, SQPSN: 9, MaxRDAtomic: 8},
	}
	needs = map[verbs.QPState]verbs.QPAttrMask{
		verbs.StateInit: verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccessFlags,
		verbs.StateRTR: verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN |
			verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer,
		verbs.StateRTS: verbs.QPAttrTimeout | verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry | verbs.QPAttrSQPSN |
			verbs.QPAttrMaxQPRDAtomic,
	}
)

// moveTo moves the QP from RESET to a state.
func (r *rig) moveTo(t testing.TB, to verbs.QPState) {
	t.Helper()
	if to == verbs.StateErr {
		check(t, r.qp.Modify(&verbs.QPAttr{QPState: to}, verbs.QPAttrState))
		return
	}
	for s := verbs.StateInit; s <= to; s++ {
		attr := steps[s]
		attr.QPState = s
		check(t, r.qp.Modify(&attr, verbs.QPAttrState|needs[s]))
	}
}

// pollAll polls all completions of a CQ.
func pollAll(t testing.TB, cq *verbs.CQ) []verbs.WC {
	t.Helper()
	wcs := make([]verbs.WC, cq.Cap())
	n, err := cq.Poll(wcs)
	check(t, err)
	return wcs[:n]
}

// registered returns the providers' view of mr.
func registered(mr *verbs.MR) *verbs.RegisteredMR { return (*verbs.RegisteredMR)(mr) }
