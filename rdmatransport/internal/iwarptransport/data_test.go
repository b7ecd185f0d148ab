package iwarptransport_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// bubble runs a test in virtual time with a node whose region has size bytes.
func bubble(t *testing.T, n *network, size int, f func(t *testing.T, d *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newNode(t, n, nodeAddr, size, iwarp.Config{})) })
}

// segments sends a message in segments of at most n bytes of payload.
func (p *peer) segments(op rdmap.Opcode, msg ddp.Untagged, stag uint32, to uint64, payload []byte, n int) {
	p.t.Helper()
	for off := 0; ; off += n {
		end := min(off+n, len(payload))
		last := end == len(payload)
		if op.Info().Tagged {
			p.send(taggedSegment(ddp.Tagged{Last: last, RsvdULP: op.Control(), STag: stag, TO: to + uint64(off)}, payload[off:end]))
		} else {
			msg.Last, msg.RsvdULP, msg.QN, msg.MO = last, op.Control(), op.Info().Queue, uint32(off)
			p.send(untaggedSegment(msg, payload[off:end]))
		}
		if last {
			return
		}
	}
}

// The node executes a peer's requests, and the application gets their completions.
func TestOperations(t *testing.T) {
	for _, size := range []int{1, 700, 1400, 5000, 100_000} {
		bubble(t, &network{}, 1<<18, func(t *testing.T, d *node) {
			s := d.dial(reply())
			p := s.p
			data := pattern(size, size)
			p.segments(rdmap.Write, ddp.Untagged{}, d.mr.RKey(), d.mr.Addr()+7, data, 700)
			if wcs := s.wcs(d.rcq); len(wcs) != 0 || !bytes.Equal(d.buf[7:7+size], data) {
				t.Errorf("WRITE: data right %v, completions %v", bytes.Equal(d.buf[7:7+size], data), wcs)
			}

			h := rdmap.ReadRequestHeader{SinkSTag: 0xabcdef01, SinkTO: 99, Size: uint32(size),
				SourceSTag: d.mr.RKey(), SourceTO: d.mr.Addr() + 7}
			p.send(p.readRequest(h))
			if !bytes.Equal(p.message(rdmap.ReadResponse), data) || len(s.wcs(d.rcq)) != 0 {
				t.Error("READ: data differ, or the application saw it")
			}

			for i, op := range []rdmap.Opcode{rdmap.Send, rdmap.SendSE, rdmap.SendInvalidate, rdmap.SendSEInvalidate} {
				clear(d.buf)
				extra := d.register(make([]byte, 8), allRights)
				must(t, s.qp.PostRecv(&verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{d.mr.SGE(5, size/2), d.mr.SGE(100_010, size)}}))
				must(t, d.rcq.ReqNotify(true))
				p.msn[rdmap.QueueSend]++
				msg := ddp.Untagged{MSN: p.msn[rdmap.QueueSend]}
				if op.Info().Invalidate {
					msg.Invalidate = extra.RKey()
				}
				p.segments(op, msg, 0, 0, data, 700)
				wcs := s.wcs(d.rcq)
				if len(wcs) != 1 || wcs[0].WRID != uint64(i) || wcs[0].Opcode != verbs.WCRecv || wcs[0].ByteLen != uint32(size) {
					t.Fatalf("%v of %d bytes: %+v", op, size, wcs)
				}
				got := append(bytes.Clone(d.buf[5:5+size/2]), d.buf[100_010:100_010+size-size/2]...)
				if !bytes.Equal(got, data) {
					t.Errorf("%v: data differ", op)
				}
				if invalidated := wcs[0].Flags&verbs.WCWithInv != 0; invalidated != op.Info().Invalidate {
					t.Errorf("%v: flags %v", op, wcs[0].Flags)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				cq, err := d.events.GetEvent(ctx)
				cancel()
				if (err == nil) != op.Info().Solicited {
					t.Errorf("%v: event %v", op, err)
				}
				if err == nil {
					must(t, cq.AckEvents(1))
				}
			}
		})
	}
	// The same between two nodes, in both directions at once.
	synctest.Test(t, func(t *testing.T) {
		n := &network{mss: 1000, buffer: 10_000}
		a, b := newNode(t, n, nodeAddr, 1<<20, iwarp.Config{Markers: true}), newNode(t, n, peerAddr, 1<<20, iwarp.Config{})
		a.recvs, a.recvLen, b.recvs, b.recvLen = 16, 4096, 16, 4096
		x, y := pair(a, b)
		x.exchange(y, 60_000)
	})
}

