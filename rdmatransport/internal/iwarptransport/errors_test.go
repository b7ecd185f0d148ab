package iwarptransport_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

func causeOf(err error) rdmap.Cause {
	c, _ := rdmap.CauseOf(err)
	return c
}

// An error in a peer's message ends the stream with the Terminate message of the RFCs, which quotes
// the segment. Nothing of the message is placed.
func TestRemoteErrors(t *testing.T) {
	const recvLen = 1000
	type env struct {
		*session
		readOnly, writeOnly, elsewhere *verbs.MR // elsewhere is of another PD
	}
	var (
		write = func(e *env, mr *verbs.MR, off, n int) []byte {
			return writeSegment(mr.RKey(), mr.Addr()+uint64(off), pattern(1, n))
		}
		read = func(e *env, mr *verbs.MR, off int, n uint32) []byte {
			return e.p.readRequest(rdmap.ReadRequestHeader{Size: n, SourceSTag: mr.RKey(), SourceTO: mr.Addr() + uint64(off)})
		}
		raw = func(h ddp.Untagged, op rdmap.Opcode, payload []byte) []byte {
			h.RsvdULP = op.Control()
			return untaggedSegment(h, payload)
		}
		edit = func(b []byte, f func([]byte)) []byte { f(b); return b }
	)
	readRequest := make([]byte, rdmap.ReadRequestLen)
	for name, c := range map[string]struct {
		ulpdu func(e *env) []byte
		want  rdmap.Cause
		recv  verbs.WCStatus // of the posted receive; 0 is flushed
	}{
		"tagged, DDP version": {func(e *env) []byte { return edit(write(e, e.mr, 0, 8), func(b []byte) { b[0] ^= 1 }) },
			causeOf(ddp.ErrTaggedVersion), 0},
		"untagged, DDP version": {func(e *env) []byte { return edit(e.p.untagged(rdmap.Send, nil), func(b []byte) { b[0] ^= 3 }) },
			causeOf(ddp.ErrUntaggedVersion), 0},
		"tagged, RDMAP version": {func(e *env) []byte { return edit(write(e, e.mr, 0, 8), func(b []byte) { b[1] ^= 0x40 }) },
			rdmap.InvalidVersion, 0},
		"untagged, RDMAP version": {func(e *env) []byte { return edit(e.p.untagged(rdmap.Send, nil), func(b []byte) { b[1] ^= 0xc0 }) },
			rdmap.InvalidVersion, 0},
		"tagged, unknown opcode": {func(e *env) []byte { return edit(write(e, e.mr, 0, 8), func(b []byte) { b[1] |= 0x0f }) },
			rdmap.UnexpectedOpcode, 0},
		"untagged, unknown opcode": {func(e *env) []byte { return edit(e.p.untagged(rdmap.Send, nil), func(b []byte) { b[1] |= 0x0c }) },
			rdmap.UnexpectedOpcode, 0},
		"tagged Send": {func(e *env) []byte {
			return edit(write(e, e.mr, 0, 8),
				func(b []byte) { b[1] = rdmap.Send.Control() })
		}, rdmap.UnexpectedOpcode, 0},
		"untagged Write": {func(e *env) []byte { return raw(ddp.Untagged{Last: true, MSN: 1}, rdmap.Write, nil) },
			rdmap.UnexpectedOpcode, 0},
		"Send on queue 1": {func(e *env) []byte { return raw(ddp.Untagged{Last: true, QN: 1, MSN: 1}, rdmap.Send, nil) },
			rdmap.UnexpectedOpcode, 0},
		"Read Request on queue 0": {func(e *env) []byte {
			return raw(ddp.Untagged{Last: true, MSN: 1},
				rdmap.ReadRequest, readRequest)
		}, rdmap.UnexpectedOpcode, 0},
		"Terminate on queue 0": {func(e *env) []byte {
			return raw(ddp.Untagged{Last: true, MSN: 1},
				rdmap.Terminate, make([]byte, 4))
		}, rdmap.UnexpectedOpcode, 0},

		"write, invalid STag": {func(e *env) []byte { return writeSegment(^e.mr.RKey(), e.mr.Addr(), []byte("x")) },
			causeOf(ddp.ErrInvalidSTag), 0},
		"write, the lkey as STag": {func(e *env) []byte { return writeSegment(e.mr.LKey(), e.mr.Addr(), []byte("x")) },
			causeOf(ddp.ErrInvalidSTag), 0},
		"write, another PD":      {func(e *env) []byte { return write(e, e.elsewhere, 0, 8) }, causeOf(ddp.ErrSTagNotAssociated), 0},
		"write, no access right": {func(e *env) []byte { return write(e, e.readOnly, 0, 8) }, causeOf(ddp.ErrInvalidSTag), 0},
		"write, a byte below":    {func(e *env) []byte { return write(e, e.mr, -1, 8) }, causeOf(ddp.ErrBounds), 0},
		"write, a byte beyond":   {func(e *env) []byte { return write(e, e.mr, len(e.buf)-7, 8) }, causeOf(ddp.ErrBounds), 0},
		"write, TO wraps": {func(e *env) []byte { return writeSegment(e.mr.RKey(), ^uint64(0)-3, pattern(1, 8)) },
			causeOf(ddp.ErrTOWrap), 0},
		"write, all of 64 bits": {func(e *env) []byte { return writeSegment(e.mr.RKey(), ^uint64(0), pattern(1, 8)) },
			causeOf(ddp.ErrTOWrap), 0},
		"read, invalid STag": {func(e *env) []byte { return e.p.readRequest(rdmap.ReadRequestHeader{Size: 1, SourceSTag: 3}) },
			rdmap.InvalidSTag, 0},
		"read, another PD":      {func(e *env) []byte { return read(e, e.elsewhere, 0, 8) }, rdmap.STagNotAssociated, 0},
		"read, no access right": {func(e *env) []byte { return read(e, e.writeOnly, 0, 8) }, rdmap.AccessViolation, 0},
		"read, a byte below":    {func(e *env) []byte { return read(e, e.mr, -1, 8) }, rdmap.BoundsViolation, 0},
		"read, a byte beyond":   {func(e *env) []byte { return read(e, e.mr, len(e.buf)-7, 8) }, rdmap.BoundsViolation, 0},
		"read, 4 GiB":           {func(e *env) []byte { return read(e, e.mr, 0, 1<<32-1) }, rdmap.BoundsViolation, 0},
		"read, TO wraps": {func(e *env) []byte {
			return e.p.readRequest(rdmap.ReadRequestHeader{Size: 1<<32 - 1, SourceSTag: e.mr.RKey(), SourceTO: ^uint64(0) - 99})
		}, rdmap.TOWrap, 0},
		"read, short": {func(e *env) []byte { return e.p.untagged(rdmap.ReadRequest, readRequest[:27]) },
			rdmap.StreamCatastrophic, 0},
		"read, long": {func(e *env) []byte { return e.p.untagged(rdmap.ReadRequest, append(readRequest, 0)) },
			rdmap.StreamCatastrophic, 0},
		"read, in two segments": {func(e *env) []byte { return raw(ddp.Untagged{QN: 1, MSN: 1}, rdmap.ReadRequest, readRequest[:8]) },
			rdmap.StreamCatastrophic, 0},
		"read, empty": {func(e *env) []byte { return e.p.untagged(rdmap.ReadRequest, nil) }, rdmap.StreamCatastrophic, 0},
		"atomic, unknown code": {func(e *env) []byte {
			return e.p.atomicRequest(rdmap.AtomicRequestHeader{Code: 1, STag: e.mr.RKey(), TO: e.mr.Addr()})
		}, rdmap.UnexpectedOpcode, 0},
		"atomic, invalid STag": {func(e *env) []byte { return e.p.atomicRequest(rdmap.AtomicRequestHeader{STag: 3, TO: e.mr.Addr()}) },
			rdmap.InvalidSTag, 0},
		"atomic, another PD": {func(e *env) []byte {
			return e.p.atomicRequest(rdmap.AtomicRequestHeader{STag: e.elsewhere.RKey(), TO: e.elsewhere.Addr()})
		}, rdmap.STagNotAssociated, 0},
		"atomic, no access right": {func(e *env) []byte {
			return e.p.atomicRequest(rdmap.AtomicRequestHeader{STag: e.writeOnly.RKey(), TO: e.writeOnly.Addr()})
		}, rdmap.AccessViolation, 0},
		"atomic, beyond": {func(e *env) []byte {
			return e.p.atomicRequest(rdmap.AtomicRequestHeader{STag: e.mr.RKey(), TO: e.mr.Addr() + uint64(len(e.buf))})
		}, rdmap.BoundsViolation, 0},
		"atomic, TO wraps": {func(e *env) []byte {
			return e.p.atomicRequest(rdmap.AtomicRequestHeader{STag: e.mr.RKey(), TO: ^uint64(0) - 3})
		}, rdmap.TOWrap, 0},
		"atomic, short": {func(e *env) []byte { return e.p.untagged(rdmap.AtomicRequest, make([]byte, 51)) },
			rdmap.StreamCatastrophic, 0},
		"immediate data, 7 bytes": {func(e *env) []byte { return e.p.untagged(rdmap.ImmediateData, make([]byte, 7)) },
			rdmap.StreamCatastrophic, 0},
		"immediate data, 9 bytes": {func(e *env) []byte { return e.p.untagged(rdmap.ImmediateDataSE, make([]byte, 9)) },
			rdmap.StreamCatastrophic, 0},
		"send, MSN 0": {func(e *env) []byte { return raw(ddp.Untagged{Last: true}, rdmap.Send, []byte("x")) },
			causeOf(ddp.ErrMSNRange), 0},
		"send, MSN 2 first": {func(e *env) []byte { return raw(ddp.Untagged{Last: true, MSN: 2}, rdmap.Send, []byte("x")) },
			causeOf(ddp.ErrMSNRange), 0},
		"send, MO not 0": {func(e *env) []byte { return raw(ddp.Untagged{Last: true, MSN: 1, MO: 4}, rdmap.Send, []byte("x")) },
			causeOf(ddp.ErrInvalidMO), 0},
		"send, MO close to 4 GiB": {func(e *env) []byte {
			return raw(ddp.Untagged{Last: true, MSN: 1, MO: 1<<32 - 1}, rdmap.Send, []byte("xx"))
		}, causeOf(ddp.ErrInvalidMO), 0},
		"send, too long by a byte": {func(e *env) []byte { return e.p.untagged(rdmap.Send, pattern(1, recvLen+1)) },
			causeOf(ddp.ErrTooLong), verbs.WCLocLenErr},
		"queue 4": {func(e *env) []byte { return raw(ddp.Untagged{Last: true, QN: 4, MSN: 1}, rdmap.Send, nil) },
			causeOf(ddp.ErrInvalidQN), 0},
		"queue 2^32-1": {func(e *env) []byte {
			return raw(ddp.Untagged{Last: true, QN: 1<<32 - 1, MSN: 1},
				rdmap.Send, nil)
		}, causeOf(ddp.ErrInvalidQN), 0},
		"read response, no read": {func(e *env) []byte { return responseSegment(e.mr.RKey(), e.mr.Addr(), true, []byte("x")) },
			causeOf(ddp.ErrInvalidSTag), 0},
		"atomic response, none": {func(e *env) []byte { return e.p.atomicResponse(rdmap.AtomicResponseHeader{ID: 0}) },
			rdmap.UnexpectedOpcode, 0},
		"one byte":           {func(e *env) []byte { return []byte{0xc1} }, causeOf(ddp.ErrShort), 0},
		"tagged, 13 bytes":   {func(e *env) []byte { return write(e, e.mr, 0, 0)[:13] }, causeOf(ddp.ErrShort), 0},
		"untagged, 17 bytes": {func(e *env) []byte { return e.p.untagged(rdmap.Send, nil)[:17] }, causeOf(ddp.ErrShort), 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
				pd, err := d.dev.AllocPD()
				must(t, err)
				far := make([]byte, 64)
				e := &env{
					readOnly:  d.register(make([]byte, 64), verbs.AccessRemoteRead),
					writeOnly: d.register(make([]byte, 64), verbs.AccessLocalWrite|verbs.AccessRemoteWrite),
				}
				e.elsewhere, err = pd.RegMR(far, allRights)
				must(t, err)
				defer func() {
					must(t, e.elsewhere.Close())
					must(t, pd.Close())
				}()
				d.recvs, d.recvLen = 1, recvLen
				e.session = d.dial(reply())
				ulpdu := c.ulpdu(e)
				e.p.send(ulpdu)
				h := e.p.terminated(c.want)

				if quoted := c.want.Type != 0; quoted != h.HasSegmentLen || quoted != (h.DDPHeader != nil) {
					t.Errorf("quotes: length %v, DDP header %v", h.HasSegmentLen, h.DDPHeader != nil)
				} else if quoted {
					if n := ddp.HeaderLen(ulpdu); int(h.SegmentLen) != len(ulpdu) || !bytes.Equal(h.DDPHeader, ulpdu[:n]) {
						t.Errorf("quotes %d bytes, % x", h.SegmentLen, h.DDPHeader)
					}
				}
				isRead := len(ulpdu) == 18+28 && ulpdu[1] == rdmap.ReadRequest.Control()
				if want := isRead && c.want.Layer == rdmap.LayerRDMA &&
					c.want.Type == rdmap.TypeRemoteProtection; want != (h.RDMAHeader != nil) {
					t.Errorf("quotes the Read Request: %v", !want)
				} else if want && !bytes.Equal(h.RDMAHeader, ulpdu[18:]) {
					t.Errorf("quotes % x", h.RDMAHeader)
				}
				recv := c.recv
				if recv == 0 {
					recv = verbs.WCWRFlushErr
				}
				e.statuses(d.rcq, recv)
				want := verbs.EventQPReqErr
				if c.want.Layer == rdmap.LayerDDP && c.want.Type == 1 ||
					c.want.Layer == rdmap.LayerRDMA && c.want.Type == rdmap.TypeRemoteProtection {
					want = verbs.EventQPAccessErr
				}
				e.event(c.recv == 0, want)
				e.over()
				for _, b := range [][]byte{d.buf, far, e.readOnly.Buf(), e.writeOnly.Buf()} {
					if !bytes.Equal(b, make([]byte, len(b))) {
						t.Error("memory is changed")
					}
				}
				if n := d.counter("iwarp_terminates_sent"); n != 1 {
					t.Errorf("%d Terminates counted", n)
				}
			})
		})
	}
	t.Run("the QP denies", func(t *testing.T) {
		for _, c := range []struct {
			access verbs.Access
			ulpdu  func(s *session) []byte
			want   rdmap.Cause
		}{
			{allRights &^ verbs.AccessRemoteWrite,
				func(s *session) []byte { return writeSegment(s.mr.RKey(), s.mr.Addr(), []byte("x")) }, causeOf(ddp.ErrInvalidSTag)},
			{allRights &^ verbs.AccessRemoteRead, func(s *session) []byte {
				return s.p.readRequest(rdmap.ReadRequestHeader{Size: 1, SourceSTag: s.mr.RKey(), SourceTO: s.mr.Addr()})
			}, rdmap.AccessViolation},
			{allRights &^ verbs.AccessRemoteAtomic, func(s *session) []byte {
				return s.p.atomicRequest(rdmap.AtomicRequestHeader{STag: s.mr.RKey(), TO: s.mr.Addr()})
			}, rdmap.AccessViolation},
		} {
			bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
				s := d.dial(reply())
				must(t, s.qp.Modify(&verbs.QPAttr{QPAccessFlags: c.access}, verbs.QPAttrAccessFlags))
				s.p.send(c.ulpdu(s))
				s.p.terminated(c.want)
				s.over()
			})
		}
	})
	t.Run("no receive is posted", func(t *testing.T) {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			s := d.dial(reply())
			s.p.send(s.p.untagged(rdmap.Send, nil))
			s.p.terminated(causeOf(ddp.ErrNoBuffer))
			s.over()
		})
	})
	// A READ in progress whose region is deregistered: the request is quoted with its progress.
	t.Run("deregistered during a read", func(t *testing.T) {
		bubble(t, &network{buffer: 5000}, 4096, func(t *testing.T, d *node) {
			mr := d.register(pattern(1, 50_000), allRights)
			s := d.dial(reply())
			s.p.send(s.p.readRequest(rdmap.ReadRequestHeader{SinkSTag: 5, SinkTO: 1000, Size: 50_000,
				SourceSTag: mr.RKey(), SourceTO: mr.Addr()}))
			synctest.Wait()
			must(t, mr.Close())
			n := 0
			for {
				m := s.p.next()
				if m.op == rdmap.Terminate {
					h, err := rdmap.ParseTerminate(m.payload)
					must(t, err)
					q, err := rdmap.ParseReadRequest(h.RDMAHeader)
					want := rdmap.ReadRequestHeader{
						SinkSTag: 5, SinkTO: 1000 + uint64(n), Size: uint32(50_000 - n), SourceSTag: mr.RKey(),
						SourceTO: mr.Addr() + uint64(n),
					}
					if err != nil || h.Cause != rdmap.InvalidSTag || q != want {
						t.Errorf("%v, %+v; want %+v", h.Cause, q, want)
					}
					break
				}
				n += len(m.payload)
			}
			s.p.closed()
			s.over()
		})
	})
}

