//go:build linux

package netns

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
)

const (
	memory  = 4 << 20
	message = 1 << 20
	depth   = 16
)

// node is a host with a device and one QP.
type node struct {
	t    testing.TB
	host *netstack.Host
	dev  *verbs.Device
	mr   *verbs.MR
	cq   *verbs.CQ
	ch   *verbs.CompChannel
	qp   *verbs.QP
}

// newNode creates a node on l. It is closed when the test ends.
func newNode(t testing.TB, l link.Link, addrs ...string) *node {
	t.Helper()
	return newNodeWith(t, l, nil, addrs...)
}

// newNodeWith is newNode with options of the device.
func newNodeWith(t testing.TB, l link.Link, device *rdmatransport.Config, addrs ...string) *node {
	t.Helper()
	n := &node{t: t}
	var err error
	n.host, err = netstack.New(l, &netstack.Config{Addrs: addrs})
	n.ok(err)
	n.dev, err = rdmatransport.Open(n.host, device)
	n.ok(err)
	t.Cleanup(func() {
		n.ok(n.dev.Provider().Close())
		n.ok(n.host.Close())
	})
	pd, err := n.dev.AllocPD()
	n.ok(err)
	buf := make([]byte, memory)
	var seed [32]byte
	copy(seed[:], l.MAC())
	_, _ = rand.NewChaCha8(seed).Read(buf)
	n.mr, err = pd.RegMR(buf, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic)
	n.ok(err)
	n.ch, err = n.dev.CreateCompChannel()
	n.ok(err)
	n.cq, err = n.dev.CreateCQ(4*depth, &verbs.CQInitAttr{Channel: n.ch})
	n.ok(err)
	n.qp, err = pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, Transport: verbs.RoCEv2, SendCQ: n.cq, RecvCQ: n.cq,
		Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 2, MaxRecvSGE: 2}})
	n.ok(err)
	return n
}

func (n *node) counters() map[string]uint64 {
	n.t.Helper()
	c, err := n.dev.HWCounters()
	n.ok(err)
	return c
}

func (n *node) ok(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// connect takes both QPs to RTS between the addresses of this GID index. The local ACK timeout is a
// second: it is for losses, not for a busy machine.
func connect(a, b *node, gid int, mtu verbs.MTU) {
	for _, e := range [2][2]*node{{a, b}, {b, a}} {
		n, peer := e[0], e[1]
		g, err := peer.dev.QueryGID(1, gid)
		n.ok(err)
		n.ok(n.qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QPAccessFlags: n.mr.Access()},
			verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags))
		n.ok(n.qp.Modify(&verbs.QPAttr{
			QPState: verbs.StateRTR, PathMTU: mtu, DestQPNum: peer.qp.Num(), RQPSN: peer.qp.Num(), MaxDestRDAtomic: 16,
			MinRNRTimer: 12,
			AHAttr:      verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: g.GID, SGIDIndex: uint8(gid)}},
		}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
			verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer))
	}
	for _, n := range []*node{a, b} {
		n.ok(n.qp.Modify(&verbs.QPAttr{
			QPState: verbs.StateRTS, SQPSN: n.qp.Num(), Timeout: 18, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 16,
		}, verbs.QPAttrState|verbs.QPAttrSQPSN|verbs.QPAttrTimeout|verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|
			verbs.QPAttrMaxQPRDAtomic))
	}
}

// wait waits for the next completion, at most a minute. It must be a success.
func (n *node) wait() verbs.WC {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var wc [1]verbs.WC
	for {
		got, err := n.cq.Poll(wc[:])
		n.ok(err)
		if got == 0 {
			n.ok(n.cq.ReqNotify(false))
			got, err = n.cq.Poll(wc[:])
			n.ok(err)
		}
		if got == 1 {
			if wc[0].Status != verbs.WCSuccess {
				n.t.Fatalf("WR %d: %v", wc[0].WRID, wc[0].Status)
			}
			return wc[0]
		}
		cq, err := n.ch.GetEvent(ctx)
		n.ok(err)
		n.ok(cq.AckEvents(1))
	}
}

// transfer moves count messages of an operation from or to b's memory, verifies them, and returns
// the payload rate.
func transfer(a, b *node, code verbs.WROpcode, count, size int) (gbits float64) {
	a.t.Helper()
	slots := memory / size
	start := time.Now()
	received := 0
	for posted, done := 0, 0; done < count; {
		for posted < count && posted-done < min(depth, slots) {
			off := posted % slots * size
			if code == verbs.Send {
				b.ok(b.qp.PostRecv(&verbs.RecvWR{WRID: uint64(posted), SGList: []verbs.SGE{b.mr.SGE(off, size)}}))
			}
			a.ok(a.qp.PostSend(&verbs.SendWR{WRID: uint64(posted), Opcode: code, Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{a.mr.SGE(off, size)}, RemoteAddr: b.mr.Addr() + uint64(off), RKey: b.mr.RKey()}))
			posted++
		}
		if wc := a.wait(); wc.WRID != uint64(done) {
			a.t.Fatalf("completion of WR %d, want %d", wc.WRID, done)
		}
		done++
		if code == verbs.Send {
			if wc := b.wait(); wc.WRID != uint64(received) || int(wc.ByteLen) != size {
				a.t.Fatalf("receive %d of %d bytes, want %d of %d", wc.WRID, wc.ByteLen, received, size)
			}
			received++
		}
	}
	gbits = float64(count) * float64(size) * 8 / 1e9 / time.Since(start).Seconds()
	// Takes the lock under which the peer's data arrived: the race detector cannot see the order
	// through the kernel.
	_ = b.qp.State()
	if n := min(count, slots) * size; !bytes.Equal(a.mr.Buf()[:n], b.mr.Buf()[:n]) {
		a.t.Errorf("%v: the data differ", code)
	}
	return gbits
}

// scramble gives the node's memory new content, before a READ into it or a WRITE from it.
func (n *node) scramble() {
	var seed [32]byte
	copy(seed[:], n.mr.Buf())
	_, _ = rand.NewChaCha8(seed).Read(n.mr.Buf())
}
