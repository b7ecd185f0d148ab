package iwarptransport_test

// The two sides of the tests: a node, which is an application on a SoftRNIC device, and a peer,
// which is the test itself and exchanges bytes with the node.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

const (
	nodeAddr  = "10.0.0.1"
	peerAddr  = "10.0.0.2"
	nodePort  = ":7471"
	allRights = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
)

const guard = 4096 // bytes on both sides of a node's region that must not change

// node is an application with a region and its guards.
type node struct {
	t        testing.TB
	net      *network
	host     *host
	dev      *verbs.Device
	pd       *verbs.PD
	scq, rcq *verbs.CQ
	events   *verbs.CompChannel // of rcq
	memory   []byte             // guards included
	buf      []byte
	mr       *verbs.MR
	regions  []*verbs.MR
	cap      verbs.QPCap       // of QPs
	param    *rdmacm.ConnParam // of the node's own connections; nil for the defaults
	// Receives posted for a new connection, each of recvLen consecutive bytes of buf.
	recvs   int
	recvLen int
	writes  *verbs.CompCntr // counts the peers' WRITEs, unless nil
}

func newNode(t testing.TB, n *network, addr string, size int, cfg iwarp.Config) *node {
	t.Helper()
	return newNodeWith(t, n, addr, size, &rdmatransport.Config{IWARP: cfg})
}

func newNodeWith(t testing.TB, n *network, addr string, size int, cfg *rdmatransport.Config) *node {
	t.Helper()
	d := &node{t: t, net: n, host: n.host(addr)}
	d.cap = verbs.QPCap{MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 8, MaxRecvSGE: 8, MaxInlineData: 256}
	dev, err := rdmatransport.Open(d.host, cfg)
	must(t, err)
	d.dev = dev
	d.pd, err = dev.AllocPD()
	must(t, err)
	d.scq, err = dev.CreateCQ(4096, nil)
	must(t, err)
	d.events, err = dev.CreateCompChannel()
	must(t, err)
	d.rcq, err = dev.CreateCQ(4096, &verbs.CQInitAttr{Channel: d.events})
	must(t, err)
	d.memory = bytes.Repeat([]byte{0xa5}, size+2*guard)
	d.buf = d.memory[guard : guard+size : guard+size]
	clear(d.buf)
	d.mr = d.register(d.buf, allRights)
	t.Cleanup(d.close)
	return d
}

func (d *node) register(b []byte, access verbs.Access) *verbs.MR {
	d.t.Helper()
	mr, err := d.pd.RegMR(b, access)
	must(d.t, err)
	d.regions = append(d.regions, mr)
	return mr
}