// A response that is not the next one ends the stream, and its request with BAD_RESP_ERR.
func TestBadResponses(t *testing.T) {
	for name, c := range map[string]struct {
		op   verbs.WROpcode
		send func(s *session, m message)
		want rdmap.Cause
	}{
		"wrong STag": {verbs.RDMARead, func(s *session, m message) {
			s.p.send(responseSegment(s.mr.RKey(), s.mr.Addr(), true, make([]byte, 8)))
		}, causeOf(ddp.ErrInvalidSTag)},
		"wrong TO": {verbs.RDMARead, func(s *session, m message) { s.p.send(responseSegment(sinkOf(s, m), 1, true, make([]byte, 8))) },
			causeOf(ddp.ErrBounds)},
		"longer": {verbs.RDMARead, func(s *session, m message) { s.p.send(responseSegment(sinkOf(s, m), 0, true, make([]byte, 9))) },
			causeOf(ddp.ErrBounds)},
		"longer later": {verbs.RDMARead, func(s *session, m message) {
			s.p.segments(rdmap.ReadResponse, ddp.Untagged{}, sinkOf(s, m), 0, make([]byte, 12), 4)
		}, causeOf(ddp.ErrBounds)},
		"shorter": {verbs.RDMARead,
			func(s *session, m message) { s.p.send(responseSegment(sinkOf(s, m), 0, true, make([]byte, 7))) }, causeOf(ddp.ErrBounds)},
		"empty": {verbs.RDMARead, func(s *session, m message) { s.p.send(responseSegment(sinkOf(s, m), 0, true, nil)) },
			causeOf(ddp.ErrBounds)},
		"not the last": {verbs.RDMARead,
			func(s *session, m message) { s.p.send(responseSegment(sinkOf(s, m), 0, false, make([]byte, 8))) }, causeOf(ddp.ErrBounds)},
		"an atomic's": {verbs.RDMARead, func(s *session, m message) { s.p.send(s.p.atomicResponse(rdmap.AtomicResponseHeader{})) },
			rdmap.UnexpectedOpcode},
		"of another": {verbs.AtomicFetchAndAdd,
			func(s *session, m message) { s.p.send(s.p.atomicResponse(rdmap.AtomicResponseHeader{ID: ^uint32(0)})) },
			rdmap.UnexpectedOpcode},
		"a READ's": {verbs.AtomicFetchAndAdd,
			func(s *session, m message) { s.p.send(responseSegment(1, 0, true, make([]byte, 8))) }, causeOf(ddp.ErrInvalidSTag)},
		"a READ's, empty": {verbs.AtomicFetchAndAdd, func(s *session, m message) { s.p.send(responseSegment(1, 0, true, nil)) },
			causeOf(ddp.ErrInvalidSTag)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
				s := d.dial(reply())
				s.post(&verbs.SendWR{WRID: 0, Opcode: c.op, SGList: []verbs.SGE{d.mr.SGE(0, 8)}}, &verbs.SendWR{WRID: 1, Opcode: verbs.Send})
				m := s.p.next()
				s.p.expect(rdmap.Send)
				c.send(s, m)
				s.p.terminated(c.want)
				s.statuses(d.scq, verbs.WCBadRespErr, verbs.WCWRFlushErr)
				s.over()
			})
		})
	}
	// The sink's STag of one stream is not valid on another.
	bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
		s, other := d.dial(reply()), d.dial(reply())
		s.post(&verbs.SendWR{WRID: 0, Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{d.mr.SGE(0, 8)}})
		sink := sinkOf(s, s.p.next())
		other.p.send(writeSegment(sink, 0, []byte("12345678")))
		other.p.terminated(causeOf(ddp.ErrInvalidSTag))
		s.p.send(responseSegment(sink, 0, true, []byte("abcdefgh")))
		s.statuses(d.scq, verbs.WCSuccess)
		if string(d.buf[:8]) != "abcdefgh" {
			t.Errorf("%q", d.buf[:8])
		}
		other.over()
	})
}

