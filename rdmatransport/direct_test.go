package rdmatransport_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
)

// Messages that are copied directly between two QPs of one process must differ from messages in
// packets in their speed only.

// cable is a link that hides its medium, so that all data passes in frames.
type cable struct{ link.Link }

func inFrames(l link.Link) link.Link { return cable{l} }

type way struct {
	name string
	setting
}

// ways are the ways in which two ends may reach each other.
var ways = []way{
	{"packets", setting{devices: 2, wrap: inFrames}},
	{"two nodes", setting{devices: 2}},
	{"one device", setting{devices: 1}},
}

var transports = []verbs.Transport{verbs.RoCEv2, verbs.IWARP}

// everyWay runs a test over both transports and all ways.
func everyWay(t *testing.T, f func(t *testing.T, s setting)) {
	over(t, ways, f)
}

// twoNodes runs a test over both transports, in packets and directly.
func twoNodes(t *testing.T, f func(t *testing.T, s setting)) {
	over(t, ways[:2], f)
}

func over(t *testing.T, ways []way, f func(t *testing.T, s setting)) {
	for _, transport := range transports {
		for _, w := range ways {
			t.Run(fmt.Sprintf("%v/%s", transport, w.name), func(t *testing.T) {
				w.setting.transport = transport
				f(t, w.setting)
			})
		}
	}
}

// direct returns how many messages an end's device has sent without packets.
func (e *end) direct(t testing.TB) uint64 {
	t.Helper()
	c := must(e.HWCounters())(t)
	return c["direct_msgs"] + c["iwarp_direct_msgs"]
}

const testMemory = 1 << 20

