package rocetransport_test

// READ responses and atomic results: their format, their order, and the answers to duplicates.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// responses is the answer to a READ of n bytes from PSN psn on.
func (r *rig) responses(psn, n, msn int) (want []string) {
	mtu := r.mtu()
	last := max(0, (n-1)/mtu)
	for i := 0; i <= last; i++ {
		size := min(n-i*mtu, mtu)
		switch {
		case last == 0:
			want = append(want, fmt.Sprintf("Only %d msn %d len %d", psn, msn, size))
		case i == 0:
			want = append(want, fmt.Sprintf("First %d msn %d len %d", psn, msn, size))
		case i == last:
			want = append(want, fmt.Sprintf("Last %d msn %d len %d", psn+i, msn, size))
		default:
			want = append(want, fmt.Sprintf("Middle %d len %d", psn+i, size))
		}
	}
	return want
}

func joined(pkts []wire.Packet) (b []byte) {
	for i := range pkts {
		b = append(b, pkts[i].Payload...)
	}
	return b
}

func TestReadResponses(t *testing.T) {
	for _, mtu := range []verbs.MTU{verbs.MTU256, verbs.MTU1024, verbs.MTU4096} {
		m := mtu.Bytes()
		for _, n := range []int{0, 1, 2, 3, 4, m - 1, m, m + 1, 2 * m, 3*m - 3, 3 * m} {
			run(t, fmt.Sprintf("%d of MTU %v", n, mtu), config{mtu: mtu}, func(t *testing.T, r *rig) {
				r.give(r.req(wire.RCReadRequest, 0, nil, r.at(100, uint32(n)), ackReq))
				sent := r.expect(r.responses(0, n, 1)...)
				if !bytes.Equal(joined(sent), r.buf[100:100+n]) {
					t.Error("the data are wrong")
				}
				// The PSN after the last response is next.
				r.give(r.req(wire.RCReadRequest, len(sent), nil, r.at(0, 1), ackReq))
				r.expect(r.responses(len(sent), 1, 2)...)
			})
		}
	}
}

// TestReadAgain: a duplicate READ reads again, in full or from the middle (C9-106, C9-107).
func TestReadAgain(t *testing.T) {
	const n = 3*1024 + 10
	for _, c := range []struct {
		name string
		psn  int
		opt  func(r *rig) option
		want []string
	}{
		{"whole", 0, func(r *rig) option { return r.at(0, n) },
			[]string{"First 0 msn 2 len 1024", "Middle 1 len 1024", "Middle 2 len 1024", "Last 3 msn 2 len 10"}},
		{"from the second packet", 1, func(r *rig) option { return r.at(1024, n-1024) },
			[]string{"Middle 1 len 1024", "Middle 2 len 1024", "Last 3 msn 2 len 10"}},
		{"the last packet", 3, func(r *rig) option { return r.at(3072, 10) }, []string{"Last 3 msn 2 len 10"}},
		{"the front", 0, func(r *rig) option { return r.at(0, 2048) }, []string{"First 0 msn 2 len 1024", "Last 1 msn 2 len 1024"}},
		{"the middle", 1, func(r *rig) option { return r.at(1024, 1024) }, []string{"Last 1 msn 2 len 1024"}},
		{"one byte more", 0, func(r *rig) option { return r.at(0, n+1) }, nil},
		{"one byte more from the middle", 1, func(r *rig) option { return r.at(1024, n-1023) }, nil},
		{"another address", 0, func(r *rig) option { return r.at(4, n-4) }, nil},
		{"an address that belongs to another PSN", 1, func(r *rig) option { return r.at(0, n-1024) }, nil},
		{"another rkey", 0, func(r *rig) option { return reth(r.mr.Addr(), r.mr.RKey()+1, n) }, nil},
		{"after its end", 4, func(r *rig) option { return r.at(4096, 8) }, nil},
		{"a PSN that was no READ's", 4, func(r *rig) option { return r.at(0, 8) }, nil},
		{"a PSN of before the connection", -1, func(r *rig) option { return r.at(0, 8) }, nil},
	} {
		run(t, c.name, config{}, func(t *testing.T, r *rig) {
			r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, n)), r.req(wire.RCWriteOnly, 4, fill(4, 1), r.at(20000, 4)))
			r.take()
			r.buf[2000]++ // it is read, not replayed
			r.give(r.req(wire.RCReadRequest, c.psn, nil, c.opt(r)))
			sent := r.expect(c.want...)
			if len(sent) > 0 {
				off := (c.psn) * 1024
				if got := joined(sent); !bytes.Equal(got, r.buf[off:off+len(got)]) {
					t.Error("the data are wrong")
				}
			}
			r.state(verbs.StateRTS)
			r.give(r.req(wire.RCWriteOnly, 5, fill(4, 1), r.at(20000, 4), ackReq))
			r.expect("ack 5 msn 3")
		})
	}
	run(t, "a region without the right any more", config{}, func(t *testing.T, r *rig) {
		mr := must(r.pd.RegMR(r.buf, allAccess))
		p := r.req(wire.RCReadRequest, 0, nil, reth(mr.Addr(), mr.RKey(), n))
		r.give(p)
		r.take()
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
		r.give(p)
		r.expect("nak62 0 msn 1")
	})
}