func sinkOf(s *session, m message) uint32 {
	s.t.Helper()
	h, err := rdmap.ParseReadRequest(m.payload)
	must(s.t, err)
	return h.SinkSTag
}

// An error in local memory fails the request, and the peer gets a Terminate message.
func TestLocalErrors(t *testing.T) {
	for name, c := range map[string]struct {
		wr   func(d *node, readOnly *verbs.MR) *verbs.SendWR
		want verbs.WCStatus
		ask  bool // it fails when the answer has arrived
	}{
		"no such lkey": {func(d *node, _ *verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{{Addr: d.mr.Addr(), Length: 8, LKey: ^d.mr.LKey()}}}
		}, verbs.WCLocProtErr, false},
		"a byte beyond": {func(d *node, _ *verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: []verbs.SGE{d.mr.SGE(len(d.buf)-7, 8)}}
		}, verbs.WCLocProtErr, false},
		"read into read-only memory": {func(d *node, ro *verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.RDMARead, SGList: []verbs.SGE{ro.SGE(0, 8)}}
		}, verbs.WCLocProtErr, true},
		"atomic into read-only memory": {func(d *node, ro *verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.AtomicFetchAndAdd, SGList: []verbs.SGE{ro.SGE(0, 8)}}
		}, verbs.WCLocProtErr, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
				ro := d.register(make([]byte, 64), verbs.AccessRemoteRead)
				d.recvs, d.recvLen = 1, 64
				s := d.dial(reply())
				good := &verbs.SendWR{WRID: 0, Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{d.mr.SGE(0, 8)}}
				bad := c.wr(d, ro)
				bad.WRID = 1
				s.post(good, bad, &verbs.SendWR{WRID: 2, Opcode: verbs.Send})
				s.p.expect(rdmap.Send)
				if c.ask {
					m := s.p.next()
					s.p.expect(rdmap.Send)
					if m.op == rdmap.ReadRequest {
						s.p.send(responseSegment(sinkOf(s, m), 0, true, make([]byte, 8)))
					} else {
						h, err := rdmap.ParseAtomicRequest(m.payload)
						must(t, err)
						s.p.send(s.p.atomicResponse(rdmap.AtomicResponseHeader{ID: h.ID}))
					}
				}
				s.p.terminated(rdmap.LocalCatastrophic)
				s.statuses(d.scq, verbs.WCSuccess, c.want, verbs.WCWRFlushErr)
				s.statuses(d.rcq, verbs.WCWRFlushErr)
				s.over()
			})
		})
	}
	t.Run("receive", func(t *testing.T) {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			ro := d.register(make([]byte, 64), verbs.AccessRemoteRead)
			s := d.dial(reply())
			must(t, s.qp.PostRecv(&verbs.RecvWR{WRID: 0, SGList: []verbs.SGE{ro.SGE(0, 64)}}, &verbs.RecvWR{WRID: 1}))
			s.p.send(s.p.untagged(rdmap.Send, []byte("hello")))
			s.p.terminated(rdmap.LocalCatastrophic)
			s.statuses(d.rcq, verbs.WCLocProtErr, verbs.WCWRFlushErr)
			s.over()
		})
	})
	// It fails in order: earlier outstanding requests are answered first.
	t.Run("after a read", func(t *testing.T) {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			s := d.dial(reply())
			s.post(
				&verbs.SendWR{WRID: 0, Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{d.mr.SGE(0, 8)}},
				&verbs.SendWR{WRID: 1, Opcode: verbs.Send, SGList: []verbs.SGE{{Length: 8}}},
			)
			sink := sinkOf(s, s.p.expect(rdmap.ReadRequest))
			s.p.silent()
			// The peer's requests meanwhile are answered too.
			s.p.send(s.p.readRequest(rdmap.ReadRequestHeader{Size: 8, SourceSTag: d.mr.RKey(), SourceTO: d.mr.Addr()}))
			s.p.expect(rdmap.ReadResponse)
			s.p.send(responseSegment(sink, 0, true, make([]byte, 8)))
			s.p.terminated(rdmap.LocalCatastrophic)
			s.statuses(d.scq, verbs.WCSuccess, verbs.WCLocProtErr)
			s.over()
		})
	})
	// Responses are due as well. Whichever of the two fails first, nothing is sent after the end of
	// the stream.
	t.Run("with responses due", func(t *testing.T) {
		bubble(t, &network{buffer: 3000}, 1<<16, func(t *testing.T, d *node) {
			s := d.dial(reply())
			for range 3 {
				s.p.send(s.p.readRequest(rdmap.ReadRequestHeader{Size: 20_000, SourceSTag: d.mr.RKey(), SourceTO: d.mr.Addr()}))
			}
			synctest.Wait()
			s.post(&verbs.SendWR{WRID: 0, Opcode: verbs.Send, SGList: []verbs.SGE{{Length: 8}}})
			for m := s.p.next(); m.op != rdmap.Terminate; m = s.p.next() {
			}
			s.p.closed()
			s.statuses(d.scq, verbs.WCLocProtErr)
			s.over()
		})
	})
}