// TestDirectSemantics executes the same work in packets and directly, and compares completions,
// events and memory on both sides.
func TestDirectSemantics(t *testing.T) {
	type act func(s *script)
	send := func(op verbs.WROpcode, n int, change ...func(*verbs.SendWR)) act {
		return func(s *script) { s.send(op, n, change...) }
	}
	recv := func(n int) act { return func(s *script) { s.recv(s.b.mr.SGE(testMemory/2, n)) } }
	all := []verbs.WROpcode{verbs.Send, verbs.SendWithImm, verbs.RDMAWrite, verbs.RDMAWriteWithImm, verbs.RDMARead,
		verbs.AtomicFetchAndAdd, verbs.AtomicCmpAndSwp}
	data := all[:4]
	cases := map[string][]act{
		"no such rkey": {send(verbs.RDMAWrite, 10),
			send(verbs.RDMAWrite, 10, func(wr *verbs.SendWR) { wr.RKey ^= 1 })},
		"no right": {func(s *script) { s.remote = s.readOnly },
			send(verbs.RDMARead, 100), send(verbs.RDMAWrite, 100)},
		"another PD's":                        {func(s *script) { s.remote = s.otherPD }, send(verbs.RDMAWrite, 100)},
		"READ from another PD":                {func(s *script) { s.remote = s.otherPD }, send(verbs.RDMARead, 100)},
		"beyond the region":                   {send(verbs.RDMAWrite, 100, func(wr *verbs.SendWR) { wr.RemoteAddr += testMemory - 99 })},
		"READ beyond the region":              {send(verbs.RDMARead, 100, func(wr *verbs.SendWR) { wr.RemoteAddr += testMemory - 99 })},
		"no bytes to an unregistered address": {send(verbs.RDMAWrite, 0, func(wr *verbs.SendWR) { wr.RKey, wr.RemoteAddr = 1, 1 })},
		"own lkey": {send(verbs.RDMAWrite, 10),
			send(verbs.RDMAWrite, 10, func(wr *verbs.SendWR) { wr.SGList[0].LKey ^= 1 })},
		"own lkey, second": {send(verbs.RDMAWrite, 10, func(wr *verbs.SendWR) {
			wr.SGList = append(wr.SGList, wr.SGList[0])
			wr.SGList[1].LKey ^= 1
		})},
		"READ into read-only memory":       {func(s *script) { s.local = s.constant }, send(verbs.RDMARead, 10)},
		"atomic into read-only memory":     {func(s *script) { s.local = s.constant }, send(verbs.AtomicFetchAndAdd, 8)},
		"atomic on an unaligned address":   {send(verbs.AtomicFetchAndAdd, 8, func(wr *verbs.SendWR) { wr.RemoteAddr += 4 })},
		"atomic without the right":         {func(s *script) { s.remote = s.readOnly }, send(verbs.AtomicFetchAndAdd, 8)},
		"too long for the receive request": {recv(99), send(verbs.Send, 100)},
		"receive request with memory of another PD": {func(s *script) {
			sge := s.b.mr.SGE(0, 100)
			sge.LKey ^= 1
			s.recv(sge)
		}, send(verbs.Send, 100)},
	}
	for _, op := range []verbs.WROpcode{verbs.RDMAWrite, verbs.RDMARead, verbs.AtomicFetchAndAdd} {
		cases[fmt.Sprintf("%v that the QP does not allow", op)] = []act{send(op, 8), func(s *script) {
			if err := s.b.QP().Modify(&verbs.QPAttr{}, verbs.QPAttrAccessFlags); err != nil {
				s.t.Fatal(err)
			}
		}, send(op, 8)}
	}
	var everything, inline, lists []act
	for _, op := range all {
		for _, n := range []int{0, 1, 8, 1024, 1025, 4096, 65536, 300_001} {
			switch op {
			case verbs.AtomicFetchAndAdd, verbs.AtomicCmpAndSwp:
				n = 8
			case verbs.Send, verbs.SendWithImm, verbs.RDMAWriteWithImm:
				everything = append(everything, recv(n+n%3))
			}
			everything = append(everything, send(op, n))
		}
	}
	for _, op := range data {
		inline = append(inline, recv(100), send(op, 40, func(wr *verbs.SendWR) { wr.Flags |= verbs.SendInline }),
			func(s *script) { clear(s.a.mr.Buf()[:40]) }, recv(100), send(op, 0, func(wr *verbs.SendWR) { wr.Flags |= verbs.SendInline }))
		cut := func(wr *verbs.SendWR) {
			g := wr.SGList[0]
			wr.SGList = []verbs.SGE{{Addr: g.Addr, Length: 7, LKey: g.LKey}, {LKey: 1},
				{Addr: g.Addr + 7, Length: g.Length - 7, LKey: g.LKey}}
		}
		lists = append(lists, func(s *script) {
			s.recv(s.b.mr.SGE(testMemory/2, 1), s.b.mr.SGE(0, 0), s.b.mr.SGE(testMemory*3/4, 5000))
		}, send(op, 5001, cut), func(s *script) { s.recv(s.b.mr.SGE(testMemory/2, 5001)) },
			send(verbs.Send, 5001, cut), send(verbs.RDMARead, 5001, cut))
	}
	cases["everything"], cases["inline"], cases["lists"] = everything, inline, lists
	for name, acts := range cases {
		for _, transport := range transports {
			t.Run(fmt.Sprintf("%s/%v", name, transport), func(t *testing.T) {
				t.Parallel() // each waits until no more events arrive
				var want string
				for _, w := range ways {
					w.setting.transport = transport
					got := runScript(t, w.setting, func(s *script) {
						for _, a := range acts {
							a(s)
						}
					})
					if want == "" {
						want = got
						continue
					}
					if got != want {
						t.Errorf("%s:\n%s\nin packets:\n%s", w.name, got, want)
					}
				}
			})
		}
	}
}

// script performs work from a to b, and records the outcome.
type script struct {
	t                 *testing.T
	a, b              *end
	transport         verbs.Transport
	local, remote     *verbs.MR
	readOnly, otherPD *verbs.MR // of b
	constant          *verbs.MR // of a
	posted            int
	ids               uint64
	outcome           strings.Builder
	failed            bool
}