// exchange makes both ends send, write and read at the same time, and checks the results. A node's
// region has four parts of 256 KiB: its receives, the source of its SENDs and WRITEs and of the
// peer's READs, the peer's WRITEs, and its own READs.
func (s *session) exchange(o *session, size int) {
	t := s.t
	const source, written, read = 256 << 10, 512 << 10, 768 << 10
	ends := []*session{s, o}
	for i, e := range ends {
		copy(e.buf[source:], pattern(i, size))
	}
	for i, e := range ends {
		other := ends[1-i]
		remote := func(at int) uint64 { return other.mr.Addr() + uint64(at) }
		e.post(
			&verbs.SendWR{WRID: 0, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
				SGList:     []verbs.SGE{e.mr.SGE(source, size/2), e.mr.SGE(source+size/2, size-size/2)},
				RemoteAddr: remote(written), RKey: other.mr.RKey()},
			&verbs.SendWR{WRID: 1, Opcode: verbs.RDMARead, Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{e.mr.SGE(read, 1), e.mr.SGE(read+1, size-1)}, RemoteAddr: remote(source), RKey: other.mr.RKey()},
			&verbs.SendWR{WRID: 2, Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.mr.SGE(source, 3000)}},
			&verbs.SendWR{WRID: 3, Opcode: verbs.Send, Flags: verbs.SendSignaled | verbs.SendInline | verbs.SendSolicited,
				SGList: []verbs.SGE{e.mr.SGE(source, 200)}},
			&verbs.SendWR{WRID: 4, Opcode: verbs.RDMAWriteWithImm, Flags: verbs.SendSignaled,
				ImmData: 0x01020304, SGList: []verbs.SGE{e.mr.SGE(source, 10)}, RemoteAddr: remote(written), RKey: other.mr.RKey()},
		)
	}
	for i, e := range ends {
		ok := verbs.WCSuccess
		e.statuses(e.scq, ok, ok, ok, ok, ok)
		r := e.statuses(e.rcq, ok, ok, ok)
		if r[0].ByteLen != 3000 || r[1].ByteLen != 200 || r[2].ImmData != 0x01020304 || r[2].ByteLen != 10 {
			t.Errorf("received %+v", r)
		}
		want := pattern(1-i, size)
		for what, got := range map[string][]byte{
			"SEND": e.buf[:3000], "inline": e.buf[e.recvLen : e.recvLen+200], "WRITE": e.buf[written : written+size],
			"READ": e.buf[read : read+size],
		} {
			if !bytes.Equal(got, want[:len(got)]) {
				t.Errorf("%s: data differ", what)
			}
		}
	}
}

// mixed returns work requests of every kind, and the messages sent for them.
func mixed(d *node) (wrs []*verbs.SendWR, ops []rdmap.Opcode) {
	sge := func(off, n int) []verbs.SGE { return []verbs.SGE{d.mr.SGE(off, n)} }
	for i, c := range []struct {
		wr  verbs.SendWR
		ops []rdmap.Opcode
	}{
		{verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: sge(0, 100)}, []rdmap.Opcode{rdmap.Write}},
		{verbs.SendWR{Opcode: verbs.Send, SGList: sge(0, 10)}, []rdmap.Opcode{rdmap.Send}},
		{verbs.SendWR{Opcode: verbs.RDMARead, SGList: sge(0, 64)}, []rdmap.Opcode{rdmap.ReadRequest}},
		{verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSolicited, SGList: sge(0, 10)}, []rdmap.Opcode{rdmap.SendSE}},
		{verbs.SendWR{Opcode: verbs.AtomicFetchAndAdd, SGList: sge(64, 8), CompareAdd: 3}, []rdmap.Opcode{rdmap.AtomicRequest}},
		{verbs.SendWR{Opcode: verbs.RDMAWriteWithImm, SGList: sge(0, 10), ImmData: 5}, []rdmap.Opcode{rdmap.Write, rdmap.ImmediateData}},
		{verbs.SendWR{Opcode: verbs.RDMARead, SGList: sge(128, 64)}, []rdmap.Opcode{rdmap.ReadRequest}},
		{verbs.SendWR{Opcode: verbs.AtomicCmpAndSwp, SGList: sge(192, 8), CompareAdd: 1, Swap: 2}, []rdmap.Opcode{rdmap.AtomicRequest}},
		{verbs.SendWR{Opcode: verbs.RDMAWriteWithImm, Flags: verbs.SendSolicited, SGList: sge(0, 10), ImmData: 5},
			[]rdmap.Opcode{rdmap.Write, rdmap.ImmediateDataSE}},
		{verbs.SendWR{Opcode: verbs.SendWithInv, InvalidateRKey: 77}, []rdmap.Opcode{rdmap.SendInvalidate}},
		{verbs.SendWR{Opcode: verbs.SendWithInv, Flags: verbs.SendSolicited, InvalidateRKey: 77}, []rdmap.Opcode{rdmap.SendSEInvalidate}},
	} {
		c.wr.WRID = uint64(i)
		c.wr.Flags |= verbs.SendSignaled
		wrs = append(wrs, &c.wr)
		ops = append(ops, c.ops...)
	}
	return wrs, ops
}

