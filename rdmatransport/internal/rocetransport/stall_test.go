package rocetransport_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

var (
	stallSeed  = flag.Uint64("stall.seed", 0, "run only this seed of TestNoStall")
	stallSeeds = flag.Uint64("stall.seeds", uint64(amount(30, 100, 100)), "run this many seeds of TestNoStall")
)

// stallTimeout is the longest time without a completion: thousands of timeouts, hundreds of RNR
// waits.
const stallTimeout = 20 * time.Second

// TestNoStall runs two devices with requests of every kind posted at any time, late receives, and a
// link that loses, delays, duplicates and reorders. Either everything completes or a connection
// fails. Both sides never wait for each other.
func TestNoStall(t *testing.T) {
	if *stallSeed != 0 {
		synctest.Test(t, func(t *testing.T) { t.Logf("completed: %v", newTraffic(t, *stallSeed).run()) })
		return
	}
	failed := 0
	if testing.Short() {
		*stallSeeds = min(*stallSeeds, 10)
	}
	for seed := range *stallSeeds {
		t.Run(fmt.Sprint(seed+1), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if !newTraffic(t, seed+1).run() {
					failed++
				}
			})
		})
	}
	t.Logf("%d of %d connections failed", failed, *stallSeeds)
	if failed*100 > int(*stallSeeds) {
		t.Errorf("%d of %d connections failed: retries must be up too early", failed, *stallSeeds)
	}
}

// traffic is two ends and the link between them.
type traffic struct {
	t    *testing.T
	seed uint64
	rand *rand.Rand
	ends [2]*side

	loss, dup, late int // percent
	delay           time.Duration
	dark            time.Time // nothing arrives until then
	blackouts       bool
	frames          bool // adjacent packets of one size arrive in one frame
}

// side is one end.
type side struct {
	*rig
	wrs     []*verbs.SendWR // to post
	posted  int
	done    int
	recvs   int // to post
	asked   int // posted of those
	got     int
	lazy    int      // percentage of steps in which receives are posted
	credits bool     // its acknowledgements have credits
	flights []flight // towards this end, by arrival
}

type flight struct {
	at  time.Time
	pkt wire.Packet
}

func newTraffic(t *testing.T, seed uint64) *traffic {
	r := rand.New(rand.NewPCG(seed, 7))
	x := &traffic{t: t, seed: seed, rand: r,
		loss: []int{0, 0, 1, 3, 10}[r.IntN(5)], dup: []int{0, 0, 1, 10}[r.IntN(4)], late: []int{0, 0, 1, 10}[r.IntN(4)],
		delay: time.Duration(1+r.IntN(500)) * time.Microsecond, blackouts: r.IntN(3) == 0, frames: r.IntN(2) == 0}
	c := config{
		timeout: uint8(r.IntN(10) + 4), retry: 7, rnr: 7, mtu: verbs.MTU256 + verbs.MTU(r.IntN(3)), maxWR: 1 + r.IntN(20),
		sqPSN: 1<<24 - 1 - r.Uint32N(300), rqPSN: r.Uint32N(1 << 24), size: 256 << 10,
		batch: []int{1, 4, 62}[seed%3],
	}
	gives := [2]bool{seed%2 == 0, seed%4 == 0}
	depth := [2]uint8{uint8(1 + r.IntN(4)), uint8(1 + r.IntN(4))}
	for i := range x.ends {
		c.minRNR = uint8(1 + r.IntN(13))
		c.rd, c.destRD = depth[i], depth[1-i]
		c.goBackN = r.IntN(3) == 0
		x.ends[i] = &side{rig: newRig(t, c), lazy: []int{1, 10, 100}[r.IntN(3)], credits: gives[i]}
		c.sqPSN, c.rqPSN = c.rqPSN, c.sqPSN
	}
	for i, e := range x.ends {
		peer := x.ends[1-i]
		n := 1 + r.IntN(60)
		if r.IntN(4) == 0 {
			n = 0
		}
		for k := range n {
			x.add(e, peer, k)
		}
	}
	return x
}

// add draws one more request of e.
func (x *traffic) add(e, peer *side, k int) {
	r := x.rand
	n := r.IntN(3000)
	switch r.IntN(10) {
	case 0:
		n = 0
	case 1:
		n = r.IntN(len(e.buf))
	}
	wr := &verbs.SendWR{WRID: uint64(k), Flags: verbs.SendSignaled, RemoteAddr: peer.mr.Addr(), RKey: peer.mr.RKey()}
	switch wr.Opcode = []verbs.WROpcode{verbs.Send, verbs.SendWithImm, verbs.RDMAWrite, verbs.RDMAWriteWithImm,
		verbs.RDMARead, verbs.AtomicFetchAndAdd, verbs.RDMARead}[r.IntN(7)]; wr.Opcode {
	case verbs.Send, verbs.SendWithImm, verbs.RDMAWriteWithImm:
		peer.recvs++
	case verbs.AtomicFetchAndAdd:
		n = 8
	}
	if r.IntN(5) == 0 {
		wr.Flags |= verbs.SendFence
	}
	wr.SGList = []verbs.SGE{e.mr.SGE(0, n)}
	e.wrs = append(e.wrs, wr)
}