// The first of several errors is reported; later data is dropped.
func TestFirstErrorOnly(t *testing.T) {
	bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
		d.recvs, d.recvLen = 2, 64
		s := d.dial(reply())
		var b []byte
		for _, u := range [][]byte{
			s.p.untagged(rdmap.Send, []byte("good")),
			writeSegment(d.mr.RKey(), d.mr.Addr()+uint64(len(d.buf)), []byte("bad")),
			writeSegment(^d.mr.RKey(), 0, []byte("bad too")),
			s.p.untagged(rdmap.Send, []byte("good again")),
			writeSegment(d.mr.RKey(), d.mr.Addr()+1000, []byte("good again")),
		} {
			b = append(b, s.p.fpdu(u)...)
		}
		s.p.write(b)
		s.p.terminated(causeOf(ddp.ErrBounds))
		s.statuses(d.rcq, verbs.WCSuccess, verbs.WCWRFlushErr)
		s.p.write(s.p.fpdu(writeSegment(d.mr.RKey(), d.mr.Addr()+1000, []byte("later"))))
		synctest.Wait()
		if !bytes.Equal(d.buf[4:], make([]byte, len(d.buf)-4)) {
			t.Error("memory is changed after the error")
		}
		s.over()
	})
}

// A wrong CRC is detected before the FPDU is processed, and reported with MPA's code. The stream is
// closed after the Terminate message.
func TestWrongCRC(t *testing.T) {
	for _, markers := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{Markers: markers})
			d.recvs, d.recvLen = 1, 64
			s := d.dial(reply())
			b := s.p.fpdu(writeSegment(d.mr.RKey(), d.mr.Addr(), pattern(1, 700)))
			b[100] ^= 4
			s.p.write(b)
			if h := s.p.terminated(rdmap.Cause{Layer: 2, Type: 0, Code: 2}); h.HasSegmentLen || h.DDPHeader != nil {
				t.Errorf("quotes %+v", h)
			}
			s.statuses(d.rcq, verbs.WCWRFlushErr)
			if n := d.counter("iwarp_crc_errors"); n != 1 {
				t.Errorf("%d CRC errors counted", n)
			}
			s.event(true, verbs.EventQPFatal)
			s.over()
			if !bytes.Equal(d.buf, make([]byte, 4096)) {
				t.Error("memory is changed")
			}
		})
	}
	t.Run("marker", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{Markers: true, NoCRC: true})
			f := reply()
			f.CRC = false
			s := d.dial(f)
			b := s.p.fpdu(writeSegment(d.mr.RKey(), d.mr.Addr(), pattern(1, 700)))
			b[512+2] ^= 0x40
			s.p.write(b)
			s.p.terminated(rdmap.Cause{Layer: 2, Type: 0, Code: 3})
			s.event(true, verbs.EventQPFatal)
			s.over()
		})
	})
}