// close closes the device, which fails if any object is left, and checks the guards.
func (d *node) close() {
	t := d.t
	for _, mr := range d.regions {
		if err := mr.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
	}
	for _, f := range []func() error{d.pd.Close, d.scq.Close, d.rcq.Close, d.events.Close, d.dev.Close} {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
	for i, b := range d.memory {
		if (i < guard || i >= guard+len(d.buf)) && b != 0xa5 {
			t.Fatalf("the byte at %d of the region is changed", i-guard)
		}
	}
}

// counter returns a counter of the device.
func (d *node) counter(name string) uint64 {
	d.t.Helper()
	all, err := d.dev.HWCounters()
	must(d.t, err)
	return all[name]
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (d *node) config() *rdmacm.Config {
	return &rdmacm.Config{
		Transport: verbs.IWARP, PD: d.pd, SendCQ: d.scq, RecvCQ: d.rcq, Param: d.param,
		Cap: d.cap,
		Prepare: func(c *rdmacm.Conn) error {
			if d.writes != nil {
				if err := c.QP().AttachCompCntr(d.writes, verbs.CompCntrRemoteWrite); err != nil {
					return err
				}
			}
			for i := range d.recvs {
				if err := c.QP().PostRecv(&verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{d.mr.SGE(i*d.recvLen, d.recvLen)}}); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// session is a connection of a node, and the peer at its other end.
type session struct {
	*node
	conn *rdmacm.Conn
	qp   *verbs.QP
	p    *peer
}

// request and reply are a peer's frames by default.
func request() mpa.Frame {
	return mpa.Frame{CRC: true, Revision: 2, HasEnhanced: true, Enhanced: mpa.Enhanced{IRD: 16, ORD: 16}}
}

func reply() mpa.Frame {
	return mpa.Frame{Reply: true, CRC: true, Revision: 2, HasEnhanced: true,
		Enhanced: mpa.Enhanced{PeerToPeer: true, RDMAWrite: true, IRD: 16, ORD: 16}}
}

// accept connects a peer to the node, which has accepted when it returns, and may not send yet.
func (d *node) accept(f mpa.Frame) *session {
	d.t.Helper()
	l, err := rdmacm.Listen(d.dev, nodePort, d.config())
	must(d.t, err)
	d.t.Cleanup(func() { l.Close() })
	s := &session{node: d, p: dialNode(d.t, d.net, f)}
	s.conn, err = l.Accept(d.t.Context())
	must(d.t, err)
	s.started()
	got := s.p.frame()
	s.p.begin(got.Markers, f.Markers, f.CRC || got.CRC)
	return s
}

// dial connects the node to a peer that answers with f and has received the ready-to-receive
// message if f requests one.
func (d *node) dial(f mpa.Frame) *session {
	d.t.Helper()
	p, wait := d.dialling()
	got := p.frame()
	p.write(encode(d.t, f))
	conn, err := wait()
	must(d.t, err)
	s := &session{node: d, conn: conn, p: p}
	s.started()
	p.begin(got.Markers, f.Markers, f.CRC || got.CRC)
	if f.HasEnhanced && f.Enhanced.PeerToPeer {
		p.next()
	}
	return s
}

// dialling makes the node dial, and returns the peer before it has read the request. wait waits for
// the result.
func (d *node) dialling() (p *peer, wait func() (*rdmacm.Conn, error)) {
	d.t.Helper()
	l, err := d.net.host(peerAddr).ListenStream(netip.MustParseAddrPort(peerAddr + nodePort))
	must(d.t, err)
	defer l.Close()
	var conn *rdmacm.Conn
	done := make(chan struct{})
	go func() {
		conn, err = rdmacm.Dial(context.Background(), d.dev, peerAddr+nodePort, d.config())
		close(done)
	}()
	c, aerr := l.Accept()
	must(d.t, aerr)
	p = newPeer(d.t, c)
	return p, func() (*rdmacm.Conn, error) {
		<-done
		return conn, err
	}
}

func (s *session) started() {
	s.qp = s.conn.QP()
	s.t.Cleanup(func() {
		if s.p != nil {
			s.p.s.Close()
		}
		s.conn.Close()
	})
}

// pair connects two nodes.
func pair(a, b *node) (x, y *session) {
	t := a.t
	t.Helper()
	l, err := rdmacm.Listen(b.dev, ":0", b.config())
	must(t, err)
	defer l.Close()
	x, y = &session{node: a}, &session{node: b}
	done := make(chan error, 1)
	go func() {
		var err error
		x.conn, err = rdmacm.Dial(context.Background(), a.dev, netip.AddrPortFrom(b.host.addr, l.Addr().Port()).String(), a.config())
		done <- err
	}()
	y.conn, err = l.Accept(context.Background())
	must(t, err)
	must(t, <-done)
	x.started()
	y.started()
	return x, y
}

// post posts send work requests, which must succeed.
func (s *session) post(wrs ...*verbs.SendWR) {
	s.t.Helper()
	must(s.t, s.qp.PostSend(wrs...))
}

// recv posts a receive of n bytes at off.
func (s *session) recv(id uint64, off, n int) {
	s.t.Helper()
	must(s.t, s.qp.PostRecv(&verbs.RecvWR{WRID: id, SGList: []verbs.SGE{s.mr.SGE(off, n)}}))
}

// wcs returns the completions of a CQ when the bubble is idle.
func (s *session) wcs(cq *verbs.CQ) []verbs.WC {
	s.t.Helper()
	synctest.Wait()
	return drain(s.t, cq)
}

func drain(t testing.TB, cq *verbs.CQ) []verbs.WC {
	t.Helper()
	var all []verbs.WC
	for {
		var wcs [64]verbs.WC
		n, err := cq.Poll(wcs[:])
		must(t, err)
		if n == 0 {
			return all
		}
		all = append(all, wcs[:n]...)
	}
}

// statuses checks the completions of a CQ: these statuses, of requests 0, 1, 2, ….
func (s *session) statuses(cq *verbs.CQ, want ...verbs.WCStatus) []verbs.WC {
	s.t.Helper()
	wcs := s.wcs(cq)
	for i, wc := range wcs {
		if i >= len(want) || wc.Status != want[i] || wc.WRID != uint64(i) {
			s.t.Fatalf("completion %d: ID %d, %v; want %v", i, wc.WRID, wc.Status, want)
		}
	}
	if len(wcs) != len(want) {
		s.t.Fatalf("%d completions; want %v", len(wcs), want)
	}
	return wcs
}

// ended checks the end of the connection: the QP in ERR, one Disconnected, and no goroutine with
// the stream.
func (s *session) over() {
	s.t.Helper()
	s.p.s.Close()
	<-s.conn.Done()
	synctest.Wait()
	if st := s.qp.State(); st != verbs.StateErr {
		s.t.Fatalf("QP in %v", st)
	}
}

// peer is the other end of a node's stream.
type peer struct {
	t   testing.TB
	s   net.Conn
	out mpa.Sender
	in  mpa.Receiver
	got [][]byte // received ULPDUs
	msn [rdmap.Queues]uint32
}

func newPeer(t testing.TB, c net.Conn) *peer { return &peer{t: t, s: c} }

// dialNode opens a stream to the node and sends a request.
func dialNode(t testing.TB, n *network, f mpa.Frame) *peer {
	t.Helper()
	p := rawDial(t, n)
	p.write(encode(t, f))
	return p
}

func rawDial(t testing.TB, n *network) *peer {
	t.Helper()
	c, err := n.host(peerAddr).DialStream(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort(nodeAddr+nodePort))
	must(t, err)
	return newPeer(t, c)
}

func encode(t testing.TB, f mpa.Frame) []byte {
	t.Helper()
	b := make([]byte, f.Len())
	_, err := f.Encode(b)
	must(t, err)
	return b
}

func (p *peer) write(b []byte) {
	p.t.Helper()
	_, err := p.s.Write(b)
	must(p.t, err)
}

// frame reads an MPA frame.
func (p *peer) frame() mpa.Frame {
	p.t.Helper()
	b := make([]byte, mpa.HeaderLen)
	p.read(b)
	n, err := mpa.FrameLen(b)
	must(p.t, err)
	b = append(b, make([]byte, n-len(b))...)
	p.read(b[mpa.HeaderLen:])
	f, _, err := mpa.Parse(b)
	must(p.t, err)
	return f
}

func (p *peer) read(b []byte) {
	p.t.Helper()
	must(p.t, p.s.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err := io.ReadFull(p.s, b)
	must(p.t, err)
}

// begin starts full operation.
func (p *peer) begin(markersOut, markersIn, crc bool) {
	p.out = mpa.NewSender(mpa.Config{Markers: markersOut, CRC: crc})
	p.in = mpa.NewReceiver(mpa.Config{Markers: markersIn, CRC: crc})
}

// ULPDU implements mpa.Handler.
func (p *peer) ULPDU(b []byte) error {
	p.got = append(p.got, bytes.Clone(b))
	return nil
}

// try reads the next ULPDU.
func (p *peer) try() ([]byte, error) { return p.tryWithin(time.Minute) }

func (p *peer) tryWithin(d time.Duration) ([]byte, error) {
	b := make([]byte, 1<<16)
	for len(p.got) == 0 {
		if err := p.s.SetReadDeadline(time.Now().Add(d)); err != nil {
			return nil, err
		}
		n, err := p.s.Read(b)
		if ferr := p.in.Feed(b[:n], p); ferr != nil {
			return nil, ferr
		}
		if err != nil && len(p.got) == 0 {
			return nil, err
		}
	}
	u := p.got[0]
	p.got = p.got[1:]
	return u, nil
}

// message is one DDP segment, parsed.
type message struct {
	op       rdmap.Opcode
	isTagged bool
	tagged   ddp.Tagged
	untagged ddp.Untagged
	payload  []byte
	ulpdu    []byte
}

func (m *message) last() bool { return m.tagged.Last || m.untagged.Last }

func (p *peer) next() message {
	p.t.Helper()
	u, err := p.try()
	must(p.t, err)
	if len(u) == 0 {
		return message{}
	}
	m := message{isTagged: ddp.IsTagged(u), ulpdu: u}
	control := byte(0)
	if m.isTagged {
		m.tagged, m.payload, err = ddp.ParseTagged(u)
		control = m.tagged.RsvdULP
	} else {
		m.untagged, m.payload, err = ddp.ParseUntagged(u)
		control = m.untagged.RsvdULP
	}
	must(p.t, err)
	m.op, err = rdmap.ParseControl(control)
	must(p.t, err)
	return m
}

// expect is next with a check of the opcode.
func (p *peer) expect(op rdmap.Opcode) message {
	p.t.Helper()
	m := p.next()
	if m.op != op {
		p.t.Fatalf("%v; want %v", m.op, op)
	}
	return m
}

// silent checks that the node sends nothing. A little later, an initiator that receives nothing
// sends zero-length WRITEs.
func (p *peer) silent() {
	p.t.Helper()
	must(p.t, p.s.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	var b [1]byte
	var timeout net.Error
	if n, err := p.s.Read(b[:]); n != 0 || len(p.got) != 0 || !errors.As(err, &timeout) || !timeout.Timeout() {
		p.t.Fatalf("%d bytes and %d messages, %v; want nothing", n, len(p.got), err)
	}
}

// closed checks that the node has closed the stream, in an orderly way or not, and sends nothing
// more.
func (p *peer) closed() error {
	p.t.Helper()
	must(p.t, p.s.SetReadDeadline(time.Now().Add(time.Minute)))
	var b [1]byte
	n, err := p.s.Read(b[:])
	var timeout net.Error
	if n != 0 || len(p.got) != 0 || err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		p.t.Fatalf("%d bytes, %v; want the end", n+len(p.got), err)
	}
	return err
}

// terminated checks for a Terminate with a cause, then the end of the stream.
func (p *peer) terminated(want rdmap.Cause) rdmap.TerminateHeader {
	p.t.Helper()
	m := p.expect(rdmap.Terminate)
	if m.isTagged || m.untagged.QN != rdmap.QueueTerminate || m.untagged.MSN != 1 || m.untagged.MO != 0 || !m.untagged.Last {
		p.t.Fatalf("Terminate with header %+v", m.untagged)
	}
	h, err := rdmap.ParseTerminate(m.payload)
	must(p.t, err)
	if h.Cause != want {
		p.t.Fatalf("Terminate: %v; want %v", h.Cause, want)
	}
	if err := p.closed(); err != io.EOF {
		p.t.Fatalf("after Terminate: %v; want FIN", err)
	}
	return h
}

// fpdu returns the next FPDU, with a ULPDU.
func (p *peer) fpdu(ulpdu []byte) []byte {
	b := make([]byte, p.out.Size(len(ulpdu)))
	p.out.Begin(b, len(ulpdu))
	p.out.Add(ulpdu)
	p.out.End()
	return b
}

func (p *peer) send(ulpdu []byte) {
	p.t.Helper()
	p.write(p.fpdu(ulpdu))
}

func taggedSegment(h ddp.Tagged, payload []byte) []byte {
	b := make([]byte, ddp.TaggedLen, ddp.TaggedLen+len(payload))
	h.Encode(b)
	return append(b, payload...)
}

func untaggedSegment(h ddp.Untagged, payload []byte) []byte {
	b := make([]byte, ddp.UntaggedLen, ddp.UntaggedLen+len(payload))
	h.Encode(b)
	return append(b, payload...)
}

// writeSegment and others return messages of one segment.

func writeSegment(stag uint32, to uint64, payload []byte) []byte {
	return taggedSegment(ddp.Tagged{Last: true, RsvdULP: rdmap.Write.Control(), STag: stag, TO: to}, payload)
}

func responseSegment(stag uint32, to uint64, last bool, payload []byte) []byte {
	return taggedSegment(ddp.Tagged{Last: last, RsvdULP: rdmap.ReadResponse.Control(), STag: stag, TO: to}, payload)
}

// untagged returns a whole message on its opcode's queue, with the next MSN.
func (p *peer) untagged(op rdmap.Opcode, payload []byte) []byte {
	q := op.Info().Queue
	p.msn[q]++
	return untaggedSegment(ddp.Untagged{Last: true, RsvdULP: op.Control(), QN: q, MSN: p.msn[q]}, payload)
}

func (p *peer) invalidating(op rdmap.Opcode, stag uint32, payload []byte) []byte {
	p.msn[rdmap.QueueSend]++
	return untaggedSegment(ddp.Untagged{Last: true, RsvdULP: op.Control(), Invalidate: stag, MSN: p.msn[rdmap.QueueSend]}, payload)
}

func (p *peer) readRequest(h rdmap.ReadRequestHeader) []byte {
	b := make([]byte, rdmap.ReadRequestLen)
	h.Encode(b)
	return p.untagged(rdmap.ReadRequest, b)
}

func (p *peer) atomicRequest(h rdmap.AtomicRequestHeader) []byte {
	b := make([]byte, rdmap.AtomicRequestLen)
	h.Encode(b)
	return p.untagged(rdmap.AtomicRequest, b)
}

func (p *peer) atomicResponse(h rdmap.AtomicResponseHeader) []byte {
	b := make([]byte, rdmap.AtomicResponseLen)
	h.Encode(b)
	return p.untagged(rdmap.AtomicResponse, b)
}

func (p *peer) terminate(h rdmap.TerminateHeader) []byte {
	b := make([]byte, h.Len())
	h.Encode(b)
	return p.untagged(rdmap.Terminate, b)
}

// pattern returns n bytes whose values depend on their position.
func pattern(seed, n int) []byte {
	b := make([]byte, n)
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}