// Messages are sent in the order of posting, and responses arrive in the order of the requests.
// Requests complete in the order of posting, none before its response.
func TestOrder(t *testing.T) {
	t.Run("requester", func(t *testing.T) {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			s := d.dial(reply())
			wrs, ops := mixed(d)
			s.post(wrs...)
			var reads []rdmap.ReadRequestHeader
			var atomics []rdmap.AtomicRequestHeader
			for _, op := range ops {
				m := s.p.expect(op)
				switch op {
				case rdmap.ReadRequest:
					h, err := rdmap.ParseReadRequest(m.payload)
					must(t, err)
					reads = append(reads, h)
				case rdmap.AtomicRequest:
					h, err := rdmap.ParseAtomicRequest(m.payload)
					must(t, err)
					atomics = append(atomics, h)
				}
			}
			completed := func(ids ...uint64) {
				t.Helper()
				var got []uint64
				for _, wc := range s.wcs(d.scq) {
					if wc.Status != verbs.WCSuccess {
						t.Errorf("%+v", wc)
					}
					got = append(got, wc.WRID)
				}
				if !slices.Equal(got, ids) {
					t.Fatalf("completed %v; want %v", got, ids)
				}
			}
			completed(0, 1) // requests after the READ wait for it
			s.p.send(responseSegment(reads[0].SinkSTag, reads[0].SinkTO, false, pattern(1, 32)))
			completed()
			s.p.send(responseSegment(reads[0].SinkSTag, reads[0].SinkTO+32, true, pattern(2, 32)))
			completed(2, 3)
			clearWord := bytes.Clone(d.buf[64:72])
			completed()
			if !bytes.Equal(clearWord, make([]byte, 8)) {
				t.Error("an atomic has a result before its response")
			}
			s.p.send(s.p.atomicResponse(rdmap.AtomicResponseHeader{ID: atomics[0].ID, Original: 41}))
			completed(4, 5)
			s.p.send(responseSegment(reads[1].SinkSTag, reads[1].SinkTO, true, pattern(3, 64)))
			completed(6)
			s.p.send(s.p.atomicResponse(rdmap.AtomicResponseHeader{ID: atomics[1].ID, Original: 42}))
			completed(7, 8, 9, 10)
			if got := binary.NativeEndian.Uint64(d.buf[64:]); got != 41 {
				t.Errorf("FetchAdd found %d", got)
			}
		})
	})
	t.Run("sends are delivered in order", func(t *testing.T) {
		bubble(t, &network{}, 1<<16, func(t *testing.T, d *node) {
			d.recvs, d.recvLen = 20, 2000
			s := d.dial(reply())
			want := []verbs.WCStatus{}
			for i := range 20 {
				s.p.msn[rdmap.QueueSend]++
				s.p.segments(rdmap.Send, ddp.Untagged{MSN: s.p.msn[rdmap.QueueSend]}, 0, 0, pattern(i, 100*i), 300)
				want = append(want, verbs.WCSuccess)
			}
			for i, wc := range s.statuses(d.rcq, want...) {
				if int(wc.ByteLen) != 100*i || !bytes.Equal(d.buf[i*2000:i*2000+100*i], pattern(i, 100*i)) {
					t.Errorf("send %d: %d bytes", i, wc.ByteLen)
				}
			}
			// Half a message is not delivered.
			s.recv(0, 0, 2000)
			s.p.msn[rdmap.QueueSend]++
			h := ddp.Untagged{RsvdULP: rdmap.Send.Control(), MSN: s.p.msn[rdmap.QueueSend]}
			s.p.send(untaggedSegment(h, pattern(1, 500)))
			s.statuses(d.rcq)
			h.MO, h.Last = 500, true
			s.p.send(untaggedSegment(h, nil))
			s.statuses(d.rcq, verbs.WCSuccess)
		})
	})
	t.Run("responder", func(t *testing.T) {
		// The stream has little room, so that responses queue up. A READ returns the memory as it
		// was before the atomic that follows it.
		bubble(t, &network{buffer: 4000}, 1<<16, func(t *testing.T, d *node) {
			s := d.dial(reply())
			p := s.p
			word := func(i int) uint64 { return d.mr.Addr() + uint64(8*i) }
			read := func(i, n int) {
				p.send(p.readRequest(rdmap.ReadRequestHeader{SinkSTag: uint32(i), Size: uint32(n),
					SourceSTag: d.mr.RKey(), SourceTO: word(0)}))
			}
			add := func(id int) {
				p.send(p.atomicRequest(rdmap.AtomicRequestHeader{
					Code: rdmap.FetchAdd, ID: uint32(id), STag: d.mr.RKey(), TO: word(2499), Data: 1, CompareMask: ^uint64(0),
				}))
			}
			for i := range 4 {
				read(2*i, 20_000)
				add(2*i + 1)
				synctest.Wait()
			}
			for i := range 4 {
				got := p.message(rdmap.ReadResponse)
				if n := binary.NativeEndian.Uint64(got[len(got)-8:]); n != uint64(i) {
					t.Errorf("READ %d found %d", i, n)
				}
				r, err := rdmap.ParseAtomicResponse(p.expect(rdmap.AtomicResponse).payload)
				must(t, err)
				if r.ID != uint32(2*i+1) || r.Original != uint64(i) {
					t.Errorf("atomic %d: %+v", i, r)
				}
			}
		})
	})
	t.Run("fence", func(t *testing.T) {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			s := d.dial(reply())
			s.post(
				&verbs.SendWR{WRID: 0, Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{d.mr.SGE(0, 8)}},
				&verbs.SendWR{WRID: 1, Opcode: verbs.Send, Flags: verbs.SendSignaled | verbs.SendFence},
			)
			h, err := rdmap.ParseReadRequest(s.p.expect(rdmap.ReadRequest).payload)
			must(t, err)
			s.p.silent()
			s.p.send(responseSegment(h.SinkSTag, h.SinkTO, true, make([]byte, 8)))
			s.p.expect(rdmap.Send)
			s.statuses(d.scq, verbs.WCSuccess, verbs.WCSuccess)
		})
	})
}