func runScript(t *testing.T, set setting, work func(*script)) string {
	t.Helper()
	e := &newEnds(t, set, testMemory).side
	s := &script{t: t, a: &e[0], b: &e[1], transport: set.transport, local: e[0].mr, remote: e[1].mr}
	r := rand.NewChaCha8([32]byte{1})
	for i := range e {
		_, _ = r.Read(e[i].mr.Buf())
	}
	buf := make([]byte, 4096)
	region := func(pd *verbs.PD, access verbs.Access) *verbs.MR {
		mr, err := pd.RegMR(buf, access)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { mr.Close() })
		return mr
	}
	other, err := e[1].PD().Device().AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	s.readOnly, s.otherPD = region(e[1].PD(), verbs.AccessRemoteRead), region(other, iwarpAccess)
	s.constant = region(e[0].PD(), 0)
	before := s.a.direct(t)
	work(s)
	for i := range e {
		fmt.Fprintf(&s.outcome, "%c: %v, memory %x\n", 'a'+i, e[i].QP().State(), crc32.ChecksumIEEE(e[i].mr.Buf()))
	}
	if n := s.a.direct(t) - before; set.wrap != nil && n > 0 || set.wrap == nil && !s.failed && n < uint64(s.posted) {
		t.Errorf("%d of %d messages went without packets", n, s.posted)
	}
	return s.outcome.String()
}

// recv posts a receive on b.
func (s *script) recv(list ...verbs.SGE) {
	s.t.Helper()
	s.ids++
	if err := s.b.QP().PostRecv(&verbs.RecvWR{WRID: s.ids, SGList: list}); err != nil {
		s.t.Fatal(err)
	}
}

// send posts one request on a, and waits for its completions and events.
func (s *script) send(op verbs.WROpcode, n int, changes ...func(*verbs.SendWR)) {
	s.t.Helper()
	if s.failed || op == verbs.SendWithImm && s.transport == verbs.IWARP {
		return
	}
	s.ids++
	wr := &verbs.SendWR{
		WRID: s.ids, Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{s.local.SGE(0, n)}, ImmData: uint32(s.ids) * 77,
		RemoteAddr: s.remote.Addr(), RKey: s.remote.RKey(), CompareAdd: 3, Swap: 9,
	}
	for _, c := range changes {
		c(wr)
	}
	s.posted++
	if err := s.a.QP().PostSend(wr); err != nil {
		s.t.Fatal(err)
	}
	wc := s.a.next(s.t)
	s.tell("a", &wc)
	good := wc.Status == verbs.WCSuccess
	if good && slices.Contains([]verbs.WROpcode{verbs.Send, verbs.SendWithImm, verbs.RDMAWriteWithImm}, op) {
		wc := s.b.next(s.t)
		s.tell("b", &wc)
		good = wc.Status == verbs.WCSuccess
	} else if good && op == verbs.RDMAWrite && s.transport == verbs.IWARP {
		good = s.arrived()
	}
	if good {
		return
	}
	// The connection ends, and nothing else is recorded. RoCE's responder gets no message about an
	// error of its requester.
	s.failed = true
	for i, e := range []*end{s.a, s.b} {
		if i == 1 && s.transport == verbs.RoCEv2 && wc.Status == verbs.WCLocProtErr {
			continue
		}
		for deadline := time.Now().Add(time.Minute); e.QP().State() != verbs.StateErr; {
			if time.Now().After(deadline) {
				s.t.Fatalf("QP %#x is in %v after a failure", e.QP().Num(), e.QP().State())
			}
			e.poll(s.t)
		}
	}
	for i, e := range []*end{s.a, s.b} {
		for {
			n := e.poll(s.t)
			for j := range e.wcs[:n] {
				s.tell(string(rune('a'+i)), &e.wcs[j])
			}
			if n == 0 {
				break
			}
		}
	}
	s.events()
}

// events records the events of both devices, which may be one device.
func (s *script) events() {
	var outcome []string
	for _, e := range []*end{s.a, s.b} {
		for {
			ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Millisecond)
			ev, err := e.Device.GetAsyncEvent(ctx)
			cancel()
			if err != nil {
				break
			}
			who := "a"
			if ev.QP == s.b.QP() {
				who = "b"
			}
			outcome = append(outcome, fmt.Sprintf("%s: event %v\n", who, ev.Type))
		}
	}
	slices.Sort(outcome)
	s.outcome.WriteString(strings.Join(outcome, ""))
}

