package iwarp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/mpa"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/rdmap"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Both sides send the frames that RFC 5044 §7.1.1 asks for, and behind them nothing but FPDUs.
func TestSetup(t *testing.T) {
	t.Run("initiator", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			p, wait := d.dialling()
			head := make([]byte, mpa.HeaderLen)
			p.read(head)
			if string(head[:16]) != "MPA ID Req Frame" || head[17] != 2 || head[16] != 0x50 { // CRC and S
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
			p.silent() // the application has not decided
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
			// Full operation starts right behind the frames: the QP is there for the first FPDU.
			p.send(p.untagged(rdmap.Send, []byte("first")))
			s.statuses(d.rcq, verbs.WCSuccess)
			p.silent()
		})
	})
}

// A frame and the first FPDUs may come in any pieces, or in one.
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

// No side waits for ever for a frame.
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
	t.Run("nobody answers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			d.net.host(peerAddr).mute = true
			if _, err := rdmacm.Dial(context.Background(), d.dev, peerAddr+nodePort, d.config()); !errors.Is(err, syscall.ETIMEDOUT) {
				t.Errorf("error %v", err)
			}
		})
	})
	t.Run("given up meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			t.Cleanup(func() { // the device has waited for nothing when it is closed
				if waited := time.Since(start); waited > time.Second {
					t.Errorf("took %v", waited)
				}
			})
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			d.net.host(peerAddr).mute = true
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

// malformed are frames that RFC 5044 §7.1.1 says to close for.
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
				if n := d.prov.Counters()["iwarp_connects_refused"]; n != 1 {
					t.Errorf("%d connections counted as refused", n)
				}
				// The application has not seen it, and the listener goes on.
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

// Two initiators find each other out by the frame, and so do two responders.
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

// A rejection carries private data and depths, and closes the stream behind it.
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
	t.Run("the peer goes", func(t *testing.T) {
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
	t.Run("nobody listens", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			d.net.host(peerAddr)
			if _, err := rdmacm.Dial(t.Context(), d.dev, peerAddr+nodePort, d.config()); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("error %v", err)
			}
		})
	})
	// Whom the application forgets without an answer is rejected; the stream of one who has left is given back.
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

// dialledID is an rdma_cm ID without a QP of its own, that is connecting.
type dialledID struct {
	*rdmacm.SyncID
	qp   *verbs.QP
	done chan error
}