// TestHistory: exactly max_dest_rd_atomic READs and atomics are kept for duplicates, and older ones
// are not answered.
func TestHistory(t *testing.T) {
	bubble(t, config{destRD: 3}, func(r *rig) {
		reads := make([]wire.Packet, 5)
		for i := range reads {
			reads[i] = r.req(wire.RCReadRequest, i, nil, r.at(8*i, 8))
			r.give(reads[i])
		}
		r.take()
		r.give(reads...)
		r.expect("Only 2 msn 5 len 8", "Only 3 msn 5 len 8", "Only 4 msn 5 len 8")
	})
}

// TestHistoryAfterSQD: the same after max_dest_rd_atomic was changed in SQD.
func TestHistoryAfterSQD(t *testing.T) {
	for _, c := range []struct {
		depths []uint8 // in turn
		before int     // atomics executed with the first depth
	}{
		{[]uint8{4, 5}, 6}, {[]uint8{4, 128}, 6}, {[]uint8{4, 7}, 2}, {[]uint8{1, 2}, 1}, {[]uint8{4, 4}, 6},
		{[]uint8{4, 2}, 3}, {[]uint8{4, 2, 5}, 6}, {[]uint8{2, 5, 7}, 3},
	} {
		run(t, fmt.Sprint(c.depths, c.before), config{destRD: c.depths[0]}, func(t *testing.T, r *rig) {
			binary.NativeEndian.PutUint64(r.buf, 0)
			done, kept := 0, min(c.before, int(c.depths[0]))
			add := func(psn int) wire.Packet { return r.req(wire.RCFetchAdd, psn, nil, r.atomic(0, 0, 1)) }
			for range c.before {
				r.give(add(done))
				done++
			}
			r.take()
			for _, depth := range c.depths[1:] {
				r.modify(verbs.StateSQD)
				attr := &verbs.QPAttr{QPState: verbs.StateSQD, MaxDestRDAtomic: depth}
				if err := r.qp.Modify(attr, verbs.QPAttrState|verbs.QPAttrMaxDestRDAtomic); err != nil {
					t.Fatal(err)
				}
				r.modify(verbs.StateRTS)
				for range 2*int(depth) + 1 {
					r.give(add(done))
					done++
					r.take()
					kept = min(kept+1, int(depth))
					for psn := done - kept; psn < done; psn++ {
						r.give(add(psn))
						r.expect(fmt.Sprintf("ATOMIC Acknowledge %d msn %d orig %d", psn, done, psn))
					}
				}
			}
			if n := binary.NativeEndian.Uint64(r.buf); n != uint64(done) {
				t.Errorf("%d atomics were executed %d times", done, n)
			}
		})
	}
}