// arrived reports whether the peer accepted a WRITE, whose completion does not tell. A READ after
// it is answered only if it did.
func (s *script) arrived() bool {
	s.ids++
	s.posted++
	err := s.a.QP().PostSend(&verbs.SendWR{WRID: s.ids, Opcode: verbs.RDMARead, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{s.a.mr.SGE(0, 0)}})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.a.next(s.t).Status == verbs.WCSuccess
}

func (s *script) tell(who string, wc *verbs.WC) {
	fmt.Fprintf(&s.outcome, "%s: %d %v", who, wc.WRID, wc.Status)
	if wc.Status == verbs.WCSuccess {
		fmt.Fprintf(&s.outcome, " %v %d %v %d", wc.Opcode, wc.ByteLen, wc.Flags, wc.ImmData)
	}
	s.outcome.WriteByte('\n')
}

// TestDirectNotReady checks a SEND without a receive request. It is sent in packets and answered by
// RNR NAKs until there is one. The requests after it stay in order. After that messages are copied
// directly again.
func TestDirectNotReady(t *testing.T) {
	e := &newEnds(t, setting{transport: verbs.RoCEv2, devices: 2}, testMemory).side
	const n = 20
	for round := range 3 {
		for i := range n {
			e[0].mr.Buf()[i] = byte(10*round + i)
			e[0].post(t, &verbs.SendWR{WRID: uint64(i), Opcode: verbs.Send, Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{e[0].mr.SGE(i, 1)}})
		}
		var recvs []*verbs.RecvWR
		for i := range n {
			recvs = append(recvs, &verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{e[1].mr.SGE(i, 1)}})
		}
		// Together, so that no retry finds only some of them.
		if err := e[1].QP().PostRecv(recvs...); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			for j := range e {
				if wc := e[j].next(t); wc.Status != verbs.WCSuccess || wc.WRID != uint64(i) {
					t.Fatalf("round %d: %+v, want WR %d", round, wc, i)
				}
			}
		}
		if !bytes.Equal(e[0].mr.Buf()[:n], e[1].mr.Buf()[:n]) {
			t.Fatalf("round %d: received %v", round, e[1].mr.Buf()[:n])
		}
	}
	if d := e[0].direct(t); d < 3*(n-1) || d >= 3*n {
		t.Errorf("%d of %d messages went without packets, want all but the first of each round", d, 3*n)
	}
}

// TestDirectSeen checks that messages are sent in packets while packets are captured.
func TestDirectSeen(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport.String(), func(t *testing.T) {
			var file bytes.Buffer
			first := true
			e := &newEnds(t, setting{transport: transport, devices: 2, wrap: func(l link.Link) link.Link {
				if !first {
					return l
				}
				first = false
				c, err := capture.New(l, &file)
				if err != nil {
					t.Fatal(err)
				}
				return c
			}}, testMemory).side
			for i := range e {
				copy(e[i].mr.Buf(), "visible on the wire")
				e[i].post(t, &verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e[i].mr.SGE(0, 22)},
					RemoteAddr: e[1-i].mr.Addr() + 100, RKey: e[1-i].mr.RKey()})
				e[i].take(t)
				if e[i].direct(t) != 0 {
					t.Errorf("end %d: a message was sent without packets", i)
				}
			}
		})
	}
}

// TestDirectBothBusy sends numbered messages in both directions at the same time, with WRITEs
// between them, on several pairs of the same devices. RoCE's receivers may not be ready, so that
// messages alternate between packets and memory.
func TestDirectBothBusy(t *testing.T) {
	everyWay(t, func(t *testing.T, s setting) {
		const pairs = 3
		messages := stacktest.Size(1000, 3000, 3000)
		if testing.Short() || s.wrap != nil {
			messages = 300
		}
		s.lan = new(pipe.Switch)
		var wg sync.WaitGroup
		all := make([]*ends, pairs)
		for i := range all {
			if i > 0 {
				s.devs = all[0].devs
			}
			all[i] = newEnds(t, s, testMemory)
		}
		for i := range all {
			e := &all[i].side
			// Messages that each end has received and posted a receive for.
			var taken [2]atomic.Int64
			for i := range e {
				wg.Go(func() {
					if err := e[i].exchange(&e[1-i], messages, s.transport == verbs.IWARP, &taken[i], &taken[1-i]); err != nil {
						t.Errorf("end %d: %v", i, err)
					}
				})
			}
		}
		wg.Wait()
	})
}

