package iwarptransport_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// The TCP stream is cut in every way, and markers are at every position, in both directions. The
// results are always the same.
func TestCutAnywhere(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	cuts := map[string]func(int) int{
		"all there is":  nil,
		"one at a time": func(int) int { return 1 },
		"3":             func(int) int { return 3 },
		"511":           func(int) int { return 511 },
		"512":           func(int) int { return 512 },
		"any":           func(avail int) int { return 1 + random.IntN(avail) },
		"few or many":   func(avail int) int { return 1 + random.IntN(1+random.IntN(1+random.IntN(avail))) },
	}
	for name, cut := range cuts {
		for mss, offloaded := range map[int]bool{131: false, 1460: false, 8961: true} {
			for markers := range 4 {
				t.Run(fmt.Sprintf("%s, MSS %d, markers %d", name, mss, markers), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						n := &network{mss: mss, buffer: 20_000, offloaded: offloaded, cut: cut}
						a := newNode(t, n, nodeAddr, 1<<20, iwarp.Config{Markers: markers&1 != 0, LongFPDUs: true})
						b := newNode(t, n, peerAddr, 1<<20, iwarp.Config{Markers: markers&2 != 0, LongFPDUs: true})
						a.recvs, a.recvLen, b.recvs, b.recvLen = 3, 4096, 3, 4096
						x, y := pair(a, b)
						size := 40_000
						if name == "one at a time" || name == "3" {
							size = 4000
						}
						x.exchange(y, size)
					})
				})
			}
		}
	}
}

// A peer may use DDP segments of any length, and TCP may deliver FPDUs in pieces of any length.
func TestPeerSegmentsOfAnyLength(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 7))
		synctest.Test(t, func(t *testing.T) {
			d := newNode(t, &network{}, nodeAddr, 1<<17, iwarp.Config{Markers: seed%2 == 0})
			d.recvs, d.recvLen = 8, 4000
			s := d.dial(reply())
			whole := &collector{Conn: s.p.s}
			s.p.s = whole
			var want []verbs.WCStatus
			for i := range 8 {
				s.p.msn[rdmap.QueueSend]++
				s.p.segments(rdmap.Send, ddp.Untagged{MSN: s.p.msn[rdmap.QueueSend]}, 0, 0, pattern(i, 500*i), 1+random.IntN(1000))
				s.p.segments(rdmap.Write, ddp.Untagged{}, d.mr.RKey(), d.mr.Addr()+uint64(50_000+8000*i),
					pattern(100+i, 7000), 1+random.IntN(3000))
				want = append(want, verbs.WCSuccess)
			}
			s.p.s = whole.Conn
			for b := whole.b; len(b) > 0; {
				n := 1 + random.IntN(len(b))
				if random.IntN(2) == 0 {
					n = min(n, 1+random.IntN(700))
				}
				s.p.write(b[:n])
				synctest.Wait()
				b = b[n:]
			}
			s.statuses(d.rcq, want...)
			for i := range 8 {
				if !bytes.Equal(d.buf[4000*i:4000*i+500*i], pattern(i, 500*i)) ||
					!bytes.Equal(d.buf[50_000+8000*i:57_000+8000*i], pattern(100+i, 7000)) {
					t.Errorf("message %d: data differ", i)
				}
			}
		})
	}
}

// FuzzStream passes arbitrary bytes of a peer to a QP with posted work after MPA's startup, in any
// pieces. They are passed as they are, or framed as FPDUs with valid CRCs so that they reach the
// layers above.
func FuzzStream(f *testing.F) {
	w := writeSegment(fuzzKey, 0, []byte("some bytes of a write"))
	send := untaggedSegment(ddp.Untagged{Last: true, RsvdULP: rdmap.Send.Control(), MSN: 1}, []byte("and of a send"))
	invalidate := untaggedSegment(ddp.Untagged{Last: true, RsvdULP: rdmap.SendInvalidate.Control(), MSN: 1, Invalidate: fuzzKey}, nil)
	read := make([]byte, rdmap.ReadRequestLen)
	(&rdmap.ReadRequestHeader{SinkSTag: 1, Size: 700, SourceSTag: fuzzKey}).Encode(read)
	read = untaggedSegment(ddp.Untagged{Last: true, RsvdULP: rdmap.ReadRequest.Control(), QN: 1, MSN: 1}, read)
	atomic := make([]byte, rdmap.AtomicRequestLen)
	(&rdmap.AtomicRequestHeader{STag: fuzzKey, TO: 8, Data: 1}).Encode(atomic)
	atomic = untaggedSegment(ddp.Untagged{Last: true, RsvdULP: rdmap.AtomicRequest.Control(), QN: 1, MSN: 1}, atomic)
	response := responseSegment(fuzzKey, 0, true, make([]byte, 64))
	word := make([]byte, rdmap.AtomicResponseLen)
	word = untaggedSegment(ddp.Untagged{Last: true, RsvdULP: rdmap.AtomicResponse.Control(), QN: 3, MSN: 1}, word)
	terminate := untaggedSegment(ddp.Untagged{Last: true, RsvdULP: rdmap.Terminate.Control(), QN: 2, MSN: 1}, []byte{1, 0, 0, 0})
	imm := untaggedSegment(ddp.Untagged{Last: true, RsvdULP: rdmap.ImmediateData.Control(), MSN: 1}, make([]byte, 8))
	framed := func(us ...[]byte) (b []byte) {
		for _, u := range us {
			b = binary.BigEndian.AppendUint16(b, uint16(len(u)))
			b = append(b, u...)
		}
		return b
	}
	for _, flags := range []byte{0, 1, 2, 3, 4, 5, 6, 7} {
		f.Add(flags|8, uint8(7), framed(w, send, read, atomic, response))
		f.Add(flags|8, uint8(0), framed(nil, response, word, imm, invalidate, w, terminate))
		f.Add(flags|8, uint8(1), framed(word))
		f.Add(flags, uint8(3), []byte{0, 0, 0, 0, 0, 0, 0, 0})
		f.Add(flags, uint8(200), append([]byte{0xff, 0xff}, bytes.Repeat([]byte{0xc1}, 300)...))
		f.Add(flags, uint8(200), append([]byte{0, 13}, w...))
		f.Add(flags, uint8(9), append([]byte{0, 17}, send...))
	}
	f.Fuzz(func(t *testing.T, flags, cut uint8, data []byte) {
		synctest.Test(t, func(t *testing.T) {
			bounded(t, 8<<20+16*uint64(len(data)), func() { fuzzStream(t, flags, cut, data) })
		})
	})
}