// TestTooManyReads: more than max_dest_rd_atomic at once are an invalid request, but not if they
// follow responses or are duplicates.
func TestTooManyReads(t *testing.T) {
	read := func(r *rig, psn int) wire.Packet { return r.req(wire.RCReadRequest, psn, nil, r.at(0, 8)) }
	bubble(t, config{destRD: 2}, func(r *rig) {
		r.giveFrame(read(r, 0), read(r, 1), read(r, 2))
		r.expect("Only 0 msn 1 len 8", "Only 1 msn 2 len 8", "nak61 2 msn 2")
		r.state(verbs.StateErr)
	})
	bubble(t, config{destRD: 2}, func(r *rig) {
		for i := range 10 {
			r.giveFrame(read(r, 2*i), read(r, 2*i+1))
		}
		if n := len(r.take()); n != 20 {
			t.Errorf("%d responses", n)
		}
		r.state(verbs.StateRTS)
	})
	bubble(t, config{destRD: 2}, func(r *rig) {
		r.give(read(r, 0), read(r, 1))
		r.take()
		// Both again, from a requester with a short timer that then receives the first answers.
		r.giveFrame(read(r, 0), read(r, 1), read(r, 2), read(r, 3))
		r.expect("Only 0 msn 2 len 8", "Only 1 msn 2 len 8", "Only 2 msn 3 len 8", "Only 3 msn 4 len 8")
	})
}

func TestAtomics(t *testing.T) {
	bubble(t, config{destRD: 2}, func(r *rig) {
		binary.NativeEndian.PutUint64(r.buf[64:], 10)
		word := func() uint64 { return binary.NativeEndian.Uint64(r.buf[64:]) }
		step := func(p wire.Packet, want string, value uint64) {
			t.Helper()
			r.give(p)
			r.expect(want)
			if word() != value {
				t.Errorf("the word is %d, want %d", word(), value)
			}
		}
		add := r.req(wire.RCFetchAdd, 0, nil, r.atomic(64, 99, 5), ackReq)
		step(add, "ATOMIC Acknowledge 0 msn 1 orig 10", 15)
		swap := r.req(wire.RCCmpSwap, 1, nil, r.atomic(64, 15, 100))
		step(swap, "ATOMIC Acknowledge 1 msn 2 orig 15", 100)
		// Duplicates: the earlier results, without execution.
		step(add, "ATOMIC Acknowledge 0 msn 2 orig 10", 100)
		step(swap, "ATOMIC Acknowledge 1 msn 2 orig 15", 100)
		binary.NativeEndian.PutUint64(r.buf[64:], 15)
		step(swap, "ATOMIC Acknowledge 1 msn 2 orig 15", 15)
		step(r.req(wire.RCCmpSwap, 2, nil, r.atomic(64, 16, 100)), "ATOMIC Acknowledge 2 msn 3 orig 15", 15)
		step(r.req(wire.RCFetchAdd, 3, nil, r.atomic(64, 0, 1<<64-16)), "ATOMIC Acknowledge 3 msn 4 orig 15", 1<<64-1)
		// The first is forgotten by now.
		r.give(add)
		r.expect()
		// A READ with an atomic's PSN, and vice versa.
		r.give(r.req(wire.RCReadRequest, 3, nil, r.at(64, 8)))
		r.expect()
		r.give(r.req(wire.RCReadRequest, 4, nil, r.at(64, 8)), r.req(wire.RCFetchAdd, 4, nil, r.atomic(64, 0, 1)))
		r.expect("Only 4 msn 5 len 8")
		if word() != 1<<64-1 {
			t.Errorf("the word is %#x", word())
		}
	})
}