// The Terminate message is the last message that is sent, even if others are queued. It is sent
// even if the stream has no room at first.
func TestNothingAfterTerminate(t *testing.T) {
	// If responses are due, the Terminate message is coalesced with them. After a SEND alone, the
	// QP keeps it until there is room.
	for _, c := range []struct{ buffer, responses int }{{1 << 20, 4}, {3000, 4}, {1, 4}, {1, 0}} {
		bubble(t, &network{buffer: c.buffer}, 1<<17, func(t *testing.T, d *node) {
			s := d.dial(reply())
			for range c.responses {
				s.p.send(s.p.readRequest(rdmap.ReadRequestHeader{Size: 1 << 16, SourceSTag: d.mr.RKey(), SourceTO: d.mr.Addr()}))
			}
			s.post(&verbs.SendWR{WRID: 0, Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{d.mr.SGE(0, 1<<16)}})
			if c.responses > 0 {
				s.post(&verbs.SendWR{WRID: 1, Opcode: verbs.RDMARead, SGList: []verbs.SGE{d.mr.SGE(0, 8)}})
			}
			synctest.Wait()
			s.p.send(s.p.untagged(rdmap.Send, nil)) // no receive is posted
			synctest.Wait()
			if st := s.qp.State(); st != verbs.StateErr {
				t.Errorf("QP in %v", st)
			}
			_ = s.qp.PostSend(&verbs.SendWR{WRID: 9, Opcode: verbs.Send})
			for m := s.p.next(); m.op != rdmap.Terminate; m = s.p.next() {
			}
			if err := s.p.closed(); err != io.EOF {
				t.Errorf("after Terminate: %v", err)
			}
			s.over()
		})
	}
	// A peer that reads nothing does not block the end of the connection forever.
	bubble(t, &network{buffer: 3000}, 1<<17, func(t *testing.T, d *node) {
		s := d.dial(reply())
		s.post(&verbs.SendWR{WRID: 0, Opcode: verbs.Send, SGList: []verbs.SGE{d.mr.SGE(0, 1<<16)}})
		synctest.Wait()
		s.p.send(s.p.untagged(rdmap.Send, nil))
		start := time.Now()
		<-s.conn.Done()
		if waited := time.Since(start); waited > 10*time.Second {
			t.Errorf("waited %v", waited)
		}
	})
}

