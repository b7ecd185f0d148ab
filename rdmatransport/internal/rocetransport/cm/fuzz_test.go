package cm_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/cm"
	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// FuzzStateMachine plays peers that send anything, and an application that calls anything, in any
// order. An established connection to another peer must not be affected.
func FuzzStateMachine(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 8 {
		script := make([]byte, 300)
		for i := range script {
			script[i] = byte(rng.Uint32())
		}
		f.Add(script)
	}
	f.Fuzz(play)
}

// TestRandomSequences runs the fuzz target with many seeds.
func TestRandomSequences(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for range 200 {
		script := make([]byte, 2000)
		for i := range script {
			script[i] = byte(rng.Uint32())
		}
		play(t, script)
	}
}

func play(t *testing.T, script []byte) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		defer r.close()
		p := &player{rig: r, t: t, script: script}
		r.onSend = func(_ netip.Addr, b []byte) {
			h, m := decode(t, slices.Clone(b))
			p.seen = append(p.seen, seen{h.TID, m})
		}
		p.begin()
		for len(p.script) > 0 {
			p.step()
		}
		if _, _, err := p.witness.QPAttr(verbs.StateRTS); err != nil {
			t.Fatalf("the witness: %v", err)
		}
		if err := p.witness.Establish(); err == nil {
			t.Fatal("the witness is no longer established")
		}
		synctest.Wait()
		for _, c := range p.conns {
			c.Close()
		}
		p.witness.Close()
		time.Sleep(3 * time.Hour)
		if n := r.m.Len(); n != 0 {
			t.Fatalf("%d connections are kept hours after all were closed", n)
		}
	})
}

type seen struct {
	tid uint64
	m   mad.Message
}

// player reads its decisions from the script.
type player struct {
	*rig
	t         *testing.T
	script    []byte
	seen      []seen // what the manager sent
	conns     []rdmacm.ProviderConn
	witness   rdmacm.ProviderConn
	witnessID uint32
	ids       []uint32
}

// pick returns a number below n.
func (p *player) pick(n int) int {
	if len(p.script) == 0 {
		return 0
	}
	b := p.script[0]
	p.script = p.script[1:]
	return int(b) % n
}

var friend = netip.MustParseAddr("10.77.0.3")

func (p *player) begin() {
	attr := connectAttr()
	attr.Dst = friend
	c, err := p.m.Connect(attr, func(e *rdmacm.ConnEvent) {
		if e.Type != rdmacm.ConnectResponse {
			p.t.Errorf("the witness: %v, status %d", e.Type, e.Status)
		}
	})
	if err != nil {
		p.t.Fatal(err)
	}
	req := p.seen[0].m.(*mad.REQ)
	p.receiveFrom(friend, p.seen[0].tid, kernelREP(req))
	synctest.Wait()
	if err := c.Establish(); err != nil {
		p.t.Fatal(err)
	}
	p.witness, p.witnessID = c, req.LocalCommID
	p.ids = []uint32{0, peerID, p.witnessID}
	for _, space := range []rdmacm.PortSpace{rdmacm.TCP, rdmacm.UDP} {
		if _, err := p.m.Listen(&rdmacm.ListenAttr{PortSpace: space, Addr: netip.AddrPortFrom(here, port), Backlog: 4}, p.handle); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *player) handle(e *rdmacm.ConnEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.Type {
	case rdmacm.ConnectRequest:
		p.conns = append(p.conns, e.Conn)
	case rdmacm.ConnectResponse, rdmacm.Established, rdmacm.Rejected, rdmacm.Unreachable, rdmacm.Disconnected,
		rdmacm.TimewaitExit:
	default:
		p.t.Errorf("%v", e.Type)
	}
}

// learn makes the IDs in sent messages known to the peers.
func (p *player) learn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.seen {
		switch m := s.m.(type) {
		case *mad.REQ:
			p.ids = append(p.ids, m.LocalCommID)
		case *mad.REP:
			p.ids = append(p.ids, m.LocalCommID)
		case *mad.SIDRREQ:
			p.ids = append(p.ids, m.RequestID)
		}
	}
	p.seen = p.seen[max(0, len(p.seen)-32):]
	p.ids = slices.Concat(p.ids[:3], p.ids[max(3, len(p.ids)-16):])
}