// window is the number of receives that an end of exchange has posted.
const window = 32

// exchange sends n numbered messages, each after a WRITE of its number. It receives as many, and
// checks both.
func (e *end) exchange(peer *end, n int, credit bool, taken, peerTaken *atomic.Int64) error {
	const slot = 64
	recv := func(i int) error {
		return e.QP().PostRecv(&verbs.RecvWR{WRID: uint64(i)<<1 | 1, SGList: []verbs.SGE{e.mr.SGE(i%window*slot, 8)}})
	}
	for i := range window {
		if err := recv(i); err != nil {
			return err
		}
	}
	taken.Add(window) // the peer may begin
	sent, done, got := 0, 0, 0
	deadline := time.Now().Add(time.Minute)
	out := e.mr.Buf()[testMemory/2:]
	for done < n || got < n {
		// A slot is written again once the peer has read it, so that there is no data race.
		for ; sent < n && sent-done < 16 && int64(sent) < peerTaken.Load() && (credit || sent-done < 16); sent++ {
			binary.LittleEndian.PutUint64(out[sent%window*slot:], uint64(sent))
			mine := []verbs.SGE{e.mr.SGE(testMemory/2+sent%window*slot, 8)}
			err := e.QP().PostSend(
				&verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: mine,
					RemoteAddr: peer.mr.Addr() + uint64(window*slot+sent%window*slot), RKey: peer.mr.RKey()},
				&verbs.SendWR{WRID: uint64(sent) << 1, Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: mine})
			if err != nil {
				return err
			}
		}
		k, err := e.cq.Poll(e.wcs[:])
		if err != nil {
			return err
		}
		for i := range e.wcs[:k] {
			wc := &e.wcs[i]
			if wc.Status != verbs.WCSuccess {
				return fmt.Errorf("WR %d: %v", wc.WRID, wc.Status)
			}
			if wc.WRID&1 == 0 {
				if wc.WRID>>1 != uint64(done) {
					return fmt.Errorf("send %d completes, want %d", wc.WRID>>1, done)
				}
				done++
				continue
			}
			at := got % window * slot
			number, written := binary.LittleEndian.Uint64(e.mr.Buf()[at:]), binary.LittleEndian.Uint64(e.mr.Buf()[window*slot+at:])
			if wc.WRID>>1 != uint64(got) || number != uint64(got) || written != uint64(got) {
				return fmt.Errorf("receive %d: message %d after WRITE %d, want %d", wc.WRID>>1, number, written, got)
			}
			got++
			if err := recv(got + window - 1); err != nil {
				return err
			}
			taken.Add(1)
		}
		if k == 0 {
			if time.Now().After(deadline) {
				return fmt.Errorf("stuck: %d sent, %d done, %d received of %d", sent, done, got, n)
			}
			runtime.Gosched()
		}
	}
	return nil
}

// TestDirectClosed closes QPs while both sides send to each other. Nothing hangs, and nothing
// leaks.
func TestDirectClosed(t *testing.T) {
	everyWay(t, func(t *testing.T, s setting) {
		rounds := stacktest.Size(8, 20, 20)
		s.lan = new(pipe.Switch)
		for round := range rounds {
			pair := newEnds(t, s, testMemory)
			s.devs = pair.devs
			e := &pair.side
			var wg sync.WaitGroup
			var gone atomic.Bool
			for i := range e {
				wg.Go(func() {
					for j := 0; !gone.Load(); j++ {
						op := []verbs.WROpcode{verbs.RDMAWrite, verbs.RDMARead}[j%2]
						err := e[i].QP().PostSend(&verbs.SendWR{WRID: 1, Opcode: op, Flags: verbs.SendSignaled,
							SGList:     []verbs.SGE{e[i].mr.SGE(i*testMemory/2, 5000)},
							RemoteAddr: e[1-i].mr.Addr() + uint64(i*testMemory/2), RKey: e[1-i].mr.RKey()})
						if err != nil && !errors.Is(err, verbs.ErrQueueFull) {
							return
						}
						for {
							n, err := e[i].cq.Poll(e[i].wcs[:])
							if err != nil {
								t.Error(err)
							}
							if n > 0 && e[i].wcs[0].Status != verbs.WCSuccess {
								return // the other is closed
							}
							if n == 0 {
								break
							}
						}
					}
				})
			}
			for range round * 10 {
				_ = e[0].QP().State()
			}
			if err := e[round%2].QP().Close(); err != nil {
				t.Error(err)
			}
			gone.Store(true)
			wg.Wait()
		}
	})
}