// event checks that the QP had the event, if it is due. Otherwise a completion reports the error,
// and there is no event.
func (s *session) event(due bool, want verbs.AsyncEventType) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	ev, err := s.dev.GetAsyncEvent(ctx)
	if due != (err == nil) || due && (ev.Type != want || ev.QP != s.qp) {
		s.t.Errorf("event %v of %v, %v; want %v: %t", ev.Type, ev.QP, err, want, due)
	}
}

// A peer's Terminate message ends the connection; the quoted request fails with the matching
// status.
func TestTerminateReceived(t *testing.T) {
	quote := func(c rdmap.Cause, m message) rdmap.TerminateHeader { return c.Quote(m.ulpdu) }
	flush := verbs.WCWRFlushErr
	for name, c := range map[string]struct {
		h    func(first, second message) rdmap.TerminateHeader
		want [3]verbs.WCStatus // READ, atomic, SEND
	}{
		"no reason": {
			func(a, b message) rdmap.TerminateHeader { return rdmap.TerminateHeader{Cause: rdmap.LocalCatastrophic} },
			[3]verbs.WCStatus{flush, flush, flush}},
		"the first is denied": {func(a, b message) rdmap.TerminateHeader { return quote(rdmap.InvalidSTag, a) },
			[3]verbs.WCStatus{verbs.WCRemAccessErr, flush, flush}},
		"the second is denied": {func(a, b message) rdmap.TerminateHeader { return quote(rdmap.AccessViolation, b) },
			[3]verbs.WCStatus{flush, verbs.WCRemAccessErr, flush}},
		"the second is invalid": {func(a, b message) rdmap.TerminateHeader { return quote(rdmap.StreamCatastrophic, b) },
			[3]verbs.WCStatus{flush, verbs.WCRemInvReqErr, flush}},
		"it has no receive request": {func(a, b message) rdmap.TerminateHeader { return quote(causeOf(ddp.ErrNoBuffer), b) },
			[3]verbs.WCStatus{flush, verbs.WCRemOpErr, flush}},
		"no quote": {
			func(a, b message) rdmap.TerminateHeader { return rdmap.TerminateHeader{Cause: rdmap.BoundsViolation} },
			[3]verbs.WCStatus{verbs.WCRemAccessErr, flush, flush}},
		"a send is blamed": {func(a, b message) rdmap.TerminateHeader {
			return rdmap.CannotInvalidate.Quote(untaggedSegment(ddp.Untagged{Last: true, MSN: 1}, nil))
		}, [3]verbs.WCStatus{flush, flush, flush}},
		"a request never sent": {func(a, b message) rdmap.TerminateHeader {
			return rdmap.InvalidSTag.Quote(untaggedSegment(ddp.Untagged{Last: true, QN: 1, MSN: 77}, nil))
		}, [3]verbs.WCStatus{flush, flush, flush}},
		"siw's quote, with the length as MSN": {func(a, b message) rdmap.TerminateHeader {
			h := quote(rdmap.AccessViolation, a)
			h.DDPHeader = bytes.Clone(h.DDPHeader)
			a.untagged.MSN = 8
			a.untagged.Encode(h.DDPHeader)
			return h
		}, [3]verbs.WCStatus{verbs.WCRemAccessErr, flush, flush}},
		"a WRITE is blamed": {func(a, b message) rdmap.TerminateHeader {
			return causeOf(ddp.ErrInvalidSTag).Quote(writeSegment(1, 0, nil))
		}, [3]verbs.WCStatus{flush, flush, flush}},
		"a segment, without a quote": {func(a, b message) rdmap.TerminateHeader {
			return rdmap.TerminateHeader{Cause: causeOf(ddp.ErrInvalidSTag)}
		}, [3]verbs.WCStatus{flush, flush, flush}},
		"MPA": {func(a, b message) rdmap.TerminateHeader { return rdmap.TerminateHeader{Cause: causeOf(mpa.ErrCRC)} },
			[3]verbs.WCStatus{flush, flush, flush}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
				d.recvs, d.recvLen = 1, 64
				s := d.dial(reply())
				s.post(
					&verbs.SendWR{WRID: 0, Opcode: verbs.RDMARead, SGList: []verbs.SGE{d.mr.SGE(0, 8)}},
					&verbs.SendWR{WRID: 1, Opcode: verbs.AtomicFetchAndAdd, SGList: []verbs.SGE{d.mr.SGE(8, 8)}},
					&verbs.SendWR{WRID: 2, Opcode: verbs.Send},
				)
				first, second := s.p.next(), s.p.next()
				s.p.expect(rdmap.Send)
				s.p.send(s.p.terminate(c.h(first, second)))
				s.statuses(d.scq, c.want[:]...)
				s.statuses(d.rcq, flush) // it takes no receive request
				if err := s.p.closed(); err != io.EOF {
					t.Errorf("stream: %v", err)
				}
				if n := d.counter("iwarp_terminates_received"); n != 1 {
					t.Errorf("%d Terminates counted", n)
				}
				s.event(c.want == [3]verbs.WCStatus{flush, flush, flush}, verbs.EventQPFatal)
				s.over()
			})
		})
	}
	// It may have any content.
	for n := range 60 {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			s := d.dial(reply())
			s.p.send(s.p.untagged(rdmap.Terminate, pattern(n, n)))
			synctest.Wait()
			s.over()
		})
	}
}