func (p *player) step() {
	p.learn()
	switch k := p.pick(16); {
	case k < 9:
		src := there
		if p.pick(4) == 0 {
			src = third
		}
		var tid uint64 = peerTID
		if p.pick(4) > 0 {
			tid = p.lastTID()
		}
		p.receiveFrom(src, tid, p.message(src))
	case k == 9:
		attr := connectAttr()
		if p.pick(4) == 0 {
			attr.PortSpace = rdmacm.UDP
		}
		if c, err := p.m.Connect(attr, p.handle); err == nil {
			p.mu.Lock()
			p.conns = append(p.conns, c)
			p.mu.Unlock()
		}
	case k == 10:
		time.Sleep(time.Duration(p.pick(256)) * 100 * time.Millisecond)
	case k == 11: // invalid bytes
		b := make([]byte, 250+p.pick(12))
		for i := range b {
			b[i] = byte(p.pick(256))
		}
		p.recv(&cm.Datagram{Port: 1, Src: there, Dst: here, MAD: b})
	default:
		p.call()
	}
	if p.pick(2) == 0 {
		synctest.Wait()
	}
}

// lastTID returns a recent transaction ID.
func (p *player) lastTID() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.seen)
	return p.seen[n-1-p.pick(min(n, 8))].tid
}

// call makes a call of the application.
func (p *player) call() {
	c := p.conn()
	if c == nil {
		return
	}
	switch p.pick(9) {
	case 0, 1:
		_ = c.Accept(acceptParam(), 0)
	case 2, 3:
		_ = c.Establish()
	case 4:
		_ = c.Reject(nil)
	case 5:
		_ = c.Disconnect()
	case 6:
		_ = c.Notify()
	case 7:
		_, _, _ = c.QPAttr(verbs.QPState(p.pick(7)))
	case 8:
		c.Close()
	}
}

// conn returns one of the application's connections, open or closed.
func (p *player) conn() rdmacm.ProviderConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) == 0 {
		return nil
	}
	return p.conns[p.pick(len(p.conns))]
}

// message returns a message, a plausible one in most cases.
func (p *player) message(src netip.Addr) mad.Message {
	id := func() uint32 { return p.ids[p.pick(len(p.ids))] }
	theirs := func() uint32 { return peerID + uint32(p.pick(3)) }
	qpn := func() uint32 { return peerQPN + uint32(p.pick(3)) }
	switch p.pick(12) {
	case 0, 1:
		m := kernelREQ()
		ip := mad.IPCM{Src: src, Dst: here}
		m.PrivateData, m.Primary.LocalGID = ip.Append(nil), src.As16()
		m.LocalCommID, m.LocalQPN = theirs(), qpn()
		m.LocalResponseTimeout, m.MaxCMRetries = uint8(p.pick(32)), uint8(p.pick(16))
		if p.pick(8) == 0 {
			m.ServiceID += uint64(p.pick(3))
		}
		return m
	case 2:
		return &mad.MRA{LocalCommID: theirs(), RemoteCommID: id(), About: mad.Answered(p.pick(4)), ServiceTimeout: uint8(p.pick(32))}
	case 3:
		m := &mad.REJ{LocalCommID: theirs(), RemoteCommID: id(), About: mad.Answered(p.pick(4)),
			Reason: mad.Reason(p.pick(40)), InfoLen: uint8(p.pick(128)), Info: []byte{0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, 2}}
		if p.pick(4) == 0 {
			m.Reason = mad.Timeout
		}
		return m
	case 4, 5:
		return &mad.REP{LocalCommID: theirs(), RemoteCommID: id(), LocalQPN: qpn(), LocalCAGUID: peerGUID,
			TargetAckDelay: uint8(p.pick(32))}
	case 6:
		return &mad.RTU{LocalCommID: theirs(), RemoteCommID: id()}
	case 7:
		return &mad.DREQ{LocalCommID: theirs(), RemoteCommID: id(), RemoteQPN: ourQPN + uint32(p.pick(2))}
	case 8:
		return &mad.DREP{LocalCommID: theirs(), RemoteCommID: id()}
	case 9:
		m := kernelSIDRREQ(port + uint16(p.pick(2)))
		ip := mad.IPCM{Src: src, Dst: here}
		m.PrivateData, m.RequestID = ip.Append(nil), theirs()
		return m
	case 10:
		return &mad.SIDRREP{RequestID: id(), Status: mad.SIDRStatus(p.pick(3)), QPN: qpn()}
	}
	if p.pick(2) == 0 {
		return &mad.LAP{LocalCommID: theirs(), RemoteCommID: id()}
	}
	return &mad.APR{LocalCommID: theirs(), RemoteCommID: id()}
}