// TestResponsesComeInOrder: responses to READs and atomics by PSN, and then the acknowledgement of
// later requests.
func TestResponsesComeInOrder(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		r.recv(1, 0, 64)
		binary.NativeEndian.PutUint64(r.buf[800:], 1)
		r.giveFrame(
			r.req(wire.RCFetchAdd, 0, nil, r.atomic(800, 0, 1)),
			r.req(wire.RCFetchAdd, 1, nil, r.atomic(800, 0, 1)),
			r.req(wire.RCReadRequest, 2, nil, r.at(0, 1500)),
		)
		r.expect("ATOMIC Acknowledge 0 msn 1 orig 1", "ATOMIC Acknowledge 1 msn 2 orig 2",
			"First 2 msn 3 len 1024", "Last 3 msn 3 len 476")
		r.giveFrame(
			r.req(wire.RCReadRequest, 4, nil, r.at(0, 1500)),
			r.req(wire.RCSendOnly, 6, fill(8, 1), ackReq),
		)
		r.expect("First 4 msn 4 len 1024", "Last 5 msn 4 len 476", "ack 6 msn 5")
		// The same for a NAK and for packets out of sequence.
		r.giveFrame(
			r.req(wire.RCReadRequest, 7, nil, r.at(0, 8)),
			r.req(wire.RCSendOnly, 9, fill(8, 1), ackReq),
		)
		r.expect("Only 7 msn 6 len 8", "nak60 8 msn 6")
		r.giveFrame(
			r.req(wire.RCReadRequest, 8, nil, r.at(0, 8)),
			r.req(wire.RCSendOnly, 9, fill(8, 1), ackReq),
		)
		r.expect("Only 8 msn 7 len 8", "rnr12 9 msn 7")
		r.giveFrame(
			r.req(wire.RCReadRequest, 9, nil, r.at(0, 8)),
			r.req(wire.RCReadRequest, 10, nil, reth(0, 0, 8)),
		)
		r.expect("Only 9 msn 8 len 8", "nak62 10 msn 8")
		r.state(verbs.StateErr)
	})
}

// TestLongRead: its responses are sent in bursts, in order and complete. A later SEND is
// acknowledged after it, and requests posted meanwhile are sent in between.
func TestLongRead(t *testing.T) {
	const n = 2<<20 - 7
	bubble(t, config{size: 2 << 20, rqPSN: 1<<24 - 600}, func(r *rig) {
		r.recv(1, 0, 64)
		r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, n)))
		all := r.take()
		if len(all) == 0 || len(all) == 2048 {
			t.Fatalf("%d responses at once", len(all))
		}
		r.give(r.req(wire.RCSendOnly, 2048, fill(8, 1), ackReq))
		r.expect()
		r.completions(r.rcq, "1 SUCCESS RECV 8")
		r.post(r.wr(5, verbs.Send, 8))
		r.expect("SEND Only 0 len 8 ackreq")
		r.give(r.ack(0))
		r.completions(r.scq, "5 SUCCESS SEND 0")
		for range 10 {
			sleep(1e6)
			all = append(all, r.take()...)
		}
		want := append(r.responses(0, n, 1), "ack 2048 msn 2")
		for i := range all {
			if got := r.brief(&all[i]); i >= len(want) || got != want[i] {
				t.Fatalf("packet %d is %s", i, got)
			}
		}
		if len(all) != len(want) {
			t.Fatalf("%d packets, want %d", len(all), len(want))
		}
		if got := joined(all); !bytes.Equal(got[8:], r.buf[8:n]) {
			t.Error("the data are wrong")
		}
	})
	// Requested again while it is being answered, from the requester's position.
	bubble(t, config{size: 2 << 20}, func(r *rig) {
		r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, n)))
		r.take()
		r.give(r.req(wire.RCReadRequest, 50, nil, r.at(50<<10, n-50<<10)))
		sleep(1e9)
		sent := r.take()
		if len(sent) != 2048-50 || r.brief(&sent[0]) != "Middle 50 len 1024" {
			t.Fatalf("%d responses, the first %s", len(sent), r.brief(&sent[0]))
		}
		if !bytes.Equal(joined(sent), r.buf[50<<10:n]) {
			t.Error("the data are wrong")
		}
	})
	// A request refused meanwhile is refused after the last response, and later ones are ignored.
	bubble(t, config{size: 2 << 20}, func(r *rig) {
		r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, n)), r.req(wire.RCWriteOnly, 2048, fill(8, 1), reth(0, 0, 8)),
			r.req(wire.RCWriteOnly, 2048, fill(8, 1), r.at(0, 8)), r.req(wire.RCWriteOnly, 0, fill(8, 1), r.at(0, 8)))
		r.state(verbs.StateRTS)
		sleep(1e9)
		r.state(verbs.StateErr)
		if sent := r.take(); len(sent) != 2049 || r.brief(&sent[2048]) != "nak62 2048 msn 1" {
			t.Errorf("%d packets", len(sent))
		}
	})
	// The QP goes to ERR, or is closed, between two bursts.
	for _, how := range []string{"ERR", "RESET", "closed"} {
		run(t, how, config{size: 2 << 20}, func(t *testing.T, r *rig) {
			r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, n)))
			r.take()
			switch how {
			case "ERR":
				r.modify(verbs.StateErr)
			case "RESET":
				r.modify(verbs.StateReset)
			default:
				if err := r.qp.Close(); err != nil {
					t.Fatal(err)
				}
			}
			sleep(1e9)
			r.expect()
		})
	}
}