// Zero-length messages: their keys and addresses are not checked.
func TestZeroLength(t *testing.T) {
	bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
		d.recvs, d.recvLen = 2, 100
		s := d.dial(reply())
		p := s.p
		p.send(writeSegment(0xdeadbeef, ^uint64(0), nil))
		p.send(p.readRequest(rdmap.ReadRequestHeader{SinkSTag: 5, SinkTO: 6, SourceSTag: 0xdeadbeef, SourceTO: ^uint64(0)}))
		m := p.expect(rdmap.ReadResponse)
		if !m.tagged.Last || len(m.payload) != 0 || m.tagged.STag != 5 || m.tagged.TO != 6 {
			t.Errorf("%+v", m)
		}
		p.send(p.untagged(rdmap.Send, nil))
		p.send(p.untagged(rdmap.SendSE, nil))
		for _, wc := range s.statuses(d.rcq, verbs.WCSuccess, verbs.WCSuccess) {
			if wc.ByteLen != 0 {
				t.Errorf("%+v", wc)
			}
		}

		s.post(
			&verbs.SendWR{WRID: 0, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled},
			&verbs.SendWR{WRID: 1, Opcode: verbs.Send, Flags: verbs.SendSignaled},
			&verbs.SendWR{WRID: 2, Opcode: verbs.RDMARead, Flags: verbs.SendSignaled},
			&verbs.SendWR{WRID: 3, Opcode: verbs.RDMAWriteWithImm, Flags: verbs.SendSignaled},
		)
		for _, op := range []rdmap.Opcode{rdmap.Write, rdmap.Send, rdmap.ReadRequest, rdmap.Write, rdmap.ImmediateData} {
			if m := p.expect(op); !m.last() {
				t.Errorf("%+v", m)
			}
		}
		p.send(responseSegment(0xdeadbeef, 1234, true, nil)) // STag and TO are ignored
		ok := verbs.WCSuccess
		s.statuses(d.scq, ok, ok, ok, ok)
	})
}

