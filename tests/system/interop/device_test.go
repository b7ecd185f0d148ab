//go:build linux

package interop

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/tests/system/interop/pyverbs"
	"github.com/softrnic/softrnic/verbs"
)

// device is the device of one side of a test: the kernel's in a peer, or SoftRNIC. Methods without
// an error result end the test if they fail.
type device interface {
	GIDs() []netip.Addr
	allocPD() domain
	// in returns the same device for use in a subtest.
	in(t *testing.T) device
}

type domain interface {
	regMR(length int, access verbs.Access) memory
	createQP(size verbs.QPCap) queuePair
	allocMW(verbs.MWType) window
}

// memory is an MR and its memory. Fill writes bytes that depend only on the seed, the same on every
// device.
type memory interface {
	Length() int
	Addr() uint64
	RKey() uint32
	SGE(off, n int) verbs.SGE
	Write(off int, data []byte)
	Read(off, n int) []byte
	Fill(off, n int, seed uint64)
	Digest(off, n int) string
}

// window is a memory window.
type window interface {
	RKey() uint32
	Dealloc()
}

// queuePair is an RC QP with a CQ for each queue. Polling returns when n completions have arrived
// or the timeout is over.
type queuePair interface {
	Num() uint32
	Modify(*verbs.QPAttr, verbs.QPAttrMask) error
	State() verbs.QPState
	PostSend(...*verbs.SendWR) error
	PostRecv(...*verbs.RecvWR) error
	// bindMW posts the binding of a window to a part of memory, with a completion.
	bindMW(w window, id uint64, m memory, off, n int, access verbs.Access) error
	PollSend(n int, timeout time.Duration) []verbs.WC
	PollRecv(n int, timeout time.Duration) []verbs.WC
	Destroy()
}

// kernel is the device rxe0 of a peer.
type kernel struct{ *pyverbs.Device }

func openKernel(t *testing.T, p *peer.Peer) device {
	t.Helper()
	return kernel{pyverbs.Open(t, p, "rxe0")}
}

func (k kernel) allocPD() domain        { return kernelDomain{k.AllocPD()} }
func (k kernel) in(t *testing.T) device { return kernel{k.In(t)} }

type kernelDomain struct{ *pyverbs.PD }

func (d kernelDomain) regMR(length int, access verbs.Access) memory { return d.RegMR(length, access) }
func (d kernelDomain) createQP(size verbs.QPCap) queuePair          { return kernelQP{d.CreateQP(size)} }
func (d kernelDomain) allocMW(kind verbs.MWType) window             { return d.AllocMW(kind) }

type kernelQP struct{ *pyverbs.QP }

func (q kernelQP) bindMW(w window, id uint64, m memory, off, n int, access verbs.Access) error {
	return q.BindMW(w.(*pyverbs.MW), id, m.(*pyverbs.MR), off, n, access)
}

// side is one end of a connection.
type side struct {
	dev device
	gid netip.Addr
	pd  domain
	qp  queuePair
}

// newSide creates a PD and a QP on a device, to be connected by an address of that device. The QP
// is in RESET, and closed when the test ends.
func newSide(t *testing.T, dev device, gid netip.Addr) *side {
	dev = dev.in(t)
	pd := dev.allocPD()
	qp := pd.createQP(verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 32, MaxRecvSGE: 32, MaxInlineData: 512})
	t.Cleanup(qp.Destroy)
	return &side{dev: dev, gid: gid, pd: pd, qp: qp}
}

// path has the attributes that both ends of a connection share.
type path struct {
	mtu verbs.MTU
	// Of the requester's first packet; the other direction begins with the next.
	psn         uint32
	access      verbs.Access // of the responder's QP
	timeout     uint8        // as in verbs.QPAttr, like the others
	retryCnt    uint8
	rnrRetry    uint8
	minRNRTimer uint8
	rdAtomic    uint8 // limit of the requester's outstanding requests, and of the responder
}

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// usual is a path without errors.
var usual = path{
	mtu: verbs.MTU1024, psn: 0x123456, access: allAccess, timeout: 17, retryCnt: 7, rnrRetry: 7, minRNRTimer: 12, rdAtomic: 16,
}

// connect takes two QPs from RESET to RTS.
func connect(t *testing.T, requester, responder *side, p path) {
	t.Helper()
	requester.modify(t, responder, p, p.psn, p.psn+1, allAccess)
	responder.modify(t, requester, p, p.psn+1, p.psn, p.access)
}

func (s *side) modify(t *testing.T, peer *side, p path, sqPSN, rqPSN uint32, access verbs.Access) {
	t.Helper()
	index := slices.Index(s.dev.GIDs(), s.gid)
	if index < 0 {
		t.Fatalf("no GID is %v: %v", s.gid, s.dev.GIDs())
	}
	for _, step := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{
			verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QPAccessFlags: access},
			verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccessFlags,
		}, {
			verbs.QPAttr{
				QPState: verbs.StateRTR, PathMTU: p.mtu, DestQPNum: peer.qp.Num(), RQPSN: rqPSN & 0xffffff,
				MaxDestRDAtomic: p.rdAtomic, MinRNRTimer: p.minRNRTimer,
				AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{
					DGID: verbs.GIDFromAddr(peer.gid), SGIDIndex: uint8(index), HopLimit: 64,
				}},
			},
			verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN |
				verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer,
		}, {
			verbs.QPAttr{
				QPState: verbs.StateRTS, SQPSN: sqPSN & 0xffffff, Timeout: p.timeout, RetryCnt: p.retryCnt,
				RNRRetry: p.rnrRetry, MaxRDAtomic: p.rdAtomic,
			},
			verbs.QPAttrState | verbs.QPAttrSQPSN | verbs.QPAttrTimeout | verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry |
				verbs.QPAttrMaxQPRDAtomic,
		},
	} {
		if err := s.qp.Modify(&step.attr, step.mask); err != nil {
			t.Fatalf("to %v: %v", step.attr.QPState, err)
		}
	}
}

// patience is the time limit for an expected event. It is long enough for a busy machine.
const patience = 30 * time.Second
