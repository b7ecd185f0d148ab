package iwarptransport_test

import (
	"bytes"
	"errors"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Markers are used only in the direction in which the receiver requests them.
func TestMarkersAgreed(t *testing.T) {
	for _, ours := range []bool{false, true} {
		for _, theirs := range []bool{false, true} {
			for _, initiator := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					d := newNode(t, &network{}, nodeAddr, 1<<16, iwarp.Config{Markers: ours})
					d.recvs, d.recvLen = 1, 30_000
					s := d.connect(initiator, theirs, true)
					// The peer reads with markers exactly if it requested them: see begin.
					data := pattern(1, 30_000)
					copy(d.buf[30_000:], data)
					s.post(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{d.mr.SGE(30_000, len(data))}})
					if got := s.p.message(rdmap.Send); !bytes.Equal(got, data) {
						t.Error("data sent differ")
					}
					s.p.send(s.p.untagged(rdmap.Send, data))
					s.statuses(d.rcq, verbs.WCSuccess)
					if !bytes.Equal(d.buf[:len(data)], data) {
						t.Error("data received differ")
					}
				})
			}
		}
	}
}

// connect is accept or dial, with the peer's requests; the node may send.
func (d *node) connect(initiator, markers, crc bool) *session {
	d.t.Helper()
	if initiator {
		f := reply()
		f.Markers, f.CRC = markers, crc
		return d.dial(f)
	}
	f := request()
	f.Markers, f.CRC = markers, crc
	s := d.accept(f)
	s.p.send(writeSegment(0, 0, nil))
	synctest.Wait()
	return s
}

// message reads a message of any number of segments.
func (p *peer) message(op rdmap.Opcode) (payload []byte) {
	p.t.Helper()
	for {
		m := p.expect(op)
		payload = append(payload, m.payload...)
		if m.last() {
			return payload
		}
	}
}

// CRCs are used if either side requests them.
func TestCRCAgreed(t *testing.T) {
	for _, noCRC := range []bool{false, true} {
		for _, theirs := range []bool{false, true} {
			for _, initiator := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{NoCRC: noCRC})
					d.recvs, d.recvLen = 2, 64
					s := d.connect(initiator, false, theirs)
					used := !noCRC || theirs
					s.post(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{d.mr.SGE(0, 64)}})
					s.p.in = mpa.NewReceiver(mpa.Config{}) // ignores CRCs: the test checks them
					raw := make([]byte, 2+18+64+4)
					s.p.read(raw)
					if zero := bytes.Equal(raw[len(raw)-4:], make([]byte, 4)); zero == used {
						t.Errorf("CRC field % x, CRCs used: %v", raw[len(raw)-4:], used)
					}
					s.p.send(s.p.untagged(rdmap.Send, pattern(1, 64)))
					s.statuses(d.rcq, verbs.WCSuccess)
					b := s.p.fpdu(s.p.untagged(rdmap.Send, pattern(2, 64)))
					copy(b[len(b)-4:], "bad!")
					s.p.write(b)
					synctest.Wait()
					switch wcs := drain(t, d.rcq); {
					case len(wcs) != 1 || (wcs[0].Status == verbs.WCSuccess) == used:
						t.Errorf("after a wrong CRC, used: %v: %+v", used, wcs)
					}
				})
			}
		}
	}
}