// Every header field of every sent message.
func TestWireFormat(t *testing.T) {
	for _, mss := range []int{536, 1460, 8960} {
		for kind := range 4 {
			markers, offloaded := kind&1 != 0, kind&2 != 0
			bubble(t, &network{mss: mss, offloaded: offloaded}, 1<<18, func(t *testing.T, d *node) {
				const size = 100_000 // more than a piece of a stream that is offloaded
				f := reply()
				f.Markers = markers
				s := d.dial(f)
				p := s.p
				data := pattern(1, size)
				copy(d.buf, data)
				mulpdu := mpa.Config{Markers: markers}.MaxULPDU(mss)
				sge := []verbs.SGE{d.mr.SGE(0, 1), d.mr.SGE(1, 30_001), d.mr.SGE(30_002, len(data)-30_002)}
				const stag, to = 0x11223344, 0x8899aabbccddeeff

				tagged := func(op rdmap.Opcode, stag uint32, to uint64) {
					t.Helper()
					for off := 0; off < len(data); {
						m := p.expect(op)
						n := len(m.payload)
						want := ddp.Tagged{Last: off+n == len(data), RsvdULP: op.Control(), STag: stag, TO: to + uint64(off)}
						if !m.isTagged || m.tagged != want || !bytes.Equal(m.payload, data[off:off+n]) {
							t.Fatalf("%v at %d: %+v; want %+v", op, off, m.tagged, want)
						}
						if len(m.ulpdu) > mulpdu || !want.Last && len(m.ulpdu) != mulpdu {
							t.Fatalf("segment of %d bytes; MULPDU is %d", len(m.ulpdu), mulpdu)
						}
						off += n
					}
				}
				untagged := func(op rdmap.Opcode, qn, msn, invalidate uint32, data []byte) {
					t.Helper()
					for off := 0; ; {
						m := p.expect(op)
						n := len(m.payload)
						last := off+n == len(data)
						want := ddp.Untagged{Last: last, RsvdULP: op.Control(), Invalidate: invalidate, QN: qn, MSN: msn, MO: uint32(off)}
						if m.isTagged || m.untagged != want || !bytes.Equal(m.payload, data[off:off+n]) {
							t.Fatalf("%v at %d: %+v; want %+v", op, off, m.untagged, want)
						}
						if len(m.ulpdu) > mulpdu {
							t.Fatalf("segment of %d bytes; MULPDU is %d", len(m.ulpdu), mulpdu)
						}
						if off += n; last {
							return
						}
					}
				}

				s.post(&verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: sge, RKey: stag, RemoteAddr: to})
				tagged(rdmap.Write, stag, to)
				for msn := uint32(1); msn < 4; msn++ {
					s.post(&verbs.SendWR{Opcode: verbs.Send, SGList: sge})
					untagged(rdmap.Send, 0, msn, 0, data)
				}
				s.post(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSolicited, SGList: sge})
				untagged(rdmap.SendSE, 0, 4, 0, data)
				s.post(&verbs.SendWR{Opcode: verbs.SendWithInv, InvalidateRKey: 0xa1b2c3d4, SGList: sge})
				untagged(rdmap.SendInvalidate, 0, 5, 0xa1b2c3d4, data)
				s.post(&verbs.SendWR{Opcode: verbs.SendWithInv, Flags: verbs.SendSolicited, InvalidateRKey: 0xa1b2c3d4, SGList: sge})
				untagged(rdmap.SendSEInvalidate, 0, 6, 0xa1b2c3d4, data)
				s.post(&verbs.SendWR{Opcode: verbs.RDMAWriteWithImm, ImmData: 0x0a0b0c0d, SGList: sge, RKey: stag, RemoteAddr: to})
				tagged(rdmap.Write, stag, to)
				untagged(rdmap.ImmediateData, 0, 7, 0, []byte{0, 0, 0, 0, 10, 11, 12, 13})
				s.post(&verbs.SendWR{Opcode: verbs.RDMAWriteWithImm, Flags: verbs.SendSolicited,
					ImmData: 1, SGList: sge, RKey: stag, RemoteAddr: to})
				tagged(rdmap.Write, stag, to)
				untagged(rdmap.ImmediateDataSE, 0, 8, 0, []byte{0, 0, 0, 0, 0, 0, 0, 1})

				// A READ: one request, and a response with the addresses of the request.
				s.post(&verbs.SendWR{WRID: 9, Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, SGList: sge, RKey: stag, RemoteAddr: to})
				m := p.expect(rdmap.ReadRequest)
				h, err := rdmap.ParseReadRequest(m.payload)
				must(t, err)
				want := ddp.Untagged{Last: true, RsvdULP: rdmap.ReadRequest.Control(), QN: 1, MSN: 1}
				if m.untagged != want || h.Size != size || h.SourceSTag != stag || h.SourceTO != to {
					t.Errorf("%+v, %+v", m.untagged, h)
				}
				if h.SinkSTag == d.mr.RKey() || h.SinkSTag == d.mr.LKey() {
					t.Error("the sink's STag is a key of the region")
				}
				p.segments(rdmap.ReadResponse, ddp.Untagged{}, h.SinkSTag, h.SinkTO, pattern(2, size), 900)
				if wcs := s.wcs(d.scq); len(wcs) != 1 || wcs[0].WRID != 9 || !bytes.Equal(d.buf[:size], pattern(2, size)) {
					t.Errorf("READ: %+v", wcs)
				}
				data = pattern(2, size)
				p.send(p.readRequest(rdmap.ReadRequestHeader{
					SinkSTag: 0x01020304, SinkTO: 0xfffffffffffff000, Size: size, SourceSTag: d.mr.RKey(), SourceTO: d.mr.Addr(),
				}))
				tagged(rdmap.ReadResponse, 0x01020304, 0xfffffffffffff000)

				// Atomics share the queue of requests; responses have their own.
				s.post(
					&verbs.SendWR{Opcode: verbs.AtomicFetchAndAdd, SGList: []verbs.SGE{d.mr.SGE(0, 8)},
						CompareAdd: 5, RKey: stag, RemoteAddr: 64},
					&verbs.SendWR{Opcode: verbs.AtomicCmpAndSwp, SGList: []verbs.SGE{d.mr.SGE(0, 8)},
						CompareAdd: 5, Swap: 6, RKey: stag, RemoteAddr: 64},
				)
				ids := map[uint32]bool{}
				for i, want := range []rdmap.AtomicRequestHeader{
					{Code: rdmap.FetchAdd, STag: stag, TO: 64, Data: 5, CompareMask: ^uint64(0)},
					{Code: rdmap.CmpSwap, STag: stag, TO: 64, Data: 6, Mask: ^uint64(0), CompareData: 5, CompareMask: ^uint64(0)},
				} {
					m := p.expect(rdmap.AtomicRequest)
					h, err := rdmap.ParseAtomicRequest(m.payload)
					must(t, err)
					ids[h.ID] = true
					want.ID = h.ID
					if h != want || m.untagged != (ddp.Untagged{Last: true, RsvdULP: rdmap.AtomicRequest.Control(),
						QN: 1, MSN: uint32(2 + i)}) {
						t.Errorf("%+v, %+v", m.untagged, h)
					}
				}
				if len(ids) != 2 {
					t.Error("two atomics have one identifier")
				}
				p.send(p.atomicRequest(rdmap.AtomicRequestHeader{ID: 0xfeed, STag: d.mr.RKey(),
					TO: d.mr.Addr(), Data: 1, CompareMask: ^uint64(0)}))
				m = p.expect(rdmap.AtomicResponse)
				r, err := rdmap.ParseAtomicResponse(m.payload)
				must(t, err)
				if r.ID != 0xfeed || m.untagged != (ddp.Untagged{Last: true, RsvdULP: rdmap.AtomicResponse.Control(), QN: 3, MSN: 1}) {
					t.Errorf("%+v, %+v", m.untagged, r)
				}
			})
		}
	}
}

// A SEND or WRITE completes when the stream has accepted all of it, and not before.
func TestCompletion(t *testing.T) {
	for _, op := range []verbs.WROpcode{verbs.Send, verbs.RDMAWrite, verbs.RDMAWriteWithImm} {
		bubble(t, &network{buffer: 8000}, 1<<16, func(t *testing.T, d *node) {
			s := d.dial(reply())
			s.post(&verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{d.mr.SGE(0, 50_000)}})
			for n := 0; ; {
				m := s.p.next()
				n += len(m.payload)
				if wcs := s.wcs(d.scq); len(wcs) > 0 {
					if n < 50_000-2*8000 { // still in the stream
						t.Errorf("%v: complete after %d bytes were sent", op, n)
					}
					return
				}
			}
		})
	}
}