// TestDuplicatesDoNotPileUp: a peer that repeats requests during a burst gets each response once.
func TestDuplicatesDoNotPileUp(t *testing.T) {
	bubble(t, config{size: 2 << 20, destRD: 4}, func(r *rig) {
		r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, 2<<20)))
		r.take()
		for range 50 {
			for psn := 1000; psn < 2048; psn += 100 {
				r.give(r.req(wire.RCReadRequest, psn, nil, r.at(psn<<10, 1024)))
			}
			r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, 2<<20)))
		}
		r.take()
		sleep(1e9)
		if n := len(r.take()); n > 2048 {
			t.Errorf("%d responses", n)
		}
	})
}

// TestRepeatsBounded checks a peer that repeats READs, piece by piece, while another is being
// answered. The number of queued ones is bounded by what a correct peer can request. Otherwise each
// packet would cost memory, and later ones time.
func TestRepeatsBounded(t *testing.T) {
	const pieces = 300
	bubble(t, config{size: 2 << 20, destRD: 4}, func(r *rig) {
		r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, pieces<<10)))
		sleep(time.Second)
		r.give(r.req(wire.RCReadRequest, pieces, nil, r.at(0, 2<<20))) // takes several bursts
		r.take()
		for psn := range pieces {
			r.give(r.req(wire.RCReadRequest, psn, nil, r.at(psn<<10, 1024)))
		}
		sleep(time.Second)
		n := 0
		for _, p := range r.take() {
			if wire.PSNDiff(p.PSN, r.c.rqPSN) < pieces {
				n++
			}
		}
		if n < 4 || n > 64+2*4 {
			t.Errorf("%d of %d repeated pieces were answered", n, pieces)
		}
		r.give(r.req(wire.RCWriteOnly, pieces+2048, fill(8, 1), r.at(0, 8), ackReq))
		r.expect(fmt.Sprintf("ack %d msn 3", pieces+2048))
	})
}

// TestPace: a READ of more than a window is answered in bursts, which become smaller after each
// loss and larger after each burst without one.
func TestPace(t *testing.T) {
	bubble(t, config{size: 2 << 20}, func(r *rig) {
		bursts := func() (n []int) {
			for range 100 {
				if k := len(r.take()); k > 0 {
					n = append(n, k)
				}
				sleep(200 * time.Microsecond)
			}
			return n
		}
		read := func(psn, from int) {
			r.give(r.req(wire.RCReadRequest, psn+from, nil, r.at(from*r.mtu(), uint32(1<<20-from*r.mtu()))))
		}
		read(0, 0)
		if n := bursts(); n[0] != 64 || n[1] != 64 {
			t.Errorf("the first comes in bursts of %v", n)
		}
		read(1024, 0)
		if n := bursts(); n[0] != 128 || n[1] != 128 {
			t.Errorf("the second comes in bursts of %v", n)
		}
		read(1024, 100)
		if n := bursts(); n[0] != 128 {
			t.Errorf("missed responses come in bursts of %v", n)
		}
		read(1024, 200)
		read(2048, 0)
		if n := bursts(); n[0] != 64 || n[15] != 64 {
			t.Errorf("after more was missed they come in bursts of %v", n)
		}
	})
}

// TestBurst: a burst of one READ fits a window, for any path MTU.
func TestBurst(t *testing.T) {
	for mtu := verbs.MTU256; mtu <= verbs.MTU4096; mtu++ {
		run(t, mtu.String(), config{mtu: mtu, size: 2 << 20}, func(t *testing.T, r *rig) {
			r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, 2<<20)))
			if n := len(r.take()); n == 0 || n > 512 || n*r.mtu() > 512<<10 {
				t.Errorf("%d responses at once", n)
			}
			sleep(time.Second)
			r.take()
		})
	}
}