// Reserved bits are zero, except those that negotiate LongFPDUs on links that segment. The peer's
// reserved bits are ignored, and so is an STag to invalidate if there is none.
func TestReservedBits(t *testing.T) {
	for _, c := range []struct{ offloaded, long bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		large := c.offloaded && c.long
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{offloaded: c.offloaded}, nodeAddr, 1<<16, iwarp.Config{LongFPDUs: c.long})
			p, wait := d.dialling()
			got := p.frame()
			want := map[bool]uint8{false: 0, true: 0x04}[large]
			if got.Reserved != want {
				t.Errorf("%+v: reserved bits %#x of the request", c, got.Reserved)
			}
			// siw returns a request's own bits. This is not an agreement.
			f := reply()
			f.Reserved = 0x0d
			p.write(encode(t, f))
			conn, err := wait()
			must(t, err)
			s := &session{node: d, conn: conn, p: p}
			s.started()
			p.begin(false, false, true)
			p.next()
			s.post(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{d.mr.SGE(0, 60_000)}})
			if m := p.expect(rdmap.Send); len(m.ulpdu) > 1460 {
				t.Errorf("segment of %d bytes", len(m.ulpdu))
			}
		})
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{offloaded: c.offloaded}, nodeAddr, 1<<16, iwarp.Config{LongFPDUs: c.long})
			p, wait := d.dialling()
			p.frame()
			f := reply()
			f.Reserved = 0x02
			p.write(encode(t, f))
			conn, err := wait()
			must(t, err)
			s := &session{node: d, conn: conn, p: p}
			s.started()
			p.begin(false, false, true)
			p.next()
			s.post(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{d.mr.SGE(0, 60_000)}})
			if m := p.expect(rdmap.Send); large != (len(m.payload) == 60_000) {
				t.Errorf("%+v, agreed: segment of %d bytes", c, len(m.ulpdu))
			}
		})
	}
	for _, c := range []struct {
		bits, want uint8
		cfg        iwarp.Config
	}{
		{0x01, 0, iwarp.Config{LongFPDUs: true}}, {0x02, 0, iwarp.Config{LongFPDUs: true}}, {0x08, 0, iwarp.Config{LongFPDUs: true}},
		{0x0b, 0, iwarp.Config{LongFPDUs: true}}, {0x04, 0x02, iwarp.Config{LongFPDUs: true}},
		{0x04, 0, iwarp.Config{}}, {0x0f, 0, iwarp.Config{}},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{offloaded: true}, nodeAddr, 1<<16, c.cfg)
			f := request()
			f.Reserved = c.bits
			l, err := rdmacm.Listen(d.dev, nodePort, d.config())
			must(t, err)
			defer l.Close()
			s := &session{node: d, p: dialNode(t, d.net, f)}
			s.conn, err = l.Accept(t.Context())
			must(t, err)
			s.started()
			if got := s.p.frame(); got.Reserved != c.want {
				t.Errorf("reserved bits %#x of the reply to %#x, want %#x", got.Reserved, c.bits, c.want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
		d.recvs, d.recvLen = 1, 64
		s := d.dial(reply())
		u := s.p.untagged(rdmap.Send, []byte("hello"))
		u[0] |= 0x3c                     // DDP's
		u[1] |= 0x30                     // RDMAP's
		copy(u[2:6], []byte{1, 2, 3, 4}) // STag to invalidate, which a Send has not
		s.p.send(u)
		if wc := s.statuses(d.rcq, verbs.WCSuccess)[0]; wc.Flags&verbs.WCWithInv != 0 || wc.ByteLen != 5 {
			t.Errorf("%+v", wc)
		}
	})
}

// Revision 1 has neither IRD and ORD nor ready-to-receive messages. It is used with a peer that has
// it.
func TestRevision1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{offloaded: true}, nodeAddr, 4096, iwarp.Config{Revision: 1})
		p, wait := d.dialling()
		if f := p.frame(); f.Revision != 1 || f.HasEnhanced || f.Reserved != 0 || len(f.PrivateData) != 0 {
			t.Errorf("request %+v", f)
		}
		p.write(encode(t, mpa.Frame{Reply: true, CRC: true, Revision: 1, PrivateData: []byte("abcdef")}))
		conn, err := wait()
		must(t, err)
		s := &session{node: d, conn: conn, p: p}
		s.started()
		if got := conn.Peer(); string(got.PrivateData) != "abcdef" {
			t.Errorf("private data %q", got.PrivateData)
		}
		p.begin(false, false, true)
		p.silent()
		s.post(&verbs.SendWR{Opcode: verbs.Send})
		p.expect(rdmap.Send)
	})
	for name, f := range map[string]mpa.Frame{
		"revision 1":             {CRC: true, Revision: 1, PrivateData: []byte("0123456789")},
		"revision 1, S is a bit": {CRC: true, Revision: 1, Reserved: 0x10, PrivateData: []byte("0123456789")},
		"revision 2, without S":  {CRC: true, Revision: 2, PrivateData: []byte("0123456789")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
				l, err := rdmacm.Listen(d.dev, nodePort, d.config())
				must(t, err)
				defer l.Close()
				s := &session{node: d, p: dialNode(t, d.net, f)}
				s.conn, err = l.Accept(t.Context())
				must(t, err)
				s.started()
				if got := s.conn.Peer(); string(got.PrivateData) != "0123456789" {
					t.Errorf("private data %q", got.PrivateData)
				}
				if got := s.p.frame(); got.HasEnhanced || got.Revision != f.Revision || got.Reserved != 0 {
					t.Errorf("reply %+v", got)
				}
			})
		})
	}
}