// Neither side has more READs and atomics outstanding than negotiated.
func TestReadDepth(t *testing.T) {
	t.Run("ours", func(t *testing.T) {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			f := reply()
			f.Enhanced.IRD = 3
			s := d.dial(f)
			var wrs []*verbs.SendWR
			for i := range 9 {
				wr := &verbs.SendWR{WRID: uint64(i), Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{d.mr.SGE(8*i, 8)}}
				if i%2 == 1 {
					wr.Opcode = verbs.AtomicFetchAndAdd
				}
				wrs = append(wrs, wr)
			}
			s.post(wrs...)
			var waiting []message
			for answered := 0; answered < 9; answered++ {
				for len(waiting) < min(3, 9-answered) {
					waiting = append(waiting, s.p.next())
				}
				s.p.silent()
				if m := waiting[0]; m.op == rdmap.ReadRequest {
					h, err := rdmap.ParseReadRequest(m.payload)
					must(t, err)
					s.p.send(responseSegment(h.SinkSTag, h.SinkTO, true, make([]byte, 8)))
				} else {
					h, err := rdmap.ParseAtomicRequest(m.payload)
					must(t, err)
					s.p.send(s.p.atomicResponse(rdmap.AtomicResponseHeader{ID: h.ID}))
				}
				waiting = waiting[1:]
				synctest.Wait()
			}
			s.statuses(d.scq, make([]verbs.WCStatus, 9)...)
		})
	})
	t.Run("our own, without negotiation", func(t *testing.T) {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			f := reply()
			f.Enhanced.IRD = 0
			s := d.dial(f)
			s.post(&verbs.SendWR{WRID: 0, Opcode: verbs.RDMARead, SGList: []verbs.SGE{d.mr.SGE(0, 8)}},
				&verbs.SendWR{WRID: 1, Opcode: verbs.Send})
			s.statuses(d.scq, verbs.WCLocQPOpErr, verbs.WCWRFlushErr)
			s.p.terminated(rdmap.LocalCatastrophic)
			s.over()
		})
	})
	t.Run("theirs", func(t *testing.T) {
		for _, more := range []int{0, 1} {
			bubble(t, &network{buffer: 4000}, 1<<16, func(t *testing.T, d *node) {
				other := d.dial(reply())
				f := request()
				f.Enhanced.ORD = 4
				s := d.accept(f)
				p := s.p
				for i := range 4 + more {
					if i%2 == 0 {
						p.send(p.readRequest(rdmap.ReadRequestHeader{SinkSTag: uint32(i), Size: 30_000,
							SourceSTag: d.mr.RKey(), SourceTO: d.mr.Addr()}))
					} else {
						p.send(p.atomicRequest(rdmap.AtomicRequestHeader{ID: uint32(i), STag: d.mr.RKey(), TO: d.mr.Addr()}))
					}
					synctest.Wait()
				}
				if more > 0 {
					// The Terminate waits for room after data that was already sent.
					var m message
					for m = p.next(); m.op == rdmap.ReadResponse; m = p.next() {
					}
					h, err := rdmap.ParseTerminate(m.payload)
					if cause, _ := rdmap.CauseOf(ddp.ErrNoBuffer); err != nil || h.Cause != cause || h.SegmentLen != 18+28 {
						t.Errorf("%+v, %v", h, err)
					}
					p.closed()
					s.over()
				} else {
					for i := range 2 {
						if n := len(p.message(rdmap.ReadResponse)); n != 30_000 {
							t.Errorf("READ %d has %d bytes", i, n)
						}
						p.expect(rdmap.AtomicResponse)
					}
				}
				// Another stream has its own queue.
				other.p.send(other.p.readRequest(rdmap.ReadRequestHeader{Size: 8, SourceSTag: d.mr.RKey(), SourceTO: d.mr.Addr()}))
				other.p.expect(rdmap.ReadResponse)
			})
		}
	})
}

// Immediate data takes a receive request, in order with SENDs. The completion has the length of the
// WRITE before it.
func TestImmediateData(t *testing.T) {
	bubble(t, &network{}, 1<<16, func(t *testing.T, d *node) {
		d.recvs, d.recvLen = 5, 100
		s := d.dial(reply())
		p := s.p
		imm := func(op rdmap.Opcode, v uint64) {
			b := make([]byte, 8)
			rdmap.PutImmediate(b, v)
			p.send(p.untagged(op, b))
		}
		p.send(p.untagged(rdmap.Send, []byte("one")))
		p.segments(rdmap.Write, ddp.Untagged{}, d.mr.RKey(), d.mr.Addr()+1000, pattern(1, 5000), 900)
		imm(rdmap.ImmediateData, 0x11111111)
		p.send(p.untagged(rdmap.Send, []byte("three")))
		imm(rdmap.ImmediateDataSE, 0x22222222)
		p.send(writeSegment(0, 0, nil))
		imm(rdmap.ImmediateData, 0x33333333)
		wcs := s.statuses(d.rcq, make([]verbs.WCStatus, 5)...)
		for i, want := range []verbs.WC{
			{Opcode: verbs.WCRecv, ByteLen: 3},
			{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, ImmData: 0x11111111, ByteLen: 5000},
			{Opcode: verbs.WCRecv, ByteLen: 5},
			{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, ImmData: 0x22222222},
			{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, ImmData: 0x33333333},
		} {
			want.WRID, want.QPNum = uint64(i), s.qp.Num()
			if wcs[i] != want {
				t.Errorf("%+v; want %+v", wcs[i], want)
			}
		}
		if !bytes.Equal(d.buf[100:200], make([]byte, 100)) {
			t.Error("immediate data went into the receive's memory")
		}
		// None is left.
		imm(rdmap.ImmediateData, 4)
		cause, _ := rdmap.CauseOf(ddp.ErrNoBuffer)
		p.terminated(cause)
		s.over()
	})
}

