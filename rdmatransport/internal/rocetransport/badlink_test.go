package rocetransport_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// TestBadLink makes two devices send all the time over a link that loses, duplicates and reorders
// packets. Everything arrives, once and in order, with selective repeat and with go-back-N.
func TestBadLink(t *testing.T) {
	for seed := range uint64(20) {
		if testing.Short() && seed%5 != 2 {
			continue
		}
		c := config{size: slots * slotSize, sqPSN: 0xffff00, rqPSN: 0x345678, timeout: 8, retry: 7, rnr: 7,
			minRNR: 1, mtu: verbs.MTU256 + verbs.MTU(seed%5), destRD: 3, rd: 3, goBackN: seed >= 10}
		run(t, fmt.Sprint(seed), c, func(t *testing.T, a *rig) {
			c.sqPSN, c.rqPSN = c.rqPSN, c.sqPSN
			b := newRig(t, c)
			l := &badLink{t: t, rand: rand.New(rand.NewPCG(seed, 1)), ends: [2]*rig{a, b}, percent: int(seed % 4)}
			for i, r := range l.ends {
				clear(r.slot(counters, 0, slotSize))
				l.model[i] = bytes.Clone(r.buf)
			}
			for range 15 {
				l.batch()
			}
			for i, r := range l.ends {
				if !bytes.Equal(r.buf, l.model[i]) {
					t.Errorf("end %d has other memory than expected", i)
				}
				r.state(verbs.StateRTS)
			}
			if c := must(a.dev.HWCounters()); l.percent > 0 &&
				(c["completer_retry_err"]+c["selective_repeats"] == 0 || c["duplicate_request"] == 0) {
				t.Errorf("the link has harmed no packet: %v", c)
			}
		})
	}
}

// Each end's memory consists of slots: some to send from, and one for each slot that a request of a
// batch may change, so that requests do not conflict.
const (
	slotSize = 10 << 10
	perBatch = 10

	sources  = 0                   // never written
	writes   = sources + 4         // the peer's WRITEs
	receives = writes + perBatch   // the peer's SENDs
	reads    = receives + perBatch // data of local READs
	results  = reads + perBatch    // results of local atomics
	counters = results + 1         // target of the peer's atomics
	slots    = counters + 1
)

func (r *rig) slot(i, off, n int) []byte { return r.buf[i*slotSize+off:][:n] }

// badLink has two ends and the link between them.
type badLink struct {
	t     *testing.T
	rand  *rand.Rand
	ends  [2]*rig
	model [2][]byte        // the expected contents of their memories
	late  [2][]wire.Packet // packets in flight from each end
	// Of the packets that are lost, and the same share each of duplicated and late ones.
	percent int
}

// carry delivers packets of both ends. It returns false if there were none.
func (l *badLink) carry() (moved bool) {
	for i, from := range l.ends {
		to := l.ends[1-i]
		pkts := from.take()
		for j := range pkts {
			from.relay(to, &pkts[j])
		}
		pkts = append(pkts, l.late[i]...)
		l.late[i] = nil
		for j := range pkts {
			p := &pkts[j]
			moved = true
			switch x := l.rand.IntN(100); {
			case x < l.percent:
				continue
			case x < 2*l.percent:
				to.give(*p)
			case x < 3*l.percent:
				l.late[i] = append(l.late[i], *p)
				continue
			}
			to.give(*p)
		}
	}
	return moved
}

// batch makes both ends post requests, and carries packets until all are complete.
func (l *badLink) batch() {
	t := l.t
	var sent, received [2][]string
	for i, r := range l.ends {
		peer := l.ends[1-i]
		for k := range perBatch {
			n := l.rand.IntN(slotSize + 1)
			if l.rand.IntN(3) == 0 {
				n = l.rand.IntN(5)
			}
			src := sources*slotSize + l.rand.IntN(3*slotSize)
			wr := &verbs.SendWR{WRID: uint64(k), Flags: verbs.SendSignaled, RKey: peer.mr.RKey(), ImmData: uint32(k)}
			local, remote, opcode, length := src, 0, verbs.WCSend, 0
			switch l.rand.IntN(4) {
			case 0:
				wr.Opcode, opcode = verbs.RDMAWrite, verbs.WCRDMAWrite
				remote = (writes + k) * slotSize
				copy(l.model[1-i][remote:], r.buf[src:src+n])
			case 1:
				wr.Opcode = verbs.SendWithImm
				at := (receives + k) * slotSize
				copy(l.model[1-i][at:], r.buf[src:src+n])
				received[1-i] = append(received[1-i], fmt.Sprintf("%d SUCCESS RECV %d imm %d", k, n, k))
				peer.later = append(peer.later, func() { peer.recv(uint64(k), at, n) })
			case 2:
				wr.Opcode, opcode, length = verbs.RDMARead, verbs.WCRDMARead, n
				local, remote = (reads+k)*slotSize, src
				copy(l.model[i][local:], peer.buf[src:src+n])
			case 3:
				wr.Opcode, opcode, length, n = verbs.AtomicFetchAndAdd, verbs.WCFetchAdd, 8, 8
				wr.CompareAdd = l.rand.Uint64()
				local, remote = results*slotSize+8*k, counters*slotSize
				word := l.model[1-i][remote:]
				old := binary.NativeEndian.Uint64(word)
				binary.NativeEndian.PutUint64(l.model[i][local:], old)
				binary.NativeEndian.PutUint64(word, old+wr.CompareAdd)
			}
			if l.rand.IntN(8) == 0 {
				wr.Flags |= verbs.SendFence
			}
			wr.SGList = []verbs.SGE{r.mr.SGE(local, n/3), r.mr.SGE(local+n/3, n-n/3)}
			if length == 8 && opcode == verbs.WCFetchAdd {
				wr.SGList = []verbs.SGE{r.mr.SGE(local, 8)}
			}
			wr.RemoteAddr = peer.mr.Addr() + uint64(remote)
			sent[i] = append(sent[i], fmt.Sprintf("%d SUCCESS %v %d", k, opcode, length))
			r.post(wr)
		}
	}
	for round := 0; ; round++ {
		if !l.carry() {
			sleep(time.Millisecond)
		}
		if round > 10 { // by then, an end was not ready
			for _, r := range l.ends {
				for _, f := range r.later {
					f()
				}
				r.later = nil
			}
		}
		done := true
		for i, r := range l.ends {
			r.got[0] = append(r.got[0], poll(t, r.scq)...)
			r.got[1] = append(r.got[1], poll(t, r.rcq)...)
			done = done && len(r.got[0]) >= len(sent[i]) && len(r.got[1]) >= len(received[i])
		}
		if done {
			break
		}
		if round > 100_000 {
			t.Fatalf("the batch does not complete: %v", must(l.ends[0].dev.HWCounters()))
		}
	}
	for i, r := range l.ends {
		r.check(r.got[0], sent[i])
		r.check(r.got[1], received[i])
		r.got[0], r.got[1] = nil, nil
	}
}