// The loss of a stream is reported; posted requests are flushed.
func TestStreamLost(t *testing.T) {
	for name, end := range map[string]func(p *peer){
		"reset":               func(p *peer) { p.s.(*stream).Abort() },
		"in the middle":       func(p *peer) { p.write(p.fpdu(p.untagged(rdmap.Send, []byte("half")))[:9]); p.s.Close() },
		"FIN, with reads due": func(p *peer) { p.s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
				d.recvs, d.recvLen = 1, 64
				s := d.dial(reply())
				s.post(&verbs.SendWR{WRID: 0, Opcode: verbs.RDMARead, SGList: []verbs.SGE{d.mr.SGE(0, 8)}},
					&verbs.SendWR{WRID: 1, Opcode: verbs.Send})
				s.p.expect(rdmap.ReadRequest)
				s.p.expect(rdmap.Send)
				end(s.p)
				s.statuses(d.scq, verbs.WCWRFlushErr, verbs.WCWRFlushErr)
				s.statuses(d.rcq, verbs.WCWRFlushErr)
				<-s.conn.Done()
				want := uint64(1)
				if name == "FIN, with reads due" {
					want = 0
				}
				if n := d.counter("iwarp_streams_lost"); n != want {
					t.Errorf("%d streams counted as lost", n)
				}
			})
		})
	}
	// Detected while sending.
	bubble(t, &network{buffer: 2000}, 1<<16, func(t *testing.T, d *node) {
		s := d.dial(reply())
		s.post(&verbs.SendWR{WRID: 0, Opcode: verbs.Send, SGList: []verbs.SGE{d.mr.SGE(0, 1<<16)}})
		synctest.Wait()
		s.p.s.(*stream).Abort()
		s.statuses(d.scq, verbs.WCWRFlushErr)
		<-s.conn.Done()
	})
	// The loss is detected only while coalesced FPDUs are sent, because nothing wakes the reader. They
	// are sent after the requests that may be sent now, or in between.
	for name, c := range map[string]struct {
		first verbs.WROpcode
		last  verbs.SendFlags
		n     int
	}{"behind": {verbs.RDMARead, verbs.SendFence, 2}, "in between": {verbs.RDMAWrite, 0, 100}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
				s := d.dial(reply())
				st := d.net.dials[0]
				st.mu.Lock()
				st.out.fin = true
				st.mu.Unlock()
				var wrs []*verbs.SendWR
				for i := range c.n {
					wrs = append(wrs, &verbs.SendWR{WRID: uint64(i), Opcode: c.first,
						SGList: []verbs.SGE{d.mr.SGE(0, 8)}, Flags: verbs.SendSignaled})
				}
				wrs[c.n-1].Flags |= c.last
				s.post(wrs...)
				if state := s.qp.State(); state != verbs.StateErr {
					t.Errorf("the QP is in %v at once", state)
				}
				want := verbs.WCSuccess // of coalesced WRITEs
				for i, wc := range s.wcs(d.scq) {
					if wc.Status != verbs.WCSuccess {
						want = verbs.WCWRFlushErr
					}
					if wc.WRID != uint64(i) || wc.Status != want {
						t.Errorf("completion %d is %v of request %d, want %v", i, wc.Status, wc.WRID, want)
					}
					c.n--
				}
				if c.n != 0 || want != verbs.WCWRFlushErr {
					t.Errorf("%d requests did not complete; the last one: %v", c.n, want)
				}
				<-s.conn.Done()
				if n := d.counter("iwarp_streams_lost"); n != 1 {
					t.Errorf("%d streams counted as lost", n)
				}
			})
		})
	}
	// Before the QP has it.
	bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
		id, p := d.dialID(t)
		p.frame()
		p.write(encode(t, reply()))
		must(t, id.connected())
		must(t, id.createQP(d))
		p.s.(*stream).Abort()
		attr, mask, err := id.QPAttr(verbs.StateInit)
		must(t, err)
		must(t, id.qp.Modify(&attr, mask))
		attr, mask, err = id.QPAttr(verbs.StateRTS)
		must(t, err)
		must(t, id.qp.PostRecv(&verbs.RecvWR{WRID: 0}))
		must(t, id.qp.Modify(&attr, mask))
		synctest.Wait()
		if st := id.qp.State(); st != verbs.StateErr {
			t.Errorf("QP in %v", st)
		}
		if wcs := drain(t, d.rcq); len(wcs) != 1 || wcs[0].Status != verbs.WCWRFlushErr {
			t.Errorf("%+v", wcs)
		}
		must(t, id.qp.Close())
	})
}