// run returns true if everything completed, false if a connection failed.
func (x *traffic) run() bool {
	last := time.Now()
	for {
		moved, idle := x.step()
		if moved {
			last = time.Now()
		}
		finished := true
		for i, e := range x.ends {
			if e.qp.State() == verbs.StateErr {
				x.t.Logf("seed %d: end %d failed: loss %d%%, repeated %d%%, late %d%%, delay %v, blackouts %v, timeout %d",
					x.seed, i, x.loss, x.dup, x.late, x.delay, x.blackouts, e.c.timeout)
				if x.loss == 0 && !x.blackouts && x.late == 0 {
					x.t.Errorf("seed %d: a connection failed on an unimpaired network", x.seed)
				}
				return false
			}
			finished = finished && e.done == len(e.wrs) && e.got == e.recvs
		}
		switch {
		case finished:
			for i, e := range x.ends {
				if n := e.counter("suspect_requests"); n != 0 && x.late == 0 {
					x.t.Errorf("seed %d: end %d suspects %d requests of its peer's", x.seed, i, n)
				}
			}
			return true
		case time.Since(last) > stallTimeout:
			for i, e := range x.ends {
				x.t.Logf("end %d: %d of %d done, %d posted; %d of %d received, %d posted; %v",
					i, e.done, len(e.wrs), e.posted, e.got, e.recvs, e.asked, must(e.dev.HWCounters()))
			}
			x.t.Fatalf("seed %d: nothing completes any more", x.seed)
		case idle:
			sleep(200 * time.Microsecond)
		default:
			sleep(10 * time.Microsecond)
		}
	}
}

// step lets both applications and the link act. moved: something completed. idle: nothing is in
// flight.
func (x *traffic) step() (moved, idle bool) {
	idle = true
	now := time.Now()
	if x.blackouts && now.After(x.dark) && x.rand.IntN(2000) == 0 {
		x.dark = now.Add(time.Duration(x.rand.IntN(int(10 * time.Millisecond))))
	}
	for i, e := range x.ends {
		for e.posted < len(e.wrs) && e.posted-e.done < e.c.maxWR && x.rand.IntN(3) > 0 {
			e.post(e.wrs[e.posted])
			e.posted++
		}
		for e.asked < e.recvs && e.asked-e.got < e.c.maxWR && x.rand.IntN(100) < e.lazy {
			e.recv(uint64(e.asked), 0, len(e.buf))
			e.asked++
		}
		x.enqueue(e, x.ends[1-i])
		if x.deliver(e) {
			idle = false
		}
		for _, wc := range poll(x.t, e.scq) {
			if wc.Status == verbs.WCSuccess && wc.WRID != uint64(e.done) {
				x.t.Fatalf("seed %d: request %d completes, want %d", x.seed, wc.WRID, e.done)
			}
			e.done++
			moved = true
		}
		for _, wc := range poll(x.t, e.rcq) {
			if wc.Status == verbs.WCSuccess && wc.WRID != uint64(e.got) {
				x.t.Fatalf("seed %d: receive %d completes, want %d", x.seed, wc.WRID, e.got)
			}
			e.got++
			moved = true
		}
	}
	return moved, idle
}

// enqueue puts an end's sent packets in flight.
func (x *traffic) enqueue(from, to *side) {
	for _, p := range from.take() {
		from.relay(to.rig, &p)
		if from.credits && p.Opcode.Info().HasAETH() && p.AETH.IsACK() {
			p.AETH.Syndrome = credits(from.asked - from.got)
		}
		copies := 1
		if x.rand.IntN(100) < x.dup {
			copies = 2
		}
		for range copies {
			if time.Now().Before(x.dark) || x.rand.IntN(100) < x.loss {
				continue
			}
			at := time.Now().Add(x.delay)
			if x.rand.IntN(100) < x.late {
				at = at.Add(time.Duration(x.rand.IntN(int(3 * time.Millisecond))))
			}
			i, _ := slices.BinarySearchFunc(to.flights, at, func(f flight, at time.Time) int {
				if f.at.After(at) {
					return 1
				}
				return -1
			})
			to.flights = slices.Insert(to.flights, i, flight{at, p})
		}
	}
}

// credits returns the code of the largest credit count up to n.
func credits(n int) uint8 {
	for code := uint8(1); code < wire.AckUnlimited; code++ {
		if c, _ := (&wire.AETH{Syndrome: code}).Credits(); int(c) > n {
			return code - 1
		}
	}
	return wire.AckUnlimited - 1
}

// deliver passes arrived packets to an end. It returns true if any have arrived, or will.
func (x *traffic) deliver(e *side) bool {
	any := len(e.flights) > 0
	for len(e.flights) > 0 && !e.flights[0].at.After(time.Now()) {
		n := 1
		for x.frames && n < min(len(e.flights), 16) && !e.flights[n].at.After(time.Now()) &&
			e.flights[n].pkt.Size() == e.flights[0].pkt.Size() {
			n++
		}
		var pkts []wire.Packet
		for _, f := range e.flights[:n] {
			pkts = append(pkts, f.pkt)
		}
		e.flights = slices.Delete(e.flights, 0, n)
		e.giveFrame(pkts...)
	}
	return any
}
