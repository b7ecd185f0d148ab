package iwarptransport_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Both sides send the frames of RFC 5044 §7.1.1, and only FPDUs after them.
func TestSetup(t *testing.T) {
	t.Run("initiator", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			p, wait := d.dialling()
			head := make([]byte, mpa.HeaderLen)
			p.read(head)
			// CRC and S.
			if string(head[:16]) != "MPA ID Req Frame" || head[17] != 2 || head[16] != 0x50 {
				t.Fatalf("request %x", head)
			}
			p.read(make([]byte, int(head[18])<<8+int(head[19])))
			p.silent() // nothing before the reply
			p.write(encode(t, reply()))
			conn, err := wait()
			must(t, err)
			s := &session{node: d, conn: conn, p: p}
			s.started()
			p.begin(false, false, true)
			if m := p.expect(rdmap.Write); len(m.payload) != 0 {
				t.Fatalf("ready-to-receive message with %d bytes", len(m.payload))
			}
			p.silent()
		})
	})
	t.Run("responder", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			d.recvs, d.recvLen = 1, 16
			l, err := rdmacm.Listen(d.dev, nodePort, d.config())
			must(t, err)
			defer l.Close()
			p := dialNode(t, d.net, request())
			r, err := l.Request(t.Context())
			must(t, err)
			p.silent() // the application has not answered
			conn, err := r.Accept(t.Context(), d.config())
			must(t, err)
			s := &session{node: d, conn: conn, p: p}
			s.started()
			head := make([]byte, mpa.HeaderLen)
			p.read(head)
			if string(head[:16]) != "MPA ID Rep Frame" || head[17] != 2 || head[16] != 0x50 {
				t.Fatalf("reply %x", head)
			}
			p.read(make([]byte, int(head[18])<<8+int(head[19])))
			p.begin(false, false, true)
			// Full operation starts right after the frames: the QP is ready for the first FPDU.
			p.send(p.untagged(rdmap.Send, []byte("first")))
			s.statuses(d.rcq, verbs.WCSuccess)
			p.silent()
		})
	})
}

// A frame and the first FPDUs may arrive in any pieces, or in one.
func TestSetupInPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
		p, wait := d.dialling()
		p.frame()
		for _, b := range encode(t, reply()) {
			p.write([]byte{b})
			synctest.Wait()
		}
		conn, err := wait()
		must(t, err)
		s := &session{node: d, conn: conn, p: p}
		s.started()
	})
}

// Neither side waits forever for a frame.
func TestSetupTimeout(t *testing.T) {
	for name, sent := range map[string]int{"nothing": 0, "part of the header": 7, "part of the private data": 22} {
		t.Run("responder waits, "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
				l, err := rdmacm.Listen(d.dev, nodePort, d.config())
				must(t, err)
				defer l.Close()
				p := rawDial(t, d.net)
				p.write(encode(t, request())[:sent])
				start := time.Now()
				p.closed()
				if waited := time.Since(start); waited < time.Second || waited > 10*time.Second {
					t.Errorf("closed after %v", waited)
				}
			})
		})
		t.Run("initiator waits, "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
				p, wait := d.dialling()
				p.frame()
				p.write(encode(t, reply())[:sent])
				start := time.Now()
				_, err := wait()
				if !errors.Is(err, syscall.ETIMEDOUT) || eventType(err) != rdmacm.Unreachable {
					t.Errorf("error %v", err)
				}
				if waited := time.Since(start); waited < time.Second || waited > 15*time.Second {
					t.Errorf("gave up after %v", waited)
				}
				p.closed()
			})
		})
	}
	t.Run("no answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			d.net.host(peerAddr).unreachable = true
			if _, err := rdmacm.Dial(context.Background(), d.dev, peerAddr+nodePort, d.config()); !errors.Is(err, syscall.ETIMEDOUT) {
				t.Errorf("error %v", err)
			}
		})
	})
	t.Run("given up meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			t.Cleanup(func() { // the device has nothing to wait for when it is closed
				if waited := time.Since(start); waited > time.Second {
					t.Errorf("took %v", waited)
				}
			})
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			d.net.host(peerAddr).unreachable = true
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if _, err := rdmacm.Dial(ctx, d.dev, peerAddr+nodePort, d.config()); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
		})
	})
}