// Each side's ORD is within the other's IRD, the application gets both, and the QP uses them.
func TestIRDORD(t *testing.T) {
	depths := func(t *testing.T, qp *verbs.QP, ird, ord uint8) {
		t.Helper()
		attr, _, err := qp.Query()
		must(t, err)
		if attr.MaxDestRDAtomic != ird || attr.MaxRDAtomic != ord {
			t.Errorf("QP has IRD %d and ORD %d; want %d and %d", attr.MaxDestRDAtomic, attr.MaxRDAtomic, ird, ord)
		}
	}
	t.Run("responder", func(t *testing.T) {
		for _, c := range []struct {
			theirIRD, theirORD   uint16
			resources, initiator uint8  // the application's parameters of Accept
			ird, ord             uint16 // in the reply
		}{
			{16, 16, rdmacm.MaxDepth, rdmacm.MaxDepth, 16, 16},
			{4, 9, rdmacm.MaxDepth, rdmacm.MaxDepth, 9, 4},
			{0, 0, rdmacm.MaxDepth, rdmacm.MaxDepth, 0, 0},
			{4, 9, 20, 3, 20, 3},
			{4, 9, 9, 64, 9, 4}, // more than the peer allows
			{1000, 2000, rdmacm.MaxDepth, rdmacm.MaxDepth, 128, 128},
		} {
			synctest.Test(t, func(t *testing.T) {
				d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
				d.param = &rdmacm.ConnParam{ResponderResources: c.resources, InitiatorDepth: c.initiator}
				f := request()
				f.Enhanced.IRD, f.Enhanced.ORD = c.theirIRD, c.theirORD
				l, err := rdmacm.Listen(d.dev, nodePort, d.config())
				must(t, err)
				defer l.Close()
				s := &session{node: d, p: dialNode(t, d.net, f)}
				s.conn, err = l.Accept(t.Context())
				must(t, err)
				s.started()
				peer := s.conn.Peer()
				if peer.InitiatorDepth != uint8(min(c.theirIRD, 128)) || peer.ResponderResources != uint8(min(c.theirORD, 128)) {
					t.Errorf("the application gets %+v", peer)
				}
				got := s.p.frame()
				if !got.HasEnhanced || got.Enhanced.IRD != c.ird || got.Enhanced.ORD != c.ord {
					t.Errorf("%+v: reply %+v", c, got.Enhanced)
				}
				depths(t, s.qp, uint8(c.ird), uint8(c.ord))
			})
		}
	})
	t.Run("initiator", func(t *testing.T) {
		for _, c := range []struct {
			resources, initiator uint8 // requested
			theirIRD, theirORD   uint16
			ird, ord             uint8
		}{
			{16, 16, 16, 16, 16, 16},
			{16, 16, 3, 16, 16, 3},
			{16, 16, 40, 4, 16, 16},
			// The peer wants more than was offered, and the device supports it.
			{4, 4, 4, 100, 100, 4},
			{0, 0, 0, 0, 0, 0},
		} {
			synctest.Test(t, func(t *testing.T) {
				d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
				d.param = &rdmacm.ConnParam{ResponderResources: c.resources, InitiatorDepth: c.initiator}
				p, wait := d.dialling()
				if got := p.frame().Enhanced; got.IRD != uint16(c.resources) || got.ORD != uint16(c.initiator) {
					t.Errorf("request %+v", got)
				}
				f := reply()
				f.Enhanced.IRD, f.Enhanced.ORD = c.theirIRD, c.theirORD
				p.write(encode(t, f))
				conn, err := wait()
				must(t, err)
				s := &session{node: d, conn: conn, p: p}
				s.started()
				depths(t, s.qp, c.ird, c.ord)
				if got := conn.Peer(); got.InitiatorDepth != uint8(c.theirIRD) || got.ResponderResources != uint8(c.theirORD) {
					t.Errorf("the application gets %+v", got)
				}
			})
		}
	})
	t.Run("too many requested", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			p, wait := d.dialling()
			p.frame()
			f := reply()
			f.Enhanced.ORD = 129
			p.write(encode(t, f))
			if _, err := wait(); !errors.Is(err, syscall.EPROTO) {
				t.Errorf("error %v", err)
			}
			p.begin(false, false, true)
			p.terminated(rdmap.Cause{Layer: 2, Type: 0, Code: 6})
		})
	})
}