// A SEND with invalidate invalidates an STag. If it may not invalidate the STag, it ends the
// stream.
func TestInvalidate(t *testing.T) {
	refused := func(t *testing.T, s *session, stag uint32) {
		t.Helper()
		s.recv(0, 0, 64)
		s.p.send(s.p.invalidating(rdmap.SendInvalidate, stag, []byte("bye")))
		s.p.terminated(rdmap.CannotInvalidate)
		s.statuses(s.rcq, verbs.WCRemInvReqErr)
		s.over()
	}
	bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
		buf := make([]byte, 64)
		mr := d.register(buf, allRights)
		s := d.dial(reply())
		s.p.send(writeSegment(mr.RKey(), mr.Addr(), []byte("before")))
		s.recv(0, 0, 64)
		s.p.send(s.p.invalidating(rdmap.SendInvalidate, mr.RKey(), []byte("bye")))
		if wc := s.statuses(d.rcq, verbs.WCSuccess)[0]; wc.Flags&verbs.WCWithInv == 0 || wc.InvalidatedRKey != mr.RKey() {
			t.Errorf("%+v", wc)
		}
		// The region remains valid for local use.
		s.post(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{mr.SGE(0, 6)}})
		if m := s.p.expect(rdmap.Send); string(m.payload) != "before" {
			t.Errorf("%q", m.payload)
		}
		s.p.send(writeSegment(mr.RKey(), mr.Addr(), []byte("after!")))
		cause, _ := rdmap.CauseOf(ddp.ErrInvalidSTag)
		s.p.terminated(cause)
		if string(buf[:6]) != "before" {
			t.Errorf("%q", buf[:6])
		}
		s.over()
	})
	t.Run("deregistered", func(t *testing.T) {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			mr := d.register(make([]byte, 64), allRights)
			s := d.dial(reply())
			must(t, mr.Close())
			refused(t, s, mr.RKey())
		})
	})
	t.Run("twice", func(t *testing.T) {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			mr := d.register(make([]byte, 64), allRights)
			s := d.dial(reply())
			s.recv(0, 0, 64)
			s.p.send(s.p.invalidating(rdmap.SendSEInvalidate, mr.RKey(), nil))
			s.statuses(d.rcq, verbs.WCSuccess)
			refused(t, s, mr.RKey())
		})
	})
	t.Run("never existed", func(t *testing.T) {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) { refused(t, d.dial(reply()), 0x1234) })
	})
	t.Run("of another PD", func(t *testing.T) {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			pd, err := d.dev.AllocPD()
			must(t, err)
			mr, err := pd.RegMR(make([]byte, 64), allRights)
			must(t, err)
			refused(t, d.dial(reply()), mr.RKey())
			must(t, mr.Close())
			must(t, pd.Close())
		})
	})
	t.Run("shared with another stream", func(t *testing.T) {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			mr := d.register(make([]byte, 64), allRights)
			s, other := d.dial(reply()), d.dial(reply())
			refused(t, s, mr.RKey())
			// It is still valid, and only the other stream has it now.
			other.p.send(writeSegment(mr.RKey(), mr.Addr(), []byte("still here")))
			other.recv(0, 0, 64)
			other.p.send(other.p.invalidating(rdmap.SendInvalidate, mr.RKey(), nil))
			other.statuses(d.rcq, verbs.WCSuccess)
			if got := string(mr.Buf()[:10]); got != "still here" {
				t.Errorf("%q", got)
			}
		})
	})
}