func eventType(err error) rdmacm.EventType {
	var e *rdmacm.EventError
	if !errors.As(err, &e) {
		return math.MaxUint8
	}
	return e.Type
}

// malformed are frames for which RFC 5044 §7.1.1 requires a close.
func malformed(t *testing.T, good mpa.Frame) map[string][]byte {
	edit := func(f func(b []byte)) []byte {
		b := encode(t, good)
		f(b)
		return b
	}
	return map[string][]byte{
		"key":                edit(func(b []byte) { b[3] ^= 0x20 }),
		"last of the key":    edit(func(b []byte) { b[15]++ }),
		"revision 0":         edit(func(b []byte) { b[17] = 0 }),
		"revision 3":         edit(func(b []byte) { b[17] = 3 }),
		"513 bytes":          edit(func(b []byte) { b[18], b[19] = 2, 1 }),
		"65535 bytes":        edit(func(b []byte) { b[18], b[19] = 255, 255 }),
		"no room for depths": edit(func(b []byte) { b[18], b[19] = 0, 3 }),
		"garbage":            bytes.Repeat([]byte{0x5a}, 64),
	}
}

func TestMalformedRequest(t *testing.T) {
	for name, frame := range malformed(t, request()) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
				l, err := rdmacm.Listen(d.dev, nodePort, d.config())
				must(t, err)
				defer l.Close()
				p := rawDial(t, d.net)
				p.write(frame)
				start := time.Now()
				p.closed()
				if time.Since(start) != 0 {
					t.Error("not closed at once")
				}
				if n := d.counter("iwarp_connects_refused"); n != 1 {
					t.Errorf("%d connections counted as refused", n)
				}
				// The application has not seen it, and the listener continues.
				s := &session{node: d, p: dialNode(t, d.net, request())}
				s.conn, err = l.Accept(t.Context())
				must(t, err)
				s.started()
			})
		})
	}
}

func TestMalformedReply(t *testing.T) {
	for name, frame := range malformed(t, reply()) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
				p, wait := d.dialling()
				p.frame()
				p.write(frame)
				start := time.Now()
				if _, err := wait(); !errors.Is(err, syscall.EPROTO) || eventType(err) != rdmacm.ConnectError {
					t.Errorf("error %v", err)
				}
				p.closed()
				if time.Since(start) != 0 {
					t.Error("not closed at once")
				}
			})
		})
	}
}

// Two initiators on one stream, and two responders, detect it by the kind of frame.
func TestTwoInitiators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
		p, wait := d.dialling()
		p.frame()
		p.write(encode(t, request()))
		if _, err := wait(); !errors.Is(err, syscall.EPROTO) {
			t.Errorf("error %v", err)
		}
		p.closed()
	})
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
		l, err := rdmacm.Listen(d.dev, nodePort, d.config())
		must(t, err)
		defer l.Close()
		p := rawDial(t, d.net)
		p.write(encode(t, reply()))
		p.closed()
	})
}