// An IRD or ORD of 0x3fff is left to the application.
func TestNoNegotiation(t *testing.T) {
	for _, ird := range []uint16{mpa.NoNegotiation, 5} {
		for _, ord := range []uint16{mpa.NoNegotiation, 6} {
			synctest.Test(t, func(t *testing.T) {
				d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
				d.param = &rdmacm.ConnParam{ResponderResources: 20, InitiatorDepth: 5}
				f := request()
				f.Enhanced.IRD, f.Enhanced.ORD = ird, ord
				l, err := rdmacm.Listen(d.dev, nodePort, d.config())
				must(t, err)
				defer l.Close()
				s := &session{node: d, p: dialNode(t, d.net, f)}
				s.conn, err = l.Accept(t.Context())
				must(t, err)
				s.started()
				got := s.p.frame().Enhanced
				wantIRD, wantORD := uint16(20), uint16(5)
				if ord == mpa.NoNegotiation {
					wantIRD = mpa.NoNegotiation
				}
				if ird == mpa.NoNegotiation {
					wantORD = mpa.NoNegotiation
				}
				if got.IRD != wantIRD || got.ORD != wantORD {
					t.Errorf("requested %#x, %#x: answered %#x, %#x", ird, ord, got.IRD, got.ORD)
				}
				// The local IRD is unchanged: 20 READs are accepted.
				s.p.begin(false, false, true)
				for range 20 {
					s.p.write(s.p.fpdu(s.p.readRequest(rdmap.ReadRequestHeader{})))
				}
				for range 20 {
					s.p.expect(rdmap.ReadResponse)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
				d.param = &rdmacm.ConnParam{ResponderResources: 7, InitiatorDepth: 8}
				f := reply()
				f.Enhanced.IRD, f.Enhanced.ORD = ird, ord
				s := d.dial(f)
				attr, _, err := s.qp.Query()
				must(t, err)
				want := uint8(8)
				if ird != mpa.NoNegotiation {
					want = uint8(ird)
				}
				if attr.MaxDestRDAtomic != 7 || attr.MaxRDAtomic != want {
					t.Errorf("answered %#x, %#x: QP has %d, %d", ird, ord, attr.MaxDestRDAtomic, attr.MaxRDAtomic)
				}
			})
		}
	}
}

// The ready-to-receive message: each kind, requested and answered (RFC 6581 §9.2).
func TestRTR(t *testing.T) {
	t.Run("initiator", func(t *testing.T) {
		for name, c := range map[string]struct {
			set   func(*mpa.Enhanced)
			check func(*testing.T, *peer, message)
		}{
			"write": {func(e *mpa.Enhanced) { e.RDMAWrite = true }, func(t *testing.T, _ *peer, m message) {
				if m.op != rdmap.Write || !m.isTagged || !m.tagged.Last || len(m.payload) != 0 {
					t.Errorf("%+v", m)
				}
			}},
			"read": {func(e *mpa.Enhanced) { e.RDMARead = true }, func(t *testing.T, p *peer, m message) {
				h, err := rdmap.ParseReadRequest(m.payload)
				if m.op != rdmap.ReadRequest || err != nil || h.Size != 0 || m.untagged.MSN != 1 {
					t.Errorf("%+v", m)
				}
				p.send(responseSegment(h.SinkSTag, h.SinkTO, true, nil))
			}},
			"empty": {func(e *mpa.Enhanced) { e.ZeroLengthSend = true }, func(t *testing.T, _ *peer, m message) {
				if len(m.ulpdu) != 0 {
					t.Errorf("%+v", m)
				}
			}},
			"any": {func(e *mpa.Enhanced) { e.RDMAWrite, e.RDMARead, e.ZeroLengthSend = true, true, true },
				func(*testing.T, *peer, message) {}},
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
					p, wait := d.dialling()
					asked := p.frame().Enhanced
					if !asked.PeerToPeer || !asked.RDMAWrite || !asked.RDMARead || !asked.ZeroLengthSend {
						t.Errorf("request %+v", asked)
					}
					f := reply()
					f.Enhanced = mpa.Enhanced{PeerToPeer: true, IRD: 2, ORD: 2}
					c.set(&f.Enhanced)
					p.write(encode(t, f))
					conn, err := wait()
					must(t, err)
					s := &session{node: d, conn: conn, p: p}
					s.started()
					// Posted requests follow it.
					for i := range 4 {
						s.post(&verbs.SendWR{
							WRID: uint64(i), Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{d.mr.SGE(0, 8)},
						})
					}
					p.begin(false, false, true)
					synctest.Wait()
					first := p.next()
					if first.op == rdmap.ReadRequest { // it is one of the two that the peer accepts
						p.expect(rdmap.ReadRequest)
						p.silent()
					}
					c.check(t, p, first)
					if first.op == rdmap.ReadRequest {
						p.expect(rdmap.ReadRequest)
						return
					}
					for range 2 {
						p.expect(rdmap.ReadRequest)
					}
					p.silent()
				})
			})
		}
	})
	t.Run("initiator, no kind agreed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			p, wait := d.dialling()
			p.frame()
			f := reply()
			f.Enhanced.RDMAWrite = false
			p.write(encode(t, f))
			if _, err := wait(); !errors.Is(err, syscall.EPROTO) {
				t.Errorf("error %v", err)
			}
			p.begin(false, false, true)
			p.terminated(rdmap.Cause{Layer: 2, Type: 0, Code: 7})
		})
	})
	t.Run("responder", func(t *testing.T) {
		kinds := func(e mpa.Enhanced) []bool { return []bool{e.ZeroLengthSend, e.RDMAWrite, e.RDMARead} }
		for mask := range 8 {
			synctest.Test(t, func(t *testing.T) {
				d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
				f := request()
				f.Enhanced.ORD = 0 // only the ready-to-receive message may be a READ
				f.Enhanced.PeerToPeer = true
				f.Enhanced.ZeroLengthSend, f.Enhanced.RDMAWrite, f.Enhanced.RDMARead = mask&1 != 0, mask&2 != 0, mask&4 != 0
				l, err := rdmacm.Listen(d.dev, nodePort, d.config())
				must(t, err)
				defer l.Close()
				s := &session{node: d, p: dialNode(t, d.net, f)}
				s.conn, err = l.Accept(t.Context())
				must(t, err)
				s.started()
				got := s.p.frame().Enhanced
				both := false
				for i, asked := range kinds(f.Enhanced) {
					both = both || asked && kinds(got)[i]
				}
				if !got.PeerToPeer || !slices.Contains(kinds(got), true) || mask != 0 && !both {
					t.Errorf("requested %+v, answered %+v", f.Enhanced, got)
				}
				s.post(&verbs.SendWR{Opcode: verbs.Send})
				s.p.silent()
				s.p.begin(false, false, true)
				switch {
				case got.RDMAWrite:
					s.p.send(writeSegment(0x1234, 0x5678, nil))
				case got.RDMARead:
					if got.IRD < 1 {
						t.Errorf("IRD %d, and a READ to come", got.IRD)
					}
					s.p.send(s.p.readRequest(rdmap.ReadRequestHeader{SinkSTag: 7, SinkTO: 8}))
					a, b := s.p.next().op, s.p.next().op
					if a+b != rdmap.Send+rdmap.ReadResponse {
						t.Errorf("%v and %v", a, b)
					}
					return
				default:
					s.p.send(nil)
				}
				s.p.expect(rdmap.Send)
			})
		}
	})
}

// With Config.SendFirst the responder sends first, but only after the peer has had time to read the
// reply.
func TestSendFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{SendFirst: true})
		s := d.accept(request())
		s.post(&verbs.SendWR{Opcode: verbs.Send})
		s.p.silent()
		s.p.expect(rdmap.Send)
		s.p.expect(rdmap.Write) // the peer may not have been woken by it
		s.p.send(writeSegment(0x1234, 0x5678, nil))
		time.Sleep(time.Minute)
		s.p.silent()
	})
}
