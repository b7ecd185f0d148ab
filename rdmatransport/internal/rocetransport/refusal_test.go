package rocetransport_test

// Requests that the responder refuses or drops.

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

func one(f func(r *rig) wire.Packet) func(r *rig) []wire.Packet {
	return func(r *rig) []wire.Packet { return []wire.Packet{f(r)} }
}

func write(psn, n int, opts ...func(r *rig) option) func(r *rig) wire.Packet {
	return func(r *rig) wire.Packet {
		p := r.req(wire.RCWriteOnly, psn, fill(n, 1), ackReq, r.at(0, uint32(n)))
		for _, o := range opts {
			o(r)(&p)
		}
		return p
	}
}

func at(off int, n uint32) func(*rig) option { return func(r *rig) option { return r.at(off, n) } }

func access(a verbs.Access) config { return config{access: a} }

func TestRefusals(t *testing.T) {
	const gib = 1 << 30
	read := func(opts ...func(*rig) option) func(r *rig) []wire.Packet {
		return one(func(r *rig) wire.Packet {
			p := r.req(wire.RCReadRequest, 0, nil, r.at(0, 8), ackReq)
			for _, o := range opts {
				o(r)(&p)
			}
			return p
		})
	}
	fetchAdd := func(o func(r *rig) option) func(r *rig) []wire.Packet {
		return one(func(r *rig) wire.Packet { return r.req(wire.RCFetchAdd, 0, nil, o(r)) })
	}
	rkey := func(f func(r *rig) uint32) func(*rig) option {
		return func(r *rig) option { return func(p *wire.Packet) { p.RETH.RKey = f(r) } }
	}
	address := func(f func(r *rig) uint64) func(*rig) option {
		return func(r *rig) option { return func(p *wire.Packet) { p.RETH.Addr = f(r) } }
	}
	otherPD := rkey(func(r *rig) uint32 {
		pd := must(r.dev.AllocPD())
		return must(pd.RegMR(r.buf, allAccess)).RKey()
	})
	gone := rkey(func(r *rig) uint32 {
		mr := must(r.pd.RegMR(r.buf, allAccess))
		if err := mr.Close(); err != nil {
			panic(err)
		}
		return mr.RKey()
	})
	unknown := rkey(func(r *rig) uint32 { return r.mr.RKey() + 1 })
	lkey := rkey(func(r *rig) uint32 { return r.mr.LKey() })
	top := config{mrIOVAGiven: true, mrIOVA: -(64 << 10) & (1<<64 - 1)}
	const inv, acc = "nak61 0 msn 0", "nak62 0 msn 0"

	for _, c := range []refusal{
		// Lengths (C9-93, C9-94).
		{name: "SEND Only longer than the path MTU", recv: 8192, want: inv,
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCSendOnly, 0, fill(1025, 1)) })},
		{name: "short SEND First", recv: 8192, want: inv,
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCSendFirst, 0, fill(1023, 1)) })},
		{name: "empty SEND First", recv: 8192, want: inv,
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCSendFirst, 0, nil) })},
		{name: "short SEND Middle", recv: 8192, want: "nak61 1 msn 0", keep: true, rcq: []string{"1 REM_INV_REQ_ERR"},
			pkts: func(r *rig) []wire.Packet {
				return []wire.Packet{r.req(wire.RCSendFirst, 0, fill(1024, 1)), r.req(wire.RCSendMiddle, 1, fill(1020, 1))}
			}},
		{name: "empty SEND Last", recv: 8192, want: "nak61 1 msn 0", keep: true, rcq: []string{"1 REM_INV_REQ_ERR"},
			pkts: func(r *rig) []wire.Packet {
				return []wire.Packet{r.req(wire.RCSendFirst, 0, fill(1024, 1)), r.req(wire.RCSendLast, 1, nil)}
			}},
		{name: "SEND longer than the receive by one byte", recv: 99, want: inv, rcq: []string{"1 LOC_LEN_ERR"},
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCSendOnly, 0, fill(100, 1)) })},
		{name: "SEND longer than the receive in its last packet", recv: 1024, want: "nak61 1 msn 0", keep: true,
			rcq: []string{"1 LOC_LEN_ERR"},
			pkts: func(r *rig) []wire.Packet {
				return []wire.Packet{r.req(wire.RCSendFirst, 0, fill(1024, 1)), r.req(wire.RCSendLast, 1, fill(1, 1))}
			}},
		{name: "WRITE Only shorter than its RETH", pkts: one(write(0, 8, at(0, 9))), want: inv},
		{name: "WRITE Only longer than its RETH", pkts: one(write(0, 8, at(0, 7))), want: inv},
		{name: "WRITE Only of a RETH of nothing", pkts: one(write(0, 8, at(0, 0))), want: inv},
		{name: "WRITE Only longer than the path MTU", pkts: one(write(0, 1028)), want: inv},
		{name: "WRITE First that is all of its RETH", want: inv,
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 1024)) })},
		{name: "WRITE First longer than its RETH", want: inv,
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 1000)) })},
		{name: "WRITE First of a RETH of nothing", want: inv,
			pkts: one(func(r *rig) wire.Packet {
				return r.req(wire.RCWriteFirst, 0, fill(1024, 1), reth(0, 0, 0))
			})},
		{name: "WRITE Last shorter than what is left", want: "nak61 1 msn 0", keep: true,
			pkts: func(r *rig) []wire.Packet {
				return []wire.Packet{r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 1030)),
					r.req(wire.RCWriteLast, 1, fill(5, 1))}
			}},
		{name: "WRITE Last longer than what is left", want: "nak61 1 msn 0", keep: true,
			pkts: func(r *rig) []wire.Packet {
				return []wire.Packet{r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 1030)),
					r.req(wire.RCWriteLast, 1, fill(7, 1))}
			}},
		{name: "WRITE Last with nothing", want: "nak61 1 msn 0", keep: true,
			pkts: func(r *rig) []wire.Packet {
				return []wire.Packet{r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 1030)),
					r.req(wire.RCWriteLast, 1, nil)}
			}},
		{name: "WRITE Middle beyond its RETH", want: "nak61 2 msn 0", keep: true,
			pkts: func(r *rig) []wire.Packet {
				return []wire.Packet{r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 2049)),
					r.req(wire.RCWriteMiddle, 1, fill(1024, 1)), r.req(wire.RCWriteMiddle, 2, fill(1024, 1))}
			}},
		{name: "READ over 1 GiB", pkts: read(at(0, gib+1)), want: inv},
		{name: "READ of 4 GiB", pkts: read(at(0, 1<<32-1)), want: inv},

		// Keys and ranges.
		{name: "WRITE with an unknown rkey", pkts: one(write(0, 8, unknown)), want: acc},
		{name: "WRITE with an lkey", pkts: one(write(0, 8, lkey)), want: acc},
		{name: "WRITE with rkey 0", pkts: one(write(0, 8, rkey(func(*rig) uint32 { return 0 }))), want: acc},
		{name: "WRITE with the rkey of another PD", pkts: one(write(0, 8, otherPD)), want: acc},
		{name: "WRITE with the rkey of a deregistered region", pkts: one(write(0, 8, gone)), want: acc},
		{name: "WRITE one byte too far", pkts: one(write(0, 8, at(64<<10-7, 8))), want: acc},
		{name: "WRITE one byte too early", pkts: one(write(0, 8, at(-1, 8))), want: acc},
		{name: "WRITE around the address space", want: acc,
			pkts: one(write(0, 8, address(func(*rig) uint64 { return 1<<64 - 4 })))},
		{name: "WRITE from the end of the address space into the region", c: top, want: acc,
			pkts: one(write(0, 1024, at(64<<10-8, 1024)))},
		{name: "WRITE First whose end is one byte too far", want: acc,
			pkts: one(func(r *rig) wire.Packet {
				return r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(60<<10, 4097))
			})},
		{name: "WRITE First of 4 GiB", want: acc,
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 1<<32-1)) })},
		{name: "READ with an unknown rkey", pkts: read(unknown), want: acc},
		{name: "READ with the rkey of another PD", pkts: read(otherPD), want: acc},
		{name: "READ with the rkey of a deregistered region", pkts: read(gone), want: acc},
		{name: "READ one byte too far", pkts: read(at(64<<10-7, 8)), want: acc},
		{name: "READ one byte too early", pkts: read(at(-1, 8)), want: acc},
		{name: "READ around the address space", want: acc, pkts: read(address(func(*rig) uint64 { return 1<<64 - 4 }))},
		{name: "READ of 1 GiB of a smaller region", pkts: read(at(0, gib)), want: acc},
		{name: "atomic one byte too far", want: acc,
			pkts: fetchAdd(func(r *rig) option { return r.atomic(64<<10, 0, 1) })},
		{name: "atomic with an unknown rkey", want: acc, pkts: fetchAdd(func(r *rig) option {
			return func(p *wire.Packet) { r.atomic(0, 0, 1)(p); p.AtomicETH.RKey++ }
		})},
		{name: "atomic not aligned", want: inv, pkts: fetchAdd(func(r *rig) option { return r.atomic(4, 0, 1) })},
		{name: "atomic aligned in name only", c: config{mrIOVAGiven: true, mrIOVA: 0x1004}, want: inv,
			pkts: fetchAdd(func(r *rig) option { return r.atomic(4, 0, 1) })},
		{name: "atomic aligned in memory only", c: config{mrIOVAGiven: true, mrIOVA: 0x1004}, want: inv,
			pkts: fetchAdd(func(r *rig) option { return r.atomic(8, 0, 1) })},

		// Rights: of the region (access error), of the QP (invalid request, as rxe).
		{name: "WRITE to a region without REMOTE_WRITE", pkts: one(write(0, 8)), want: acc,
			c: config{mrAccess: allAccess &^ verbs.AccessRemoteWrite}},
		{name: "READ of a region without REMOTE_READ", pkts: read(), want: acc,
			c: config{mrAccess: allAccess &^ verbs.AccessRemoteRead}},
		{name: "atomic on a region without REMOTE_ATOMIC", want: acc,
			c:    config{mrAccess: allAccess &^ verbs.AccessRemoteAtomic},
			pkts: fetchAdd(func(r *rig) option { return r.atomic(0, 0, 1) })},
		{name: "WRITE to a QP without REMOTE_WRITE", pkts: one(write(0, 8)), want: inv,
			c: access(allAccess &^ verbs.AccessRemoteWrite)},
		{name: "WRITE of nothing to a QP without REMOTE_WRITE", pkts: one(write(0, 0)), want: inv,
			c: access(allAccess &^ verbs.AccessRemoteWrite)},
		{name: "READ from a QP without REMOTE_READ", pkts: read(), want: inv,
			c: access(allAccess &^ verbs.AccessRemoteRead)},
		{name: "atomic at a QP without REMOTE_ATOMIC", want: inv,
			c:    access(allAccess &^ verbs.AccessRemoteAtomic),
			pkts: fetchAdd(func(r *rig) option { return r.atomic(0, 0, 1) })},
		{name: "READ from a QP with a max_dest_rd_atomic of 0", pkts: read(), want: inv, c: config{destRD: none}},
		{name: "atomic at a QP with a max_dest_rd_atomic of 0", want: inv, c: config{destRD: none},
			pkts: fetchAdd(func(r *rig) option { return r.atomic(0, 0, 1) })},

		// The receiver's own memory: C9-120, remote operational error.
		{name: "SEND into a region without LOCAL_WRITE", c: config{mrAccess: verbs.AccessRemoteRead}, recv: 64,
			want: "nak63 0 msn 0", rcq: []string{"1 LOC_PROT_ERR"},
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCSendOnly, 0, fill(64, 1)) })},
		{name: "SEND into a receive that is longer than its region", recv: 64<<10 + 1, keep: true,
			want: "nak63 64 msn 0", rcq: []string{"1 LOC_PROT_ERR"},
			pkts: func(r *rig) (pkts []wire.Packet) {
				for i := range 64 {
					op := wire.RCSendMiddle
					if i == 0 {
						op = wire.RCSendFirst
					}
					pkts = append(pkts, r.req(op, i, fill(1024, 1)))
				}
				return append(pkts, r.req(wire.RCSendLast, 64, fill(1, 1)))
			}},
	} {
		run(t, c.name, c.c, func(t *testing.T, r *rig) {
			if c.recv > 0 {
				r.recv(1, 0, c.recv)
			}
			r.post(r.wr(7, verbs.Send, 8))
			r.take()
			was := bytes.Clone(r.buf)
			r.give(c.pkts(r)...)
			r.expect(c.want)
			r.state(verbs.StateErr)
			if !c.keep && !bytes.Equal(r.buf, was) {
				t.Error("memory has changed")
			}
			want := c.rcq
			if c.recv > 0 && want == nil {
				want = []string{"1 WR_FLUSH_ERR"}
			}
			r.completions(r.rcq, want...)
			r.completions(r.scq, "7 WR_FLUSH_ERR")
			// Nothing is answered any more.
			r.give(c.pkts(r)...)
			r.expect()
		})
	}
}