// A reply that rejects has private data, IRD and ORD, and the stream is closed after it.
func TestReject(t *testing.T) {
	t.Run("by the node", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			l, err := rdmacm.Listen(d.dev, nodePort, d.config())
			must(t, err)
			defer l.Close()
			f := request()
			f.PrivateData = []byte("let me in")
			f.Enhanced.IRD, f.Enhanced.ORD = 3, 7
			p := dialNode(t, d.net, f)
			r, err := l.Request(t.Context())
			must(t, err)
			if got := r.Peer(); string(got.PrivateData) != "let me in" || got.InitiatorDepth != 3 || got.ResponderResources != 7 {
				t.Errorf("request %+v", got)
			}
			must(t, r.Reject([]byte("no")))
			got := p.frame()
			if !got.Rejected || !got.HasEnhanced || string(got.PrivateData) != "no" || got.Enhanced.ORD > 3 {
				t.Errorf("reply %+v", got)
			}
			if err := p.closed(); err != io.EOF {
				t.Errorf("stream: %v", err)
			}
		})
	})
	t.Run("by the peer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			id, p := d.dialID(t)
			p.frame()
			f := reply()
			f.Rejected, f.PrivateData = true, []byte("full up")
			f.Enhanced.IRD, f.Enhanced.ORD = 5, 40
			p.write(encode(t, f))
			err := id.connected()
			if !errors.Is(err, syscall.ECONNREFUSED) || eventType(err) != rdmacm.Rejected {
				t.Errorf("error %v", err)
			}
			got := id.Event().Param
			if string(got.PrivateData) != "full up" || got.InitiatorDepth != 5 || got.ResponderResources != 40 {
				t.Errorf("event %+v", got)
			}
			p.closed()
		})
	})
	t.Run("the peer leaves", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			p, wait := d.dialling()
			p.frame()
			p.s.Close()
			if _, err := wait(); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("error %v", err)
			}
		})
	})
	t.Run("no listener", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			d.net.host(peerAddr)
			if _, err := rdmacm.Dial(t.Context(), d.dev, peerAddr+nodePort, d.config()); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("error %v", err)
			}
		})
	})
	// A request that the application drops is rejected; the stream of a request whose peer has left
	// is closed.
	for _, gone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			l, err := rdmacm.Listen(d.dev, nodePort, d.config())
			must(t, err)
			p := dialNode(t, d.net, request())
			synctest.Wait()
			if gone {
				p.s.(*stream).Abort()
			}
			must(t, l.Close())
			if !gone && !p.frame().Rejected {
				t.Error("not rejected")
			}
			if !gone {
				p.closed()
			}
		})
	}
}

// dialledID is a connecting rdma_cm ID without a QP of its own.
type dialledID struct {
	*rdmacm.SyncID
	qp   *verbs.QP
	done chan error
}

func (d *node) dialID(t *testing.T) (*dialledID, *peer) {
	t.Helper()
	id, err := rdmacm.CreateSyncID(rdmacm.TCP, d.dev)
	must(t, err)
	t.Cleanup(func() { id.Close() })
	must(t, id.SetTransports(verbs.IWARP))
	to := netip.MustParseAddrPort(peerAddr + nodePort)
	l, err := d.net.host(peerAddr).ListenStream(to)
	must(t, err)
	defer l.Close()
	must(t, id.ResolveAddr(t.Context(), netip.AddrPort{}, to))
	must(t, id.ResolveRoute(t.Context()))
	x := &dialledID{SyncID: id, done: make(chan error, 1)}
	go func() { x.done <- id.Connect(context.Background(), d.param) }()
	c, err := l.Accept()
	must(t, err)
	return x, newPeer(t, c)
}

func (x *dialledID) connected() error { return <-x.done }

// An initiator that fails after the peer has accepted sends a Terminate message (RFC 6581 §9.3).
func TestSetupLocalError(t *testing.T) {
	cause, _ := rdmap.CauseOf(mpa.ErrLocalCatastrophic)
	if (cause != rdmap.Cause{Layer: 2, Type: 0, Code: 5}) {
		t.Fatalf("cause %+v", cause)
	}
	for name, giveUp := range map[string]func(*dialledID) error{
		"rejected": func(x *dialledID) error { return x.Reject(nil) },
		"closed":   func(x *dialledID) error { return x.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
				id, p := d.dialID(t)
				p.frame()
				f := reply()
				f.Markers = true
				p.write(encode(t, f))
				must(t, id.connected())
				must(t, giveUp(id))
				p.begin(false, true, true)
				p.terminated(cause)
			})
		})
	}
	t.Run("no random numbers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			random := &source{}
			d := newNodeWith(t, &network{}, nodeAddr, 4096, &rdmatransport.Config{Rand: random})
			p, wait := d.dialling()
			p.frame()
			random.dry = true
			p.write(encode(t, reply()))
			if _, err := wait(); err == nil {
				t.Error("connected")
			}
			p.begin(false, false, true)
			p.terminated(cause)
		})
	})
}