func (d *node) dialID(t *testing.T) (*dialledID, *peer) {
	t.Helper()
	id, err := rdmacm.CreateSyncID(rdmacm.TCP, d.dev)
	must(t, err)
	t.Cleanup(func() { id.Destroy() })
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

// An initiator that fails by itself after the peer accepted says so in a Terminate (RFC 6581 §9.3).
func TestSetupLocalError(t *testing.T) {
	cause, _ := rdmap.CauseOf(mpa.ErrLocalCatastrophic)
	if (cause != rdmap.Cause{Layer: 2, Type: 0, Code: 5}) {
		t.Fatalf("cause %+v", cause)
	}
	for name, giveUp := range map[string]func(*dialledID) error{
		"rejected":  func(x *dialledID) error { return x.Reject(nil) },
		"destroyed": func(x *dialledID) error { return x.Destroy() },
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
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{}, rdmatransport.Rand(random))
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

// source is a source of random numbers that can run dry.
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

// A responder sends no FPDU before a good one came (RFC 5044 §7.1.2), not even a Terminate.
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
	t.Run("it comes before the reply", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
			l, err := rdmacm.CreateSyncID(rdmacm.TCP, d.dev)
			must(t, err)
			defer l.Destroy()
			must(t, l.SetTransports(verbs.IWARP))
			must(t, l.Bind(netip.MustParseAddrPort(nodeAddr+nodePort)))
			must(t, l.Listen(4))
			p := rawDial(t, d.net)
			p.begin(false, false, true)
			h := rdmap.ReadRequestHeader{SourceSTag: d.mr.RKey(), SourceTO: d.mr.Addr(), Size: 64}
			p.write(append(encode(t, request()), p.fpdu(p.readRequest(h))...))
			r, err := l.GetRequest(t.Context())
			must(t, err)
			defer r.Destroy()
			// The application moves the QP itself, and is slow to accept.
			id := &dialledID{SyncID: r}
			must(t, id.createQP(d))
			defer id.qp.Destroy()
			for _, to := range []verbs.QPState{verbs.StateInit, verbs.StateRTS} {
				attr, mask, err := r.QPAttr(to)
				must(t, err)
				must(t, id.qp.Modify(&attr, mask))
			}
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

// Markers go where the peer asked for them, and nowhere else.
func TestMarkersAgreed(t *testing.T) {
	for _, ours := range []bool{false, true} {
		for _, theirs := range []bool{false, true} {
			for _, initiator := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					d := newNode(t, &network{}, nodeAddr, 1<<16, iwarp.Config{Markers: ours})
					d.recvs, d.recvLen = 1, 30_000
					s := d.connect(initiator, theirs, true)
					// The peer reads with markers exactly if it asked for them: see begin.
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

// connect is accept or dial, with what the peer asks for; the node may send.
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

// CRCs are used unless neither side wants them.
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
					s.p.in = mpa.NewReceiver(mpa.Config{}) // looks at no CRC: the test does
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

// Reserved bits are zero, but for the one that SoftRNICs agree by where links cut segments; what a peer puts there
// changes nothing, nor does an STag to invalidate where there is none.
func TestReservedBits(t *testing.T) {
	for _, offloaded := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{offloaded: offloaded}, nodeAddr, 1<<16, iwarp.Config{})
			p, wait := d.dialling()
			got := p.frame()
			want := map[bool]uint8{false: 0, true: 0x04}[offloaded]
			if got.Reserved != want {
				t.Errorf("offloaded %v: reserved bits %#x of the request", offloaded, got.Reserved)
			}
			// siw sends a request's own bits back: that is no agreement.
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
			d := newNode(t, &network{offloaded: offloaded}, nodeAddr, 1<<16, iwarp.Config{})
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
			if m := p.expect(rdmap.Send); offloaded != (len(m.payload) == 60_000) {
				t.Errorf("offloaded %v, agreed: segment of %d bytes", offloaded, len(m.ulpdu))
			}
		})
	}
	for _, bits := range []uint8{0x01, 0x02, 0x08, 0x0b} {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{offloaded: true}, nodeAddr, 1<<16, iwarp.Config{})
			f := request()
			f.Reserved = bits
			l, err := rdmacm.Listen(d.dev, nodePort, d.config())
			must(t, err)
			defer l.Close()
			s := &session{node: d, p: dialNode(t, d.net, f)}
			s.conn, err = l.Accept(t.Context())
			must(t, err)
			s.started()
			if got := s.p.frame(); got.Reserved != 0 {
				t.Errorf("reserved bits %#x of the reply to %#x", got.Reserved, bits)
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

// Revision 1 has neither depths nor ready-to-receive messages; it is spoken with those who do.
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

// Depths: each side's ORD is within the other's IRD, the application is told, and the QP has them.
func TestIRDORD(t *testing.T) {
	depths := func(t *testing.T, qp *verbs.QP, ird, ord uint8) {
		t.Helper()
		attr, _, err := qp.Query(0)
		must(t, err)
		if attr.MaxDestRDAtomic != ird || attr.MaxRDAtomic != ord {
			t.Errorf("QP has IRD %d and ORD %d; want %d and %d", attr.MaxDestRDAtomic, attr.MaxRDAtomic, ird, ord)
		}
	}
	t.Run("responder", func(t *testing.T) {
		for _, c := range []struct {
			theirIRD, theirORD   uint16
			resources, initiator uint8  // what the application accepts with
			ird, ord             uint16 // what the reply says
		}{
			{16, 16, rdmacm.MaxDepth, rdmacm.MaxDepth, 16, 16},
			{4, 9, rdmacm.MaxDepth, rdmacm.MaxDepth, 9, 4},
			{0, 0, rdmacm.MaxDepth, rdmacm.MaxDepth, 0, 0},
			{4, 9, 20, 3, 20, 3},
			{4, 9, 9, 64, 9, 4}, // more than the peer takes
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
					t.Errorf("the application is told %+v", peer)
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
			resources, initiator uint8 // asked for
			theirIRD, theirORD   uint16
			ird, ord             uint8
		}{
			{16, 16, 16, 16, 16, 16},
			{16, 16, 3, 16, 16, 3},
			{16, 16, 40, 4, 16, 16},
			{4, 4, 4, 100, 100, 4}, // the peer wants more than was offered, and it is there
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
					t.Errorf("the application is told %+v", got)
				}
			})
		}
	})
	t.Run("too much is asked", func(t *testing.T) {
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

// 0x3fff leaves a depth to the application.
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
					t.Errorf("asked %#x, %#x: answered %#x, %#x", ird, ord, got.IRD, got.ORD)
				}
				// The local IRD is as it was: 20 READs are taken.
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
				attr, _, err := s.qp.Query(0)
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

// The ready-to-receive message: each kind, asked for and answered (RFC 6581 §9.2).
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
			"any": {func(e *mpa.Enhanced) { e.RDMAWrite, e.RDMARead, e.ZeroLengthSend = true, true, true }, func(*testing.T, *peer, message) {}},
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
					// What the application posts comes after it.
					for i := range 4 {
						s.post(&verbs.SendWR{
							ID: uint64(i), Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{d.mr.SGE(0, 8)},
						})
					}
					p.begin(false, false, true)
					synctest.Wait()
					first := p.next()
					if first.op == rdmap.ReadRequest { // it is one of the two that the peer takes
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
				f.Enhanced.ORD = 0 // no READ is ever to be sent, but the ready-to-receive message
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
					t.Errorf("asked %+v, answered %+v", f.Enhanced, got)
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

// Client and server: no ready-to-receive message is spoken of, and what a peer says of one is not heeded.
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