// TestDeregisteredMidMessage: every packet is checked, not only the first.
func TestDeregisteredMidMessage(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		mr := must(r.pd.RegMR(r.buf, allAccess))
		r.give(r.req(wire.RCWriteFirst, 0, fill(1024, 1), reth(mr.Addr(), mr.RKey(), 3072)))
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
		was := bytes.Clone(r.buf)
		r.give(r.req(wire.RCWriteMiddle, 1, fill(1024, 1)))
		r.expect("nak62 1 msn 0")
		r.state(verbs.StateErr)
		if !bytes.Equal(was, r.buf) {
			t.Error("memory that is not registered any more has changed")
		}
	})
	// The same for READ, between the bursts of a long one.
	bubble(t, config{size: 2 << 20}, func(r *rig) {
		mr := must(r.pd.RegMR(r.buf, allAccess))
		r.give(r.req(wire.RCReadRequest, 0, nil, reth(mr.Addr(), mr.RKey(), 2<<20)))
		burst := len(r.take())
		if burst == 0 || burst >= 2048 {
			t.Fatalf("%d responses at once", burst)
		}
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
		sleep(1e9)
		r.expect(fmt.Sprintf("nak62 %d msn 1", burst))
		r.state(verbs.StateErr)
	})
}

// TestDropped: packets for others, and invalid ones, change nothing and are counted.
func TestDropped(t *testing.T) {
	for _, c := range []struct {
		name    string
		counter string
		give    func(r *rig, p wire.Packet)
	}{
		{"wrong QPN", "unknown_qp", func(r *rig, p wire.Packet) { p.DestQP ^= 1; r.give(p) }},
		{"QPN 0", "unknown_qp", func(r *rig, p wire.Packet) { p.DestQP = 0; r.give(p) }},
		{"multicast QPN", "unknown_qp", func(r *rig, p wire.Packet) { p.DestQP = 0xffffff; r.give(p) }},
		{"wrong source address", "misdirected_packets", func(r *rig, p wire.Packet) {
			r.them = us4.Next().Next()
			r.give(p)
		}},
		{"wrong destination address", "misdirected_packets", func(r *rig, p wire.Packet) {
			r.us = us4.Prev()
			r.give(p)
		}},
		{"other address family", "misdirected_packets", func(r *rig, p wire.Packet) {
			r.us, r.them = us6, them6
			r.give(p)
		}},
		{"wrong port of the device", "misdirected_packets", func(r *rig, p wire.Packet) { r.port2.receive(r.frame(p)) }},
		{"wrong P_Key", "bad_pkey", func(r *rig, p wire.Packet) { p.PKey = 0x8001; r.give(p) }},
		{"P_Key 0", "bad_pkey", func(r *rig, p wire.Packet) { p.PKey = 0; r.give(p) }},
		{"bad ICRC", "icrc_errors", func(r *rig, p wire.Packet) {
			d := r.frame(p)
			d.Payload[len(d.Payload)-1] ^= 1
			r.port.receive(d)
		}},
		{"flipped payload bit", "icrc_errors", func(r *rig, p wire.Packet) {
			d := r.frame(p)
			d.Payload[40] ^= 1
			r.port.receive(d)
		}},
		{"flipped address bit", "icrc_errors", func(r *rig, p wire.Packet) {
			d := r.frame(p)
			d.Header[15] ^= 1
			r.port.receive(d)
		}},
		{"truncated in the payload", "icrc_errors", func(r *rig, p wire.Packet) {
			d := r.frame(p)
			d.Payload = d.Payload[:len(d.Payload)-4]
			r.port.receive(d)
		}},
		{"truncated in the RETH", "malformed_packets", func(r *rig, p wire.Packet) {
			d := r.frame(p)
			d.Payload = d.Payload[:20]
			r.port.receive(d)
		}},
		{"truncated in the BTH", "malformed_packets", func(r *rig, p wire.Packet) {
			d := r.frame(p)
			d.Payload = d.Payload[:11]
			r.port.receive(d)
		}},
		{"one byte", "malformed_packets", func(r *rig, p wire.Packet) {
			d := r.frame(p)
			d.Payload = d.Payload[:1]
			r.port.receive(d)
		}},
		{"transport header version 1", "malformed_packets", func(r *rig, p wire.Packet) { p.Version = 1; r.give(p) }},
		{"UC opcode", "malformed_packets", func(r *rig, p wire.Packet) { p.Opcode = wire.UCWriteOnly; r.give(p) }},
		{"UD opcode", "malformed_packets", func(r *rig, p wire.Packet) { p.Opcode = wire.UDSendOnly; r.give(p) }},
		{"more pad than payload", "malformed_packets", func(r *rig, p wire.Packet) {
			p.Payload, p.Pad = nil, 0
			d := r.frame(p)
			d.Payload[1] |= 3 << 4
			r.port.receive(d)
		}},
	} {
		for _, state := range []verbs.QPState{verbs.StateRTR, verbs.StateRTS} {
			run(t, fmt.Sprint(c.name, " in ", state), config{stopAt: state}, func(t *testing.T, r *rig) {
				was := bytes.Clone(r.buf)
				us, them := r.us, r.them
				before := r.counter(c.counter)
				c.give(r, r.req(wire.RCWriteOnly, 0, fill(64, 1), r.at(0, 64), ackReq))
				r.us, r.them = us, them
				r.expect()
				r.state(state)
				if !bytes.Equal(r.buf, was) {
					t.Error("memory has changed")
				}
				if n := r.counter(c.counter); n != before+1 {
					t.Errorf("%s is %d, was %d", c.counter, n, before)
				}
				// The connection continues unaffected.
				r.give(r.req(wire.RCWriteOnly, 0, fill(64, 1), r.at(0, 64), ackReq))
				r.expect("ack 0 msn 1")
			})
		}
	}
	for _, state := range []verbs.QPState{verbs.StateReset, verbs.StateInit, verbs.StateErr} {
		run(t, fmt.Sprint("QP in ", state), config{}, func(t *testing.T, r *rig) {
			p := r.req(wire.RCWriteOnly, 0, fill(64, 1), r.at(0, 64), ackReq)
			was := bytes.Clone(r.buf)
			r.modify(verbs.StateReset)
			r.c.stopAt = state
			if state == verbs.StateErr {
				r.modify(state)
			} else if state != verbs.StateReset {
				r.connect()
			}
			r.give(p, r.ack(0))
			r.expect()
			r.state(state)
			if !bytes.Equal(r.buf, was) {
				t.Error("memory has changed")
			}
			if n := r.counter("misdirected_packets"); n != 2 {
				t.Errorf("%d packets are counted", n)
			}
		})
	}
}

// TestBadPacketInSuperframe: valid packets of the same superframe are processed.
func TestBadPacketInSuperframe(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		w := func(psn int) wire.Packet { return r.req(wire.RCWriteOnly, psn, fill(8, 1), r.at(8*psn, 8), ackReq) }
		d := r.frame(w(0), w(1), w(2))
		d.Payload[d.SegmentSize+30] ^= 1
		r.port.receive(d)
		r.expect("nak60 1 msn 1")
	})
}