// The segments of a WRITE and of a READ response do not alternate, because siw aborts such a
// stream. Neither waits for more than one message of the other. Segments of SENDs may come in
// between.
func TestTaggedMessagesDoNotMix(t *testing.T) {
	for name, write := range map[string]int{"one long WRITE": 100_000, "WRITEs of two segments": 2000, "short WRITEs": 10} {
		t.Run(name, func(t *testing.T) {
			bubble(t, &network{buffer: 4000}, 1<<17, func(t *testing.T, d *node) {
				s := d.dial(reply())
				const writes, reads = 30, 10
				for i := range writes {
					s.post(
						&verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: []verbs.SGE{d.mr.SGE(0, write)}, RKey: 1},
						&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{d.mr.SGE(0, 3000)}},
					)
					if i < reads {
						s.p.send(s.p.readRequest(rdmap.ReadRequestHeader{Size: 20_000, SourceSTag: d.mr.RKey(), SourceTO: d.mr.Addr()}))
					}
				}
				synctest.Wait()   // the requests are read, and wait for room like the WRITEs
				var under message // the current tagged message
				done := map[rdmap.Opcode]int{}
				for done[rdmap.Write] < writes || done[rdmap.ReadResponse] < reads {
					m := s.p.next()
					if !m.isTagged {
						continue
					}
					if under.isTagged && m.op != under.op {
						t.Fatalf("%v in the middle of %v", m.op, under.op)
					}
					if under = m; m.tagged.Last {
						under = message{}
						done[m.op]++
					}
					if a, b := done[rdmap.Write], done[rdmap.ReadResponse]; a > b+4 && b < reads {
						t.Fatalf("%d WRITEs went before %d responses", a, b)
					}
				}
			})
		})
	}
}

// A message whose memory is deregistered when half of it is sent fails at once, because the stream
// cannot continue after it.
func TestDeregisteredWhileSent(t *testing.T) {
	for _, op := range []verbs.WROpcode{verbs.Send, verbs.RDMAWrite} {
		bubble(t, &network{buffer: 3000}, 4096, func(t *testing.T, d *node) {
			mr := d.register(make([]byte, 50_000), allRights)
			s := d.dial(reply())
			s.post(
				&verbs.SendWR{WRID: 0, Opcode: verbs.RDMARead, SGList: []verbs.SGE{d.mr.SGE(0, 8)}},
				&verbs.SendWR{WRID: 1, Opcode: verbs.Send, Flags: verbs.SendSignaled},
				&verbs.SendWR{WRID: 2, Opcode: op, SGList: []verbs.SGE{mr.SGE(0, 50_000)}},
				&verbs.SendWR{WRID: 3, Opcode: verbs.Send},
			)
			synctest.Wait()
			must(t, mr.Close())
			for m := s.p.next(); m.op != rdmap.Terminate; m = s.p.next() {
			}
			s.p.closed()
			s.statuses(d.scq, verbs.WCWRFlushErr, verbs.WCSuccess, verbs.WCLocProtErr, verbs.WCWRFlushErr)
			s.over()
		})
	}
}

// MSN and MO: only the next segment of a queue is accepted.
func TestUnexpectedMSNAndMO(t *testing.T) {
	seg := func(last bool, msn, mo uint32, n int) []byte {
		return untaggedSegment(ddp.Untagged{Last: last, RsvdULP: rdmap.Send.Control(), MSN: msn, MO: mo}, pattern(int(mo), n))
	}
	for name, c := range map[string]struct {
		segments [][]byte
		want     *ddp.Error
	}{
		"MO goes back":            {[][]byte{seg(false, 1, 0, 100), seg(true, 1, 50, 100)}, ddp.ErrInvalidMO},
		"a hole":                  {[][]byte{seg(false, 1, 0, 100), seg(true, 1, 101, 100)}, ddp.ErrInvalidMO},
		"again":                   {[][]byte{seg(false, 1, 0, 100), seg(false, 1, 0, 100)}, ddp.ErrInvalidMO},
		"the next before its end": {[][]byte{seg(false, 1, 0, 100), seg(true, 2, 0, 100)}, ddp.ErrMSNRange},
		"a message twice":         {[][]byte{seg(true, 1, 0, 100), seg(true, 1, 0, 100)}, ddp.ErrMSNRange},
		"one left out":            {[][]byte{seg(true, 1, 0, 100), seg(true, 3, 0, 100)}, ddp.ErrMSNRange},
		"too long in the end":     {[][]byte{seg(false, 1, 0, 800), seg(true, 1, 800, 201)}, ddp.ErrTooLong},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
				d.recvs, d.recvLen = 3, 1000
				s := d.dial(reply())
				for _, b := range c.segments {
					s.p.send(b)
				}
				s.p.terminated(causeOf(c.want))
				s.over()
				if !bytes.Equal(d.buf[1000:], make([]byte, 3096)) {
					t.Error("data was written beyond the receive")
				}
			})
		})
	}
}

// An FPDU of length 0 is valid. One of the largest length is placed when it is complete.
func TestShortestAndLongestFPDU(t *testing.T) {
	bubble(t, &network{buffer: 200_000}, 1<<17, func(t *testing.T, d *node) {
		s := d.dial(reply())
		for range 100 {
			s.p.send(nil)
		}
		data := pattern(1, 65535-ddp.TaggedLen)
		s.p.send(writeSegment(d.mr.RKey(), d.mr.Addr(), data))
		s.p.send(nil)
		synctest.Wait()
		if !bytes.Equal(d.buf[:len(data)], data) {
			t.Error("data differ")
		}
		b := s.p.fpdu(writeSegment(d.mr.RKey(), d.mr.Addr()+80_000, data[:40_000]))
		binary.BigEndian.PutUint16(b, 65535)
		s.p.write(b)
		synctest.Wait()
		if !bytes.Equal(d.buf[80_000:120_000], make([]byte, 40_000)) {
			t.Error("half an FPDU is placed")
		}
		s.over()
		if n := d.counter("iwarp_streams_lost"); n != 1 {
			t.Errorf("%d streams counted as lost", n)
		}
	})
}