// fuzzKey stands for a valid key in a fuzzer's ULPDUs.
const fuzzKey = 0x4b455921

// fuzzStream runs one input. Bit 0 of flags makes the node request markers, bit 1 disables CRCs,
// bit 2 makes the node accept. With bit 3, data is ULPDUs, each with its length in two bytes before
// it.
func fuzzStream(t *testing.T, flags, cut uint8, data []byte) {
	n := &network{buffer: 4000}
	if cut > 0 {
		n.cut = func(int) int { return int(cut) }
	}
	d := newNode(t, n, nodeAddr, 1024, iwarp.Config{Markers: flags&1 != 0, NoCRC: flags&2 != 0})
	d.recvs, d.recvLen = 4, 32
	hidden := d.register(bytes.Repeat([]byte{0x5a}, 64), 0) // no peer has access to it
	zero, err := d.pd.RegMREx(&verbs.MRInitAttr{Buf: d.buf, IOVA: new(uint64(0)), Access: allRights})
	must(t, err)
	d.regions = append(d.regions, zero)
	var s *session
	if flags&4 != 0 {
		f := request()
		f.CRC = flags&2 == 0
		s = d.accept(f)
	} else {
		f := reply()
		f.CRC = flags&2 == 0
		s = d.dial(f)
	}
	const posted = 6
	for i := range posted {
		wr := &verbs.SendWR{WRID: uint64(i), Flags: verbs.SendSignaled, SGList: []verbs.SGE{d.mr.SGE(64, 64)}}
		switch i {
		case 0, 4:
			wr.Opcode = verbs.RDMARead
		case 1:
			wr.Opcode, wr.SGList = verbs.AtomicFetchAndAdd, []verbs.SGE{d.mr.SGE(64, 8)}
		case 2:
			wr.Opcode, wr.SGList = verbs.RDMARead, nil
		default:
			wr.Opcode = verbs.Send
		}
		s.post(wr)
	}
	p := s.p
	must(t, p.s.SetWriteDeadline(timeIn(1)))
	put := func(b []byte) bool { _, err := p.s.Write(b); return err == nil }
	if flags&8 == 0 {
		put(data)
	} else {
		for len(data) >= 2 {
			n := int(binary.BigEndian.Uint16(data))
			data = data[2:]
			n = min(n, len(data), mpa.MaxMULPDU)
			u := bytes.Clone(data[:n])
			data = data[n:]
			for at := 2; at+4 <= len(u) && at < 48; at++ {
				if binary.BigEndian.Uint32(u[at:]) == fuzzKey {
					key := zero.RKey()
					if len(u) > 1 && u[1]&0x0f == uint8(rdmap.ReadResponse) && len(p.got) == 0 {
						key = fuzzSink(p)
					}
					binary.BigEndian.PutUint32(u[at:], key)
				}
			}
			if !put(p.fpdu(u)) {
				break
			}
		}
	}
	synctest.Wait()
	p.s.Close()
	<-s.conn.Done()
	synctest.Wait()
	// Everything has completed once and in order, at least flushed.
	for what, cq := range map[string]*verbs.CQ{"send": d.scq, "receive": d.rcq} {
		want := map[string]int{"send": posted, "receive": d.recvs}[what]
		wcs := drain(t, cq)
		failed := false
		for i, wc := range wcs {
			if wc.WRID != uint64(i) {
				t.Fatalf("%s completion %d is of request %d", what, i, wc.WRID)
			}
			if failed && wc.Status == verbs.WCSuccess {
				t.Fatalf("%s request %d succeeds after one that failed", what, i)
			}
			failed = failed || wc.Status != verbs.WCSuccess
		}
		if len(wcs) != want {
			t.Fatalf("%d %s completions of %d", len(wcs), what, want)
		}
	}
	for _, b := range hidden.Buf() {
		if b != 0x5a {
			t.Fatal("a region without remote rights is changed")
		}
	}
}

// fuzzSink returns the sink's STag of the first READ that the node has sent, if any.
func fuzzSink(p *peer) uint32 {
	for range 8 {
		if p.s.SetReadDeadline(timeIn(1)) != nil {
			break
		}
		u, err := p.try()
		if err != nil {
			break
		}
		if len(u) == 18+28 && u[1] == rdmap.ReadRequest.Control() {
			return binary.BigEndian.Uint32(u[18:])
		}
	}
	return 0
}