// TestDirectDereg checks that neither side writes to the memory after MR.Close has returned.
func TestDirectDereg(t *testing.T) {
	everyWay(t, func(t *testing.T, s setting) {
		rounds := stacktest.Size(8, 30, 30)
		s.lan = new(pipe.Switch)
		for round := range rounds {
			pair := newEnds(t, s, testMemory)
			s.devs = pair.devs
			e := &pair.side
			// a's READs, or WRITEs to b, access the victim.
			victimOf, op := &e[1], verbs.RDMAWrite
			if round%2 == 1 {
				victimOf, op = &e[0], verbs.RDMARead
			}
			victim, err := victimOf.PD().RegMR(touched(256<<10), iwarpAccess)
			if err != nil {
				t.Fatal(err)
			}
			wr := &verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e[0].mr.SGE(0, 256<<10)},
				RemoteAddr: victim.Addr(), RKey: victim.RKey()}
			if op == verbs.RDMARead {
				wr.SGList[0] = victim.SGE(0, 256<<10)
				wr.RemoteAddr, wr.RKey = e[1].mr.Addr(), e[1].mr.RKey()
			}
			posting := make(chan struct{})
			go func() {
				defer close(posting)
				for {
					if err := e[0].QP().PostSend(wr); err != nil && !errors.Is(err, verbs.ErrQueueFull) {
						return
					}
					if n, err := e[0].cq.Poll(e[0].wcs[:]); err != nil || n > 0 && e[0].wcs[n-1].Status != verbs.WCSuccess {
						return
					}
				}
			}()
			for range round {
				_ = e[1].QP().State()
			}
			if err := victim.Close(); err != nil {
				t.Fatal(err)
			}
			for i := range victim.Buf() {
				victim.Buf()[i] = 2
			}
			<-posting
			if i := slices.IndexFunc(victim.Buf(), func(b byte) bool { return b != 2 }); i >= 0 {
				t.Fatalf("round %d: byte %d was written after deregistration", round, i)
			}
		}
	})
}

// TestDirectToOneself connects a QP to itself.
func TestDirectToOneself(t *testing.T) {
	dev := newDevice(t, new(pipe.Switch).Port(), "10.0.0.1", nil)
	pd, err := dev.AllocPD()
	check(err)
	cq, err := dev.CreateCQ(64, nil)
	check(err)
	buf := make([]byte, 64)
	mr, err := pd.RegMR(buf, iwarpAccess)
	check(err)
	qp, err := pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, Transport: verbs.RoCEv2, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}})
	check(err)
	n := &node{dev: dev.Device, mr: mr, cq: cq, qp: qp, buf: buf}
	n.connect(n)
	copy(buf, "oneself")
	check(qp.PostRecv(&verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{mr.SGE(16, 7)}}))
	check(qp.PostSend(
		&verbs.SendWR{WRID: 2, Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, 7)}},
		&verbs.SendWR{WRID: 3, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, 7)},
			RemoteAddr: mr.Addr() + 32, RKey: mr.RKey()}))
	for _, want := range []uint64{2, 1, 3} {
		if wc := wait(cq); wc.WRID != want || wc.Status != verbs.WCSuccess {
			t.Errorf("%+v, want WR %d", wc, want)
		}
	}
	if string(buf[16:23]) != "oneself" || string(buf[32:39]) != "oneself" {
		t.Errorf("memory is %q", buf)
	}
	for _, f := range []func() error{qp.Close, mr.Close, cq.Close, pd.Close} {
		check(f())
	}
}