// createQP creates a QP that the application modifies itself.
func (x *dialledID) createQP(d *node) (err error) {
	x.qp, err = d.pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.RC, Transport: verbs.IWARP, SendCQ: d.scq, RecvCQ: d.rcq,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4},
	})
	return err
}

// Orderly close by either side: completed data arrives, both directions close, and nothing can be
// posted afterwards.
func TestCloseGraceful(t *testing.T) {
	t.Run("by the node", func(t *testing.T) {
		for _, how := range []string{"disconnect", "ERR", "destroy"} {
			t.Run(how, func(t *testing.T) {
				bubble(t, &network{}, 1<<17, func(t *testing.T, d *node) {
					d.recvs, d.recvLen = 1, 64
					s := d.dial(reply())
					s.post(&verbs.SendWR{WRID: 0, Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{d.mr.SGE(0, 100_000)}})
					s.statuses(d.scq, verbs.WCSuccess)
					switch how {
					case "disconnect":
						must(t, s.conn.ID().Disconnect())
					case "ERR":
						must(t, s.qp.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState))
					case "destroy":
						must(t, s.conn.ID().CloseQP())
					}
					if how != "destroy" {
						s.statuses(d.rcq, verbs.WCWRFlushErr)
						s.post(&verbs.SendWR{WRID: 0, Opcode: verbs.Send})
						s.statuses(d.scq, verbs.WCWRFlushErr)
					} else if err := s.qp.PostSend(&verbs.SendWR{}); !errors.Is(err, verbs.ErrClosed) {
						t.Errorf("post: %v", err)
					}
					if n := len(s.p.message(rdmap.Send)); n != 100_000 {
						t.Errorf("%d bytes", n)
					}
					if err := s.p.closed(); err != io.EOF {
						t.Errorf("stream: %v", err)
					}
					s.p.s.Close()
					<-s.conn.Done()
					if n := d.counter("iwarp_streams_lost"); n != 0 {
						t.Errorf("%d streams counted as lost", n)
					}
				})
			})
		}
	})
	t.Run("by the peer", func(t *testing.T) {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			d.recvs, d.recvLen = 2, 64
			s := d.dial(reply())
			s.p.send(s.p.untagged(rdmap.Send, []byte("last words")))
			must(t, s.p.s.(*stream).CloseWrite())
			s.statuses(d.rcq, verbs.WCSuccess, verbs.WCWRFlushErr)
			<-s.conn.Done()
			if err := s.p.closed(); err != io.EOF {
				t.Errorf("stream: %v", err)
			}
			if n := d.counter("iwarp_streams_lost"); n != 0 {
				t.Errorf("%d streams counted as lost", n)
			}
		})
	})
	t.Run("RESET aborts it", func(t *testing.T) {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			d.recvs, d.recvLen = 1, 64
			s := d.dial(reply())
			must(t, s.qp.Modify(&verbs.QPAttr{QPState: verbs.StateReset}, verbs.QPAttrState))
			s.statuses(d.rcq)
			if err := s.p.closed(); err == io.EOF {
				t.Error("the stream ends in order")
			}
			<-s.conn.Done()
		})
	})
	// A peer that does not close its half does not block the end of the connection forever.
	t.Run("one side only", func(t *testing.T) {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			s := d.dial(reply())
			start := time.Now()
			must(t, s.conn.ID().Disconnect())
			<-s.conn.Done()
			if waited := time.Since(start); waited < time.Second || waited > 10*time.Second {
				t.Errorf("waited %v", waited)
			}
		})
	})
}