// source is a source of random numbers that can fail.
type source struct {
	x   uint64
	dry bool
}

func (s *source) Read(b []byte) (int, error) {
	if s.dry {
		return 0, io.ErrUnexpectedEOF
	}
	for i := range b {
		s.x = s.x*6364136223846793005 + 1442695040888963407
		b[i] = byte(s.x >> 56)
	}
	return len(b), nil
}

// A responder sends no FPDU before a valid one has arrived (RFC 5044 §7.1.2), not even a Terminate
// message.
func TestResponderWaits(t *testing.T) {
	for _, markers := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			f := request()
			f.Markers = markers
			s := d.accept(f)
			s.post(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{d.mr.SGE(0, 64)}})
			s.p.silent()
			s.statuses(d.scq)
			s.p.send(writeSegment(0, 0, nil))
			s.p.expect(rdmap.Send)
			s.statuses(d.scq, verbs.WCSuccess)
		})
	}
	t.Run("the first is bad", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			s := d.accept(request())
			b := s.p.fpdu(writeSegment(0, 0, nil))
			b[len(b)-1]++
			s.p.write(b)
			s.p.closed()
			s.over()
		})
	})
	t.Run("one comes before the reply", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			l, err := rdmacm.CreateSyncID(rdmacm.TCP, d.dev)
			must(t, err)
			defer l.Close()
			must(t, l.SetTransports(verbs.IWARP))
			must(t, l.Bind(netip.MustParseAddrPort(nodeAddr+nodePort)))
			must(t, l.Listen(4))
			p := rawDial(t, d.net)
			p.begin(false, false, true)
			p.write(encode(t, request()))
			r, err := l.GetRequest(t.Context())
			must(t, err)
			defer r.Close()
			// The application modifies the QP itself, and is slow to accept.
			id := &dialledID{SyncID: r}
			must(t, id.createQP(d))
			defer id.qp.Close()
			for _, to := range []verbs.QPState{verbs.StateInit, verbs.StateRTS} {
				attr, mask, err := r.QPAttr(to)
				must(t, err)
				must(t, id.qp.Modify(&attr, mask))
			}
			p.send(p.readRequest(rdmap.ReadRequestHeader{SourceSTag: d.mr.RKey(), SourceTO: d.mr.Addr(), Size: 64}))
			synctest.Wait()
			if st := id.qp.State(); st != verbs.StateErr {
				t.Errorf("QP in %v", st)
			}
			if err := r.ID.Accept(nil); err == nil {
				t.Error("accepted")
			}
			p.closed()
		})
	})
}

// Client-server mode: there is no ready-to-receive message, and a peer's bits for one are ignored.
func TestClientServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{NoPeerToPeer: true})
		p, wait := d.dialling()
		if e := p.frame().Enhanced; e.PeerToPeer || e.ZeroLengthSend || e.RDMAWrite || e.RDMARead {
			t.Errorf("request %+v", e)
		}
		f := reply()
		f.Enhanced.PeerToPeer, f.Enhanced.RDMARead = false, true
		p.write(encode(t, f))
		conn, err := wait()
		must(t, err)
		s := &session{node: d, conn: conn, p: p}
		s.started()
		p.begin(false, false, true)
		p.silent()
		s.post(&verbs.SendWR{Opcode: verbs.Send})
		p.expect(rdmap.Send)
	})
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
		f := request()
		f.Enhanced.ZeroLengthSend, f.Enhanced.RDMAWrite, f.Enhanced.RDMARead = true, true, true
		l, err := rdmacm.Listen(d.dev, nodePort, d.config())
		must(t, err)
		defer l.Close()
		s := &session{node: d, p: dialNode(t, d.net, f)}
		s.conn, err = l.Accept(t.Context())
		must(t, err)
		s.started()
		if e := s.p.frame().Enhanced; e.PeerToPeer || e.ZeroLengthSend || e.RDMAWrite || e.RDMARead {
			t.Errorf("reply %+v", e)
		}
	})
}
