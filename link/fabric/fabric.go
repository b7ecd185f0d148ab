// Package fabric is a network inside the process, in virtual time: hosts, switches, and cables with
// a rate and a delay. A program tests itself on it with hundreds of nodes, and the same seed gives
// the same bytes at the same nanosecond.
//
// Each [Host] is a link. Stacks, devices and their packets are the real ones. The network is a
// model: output queues in a buffer that all ports of a switch share, marks by RED ([ECN]), pauses
// by priority ([PFC]), and ways of equal length ([ECMP]). A host's processors, buses and memory
// take no time, and an adapter sends what its QPs have ready in turns.
//
// # Who runs
//
// Without Config.Workers, nothing runs at the same time. The goroutine that calls [Fabric.Run]
// handles events, and runs the processes of [Host.Go] in turn. It may also call what waits, such as
// rdmacm.Dial, and then the fabric runs until the call returns. No other goroutine may use a
// fabric, its hosts and their devices. Their functions for events must not wait, and start a
// process instead.
//
// rdma_cm, rsockets, NVMe over Fabrics (verbs/ulp/nvme) and RPC over RDMA (verbs/ulp/rpcrdma) wait
// in virtual time. The handler of an rpcrdma.Listener is called in a process. It may also wait for
// goroutines that use nothing of the fabric, as those of an NFS server: time stands meanwhile. With
// NVMe's authentication, whose secrets come from the machine, packets differ each time.
//
// iWARP does not work: gVisor's TCP has goroutines of its own, for which virtual time does not
// stop. Its random numbers and timers are the fabric's, but not the order in which these
// goroutines run.
//
// # Workers
//
// With Config.Workers, the hosts of different switches run at the same time, on several processors.
// A worker may be ahead of the others by the shortest delay of a cable between switches
// ([Fabric.Lookahead]): what happens at one switch and its hosts changes nothing elsewhere sooner.
// Packets and digests are the same with any number of workers, and after [Fabric.Run] the same as
// without.
//
// So the functions and processes of a host may use that host and its device only. What they share
// with those of other hosts needs a lock, or belongs to the worker of both ([Host.Worker]). Their
// order is another one each time. The methods of Fabric and Port that change the network or look at
// all of it are for functions of [Host.Alone], and for the goroutine that calls Run, between calls.
// [Process.Until] sees its own host only. [Fabric.Wait] returns up to eight times Fabric.Lookahead
// later than without workers. A call such as rdmacm.Dial on the goroutine that calls Run uses one
// processor.
//
// Workers changes nothing in a network whose hosts are all at one switch, or with a cable without
// delay between switches.
package fabric

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/link"
)

// Config configures a fabric.
type Config struct {
	Topology Topology
	// Seed is that of all random numbers: of switches, and of hosts and their devices.
	Seed uint64
	// Link is what cables have that say nothing else. The default is 100 Gbit/s and 1 µs.
	Link Link
	// MTU is that of all hosts, in bytes; 0 means 4200, enough for RoCE's path MTU of 4096.
	MTU    int
	Switch Switch
	// Class returns the traffic class of a DSCP, 0 to 7. Nil means the upper three bits of the DSCP.
	// Frames without IP have class 0.
	Class func(dscp uint8) uint8
	// Workers is the number of goroutines that run hosts at the same time; see the package's
	// documentation for what this asks of a program. 0 means that nothing runs at the same time.
	Workers int
}

// None stands for zero where 0 means a default.
const None = -1

// orDefault returns the value of a field that may be 0 or None.
func orDefault[T ~int | ~int64](v, otherwise T) T {
	switch v {
	case 0:
		return otherwise
	case None:
		return 0
	}
	return v
}

// Link describes a cable.
type Link struct {
	Rate  float64       // bit/s, in whole ones
	Delay time.Duration // from one end to the other, or None
}

// Switch configures all switches, and the turns of classes at all ports.
type Switch struct {
	// Buffer is the memory of a switch for packets, in bytes, on the wire; 0 means no limit.
	Buffer int
	// Alpha limits an output queue to its product with the memory that is free (Choudhury and Hahne,
	// dynamic thresholds); 0 means 1. Classes with PFC have no such limit.
	Alpha float64
	// Queue limits an output queue, in bytes; 0 means no limit. Classes with PFC have none.
	Queue int
	ECN   ECN
	PFC   PFC
	Trim  Trim
	ECMP  ECMP
	// Weights are those of the classes with less than strict priority. The classes with weight 0
	// send first, the highest before others.
	Weights [classes]int
}

// ECN marks packets by the length of their output queue (RED), if the packet's transport knows ECN:
// none up to Min, with a probability that rises from 0 to P up to Max, then all. With Max 0, no
// packet is marked.
type ECN struct {
	Min, Max int // bytes
	P        float64
	// AtDeparture takes the length when the packet leaves the queue, instead of when it comes. So the
	// sender learns of it sooner, by the time in the queue.
	AtDeparture bool
}

// PFC pauses the sender of a class (IEEE 802.1Qbb) by what is stored of the class that came in at
// one port.
type PFC struct {
	// Classes has a bit for each class with PFC, from 1 for class 0.
	Classes uint8
	// Above Xoff bytes the neighbour is paused, and down from Xon it may send. Xon 0 means Xoff less
	// two packets, and None that nothing is stored.
	Xoff, Xon int
	// Headroom is room above Xoff for what the neighbour sends until it is paused. What exceeds it is
	// lost. 0 means what the cable needs, by its rate and delay, and None that there is no such room.
	Headroom int
}

// ECMP is how a switch chooses among ways of equal length.
type ECMP uint8

// The ways to choose.
const (
	HashFlow ECMP = iota // by addresses and ports
	HashQP               // by the destination QP too
	Spray                // at random for each packet
)

// Counters count what happened in a fabric.
type Counters struct {
	Sent      uint64 // by hosts
	Delivered uint64 // to hosts
	Dropped   uint64 // by switches: for want of room, or of a way
	Trimmed   uint64 // by switches, instead of dropped
	Lost      uint64 // on cables that were down, or had bit errors
	Flushed   uint64 // from queues, by Port.Flush
	Marked    uint64 // with Congestion Experienced
	Pauses    uint64 // PFC frames that stop a class
}

// Fabric is a simulated network. See the package's documentation for who may use it.
type Fabric struct {
	cfg      Config
	classes  [64]uint8 // by DSCP
	strict   uint8     // classes without weights
	hosts    []*Host
	edges    []*Port // of switches, to each host
	switches []*node
	ends     int // of cables

	routes []atomic.Pointer[[]uint16] // by the index of a destination's switch; nil: not known; see node.ways
	search search

	shards    []*shard
	lookahead instant // 0: there is one shard, and nothing happens at the same time
	apart     bool    // the shards run at the same time
	began     instant // when nobody ran at last
	stopping  sync.Mutex
	stop      atomic.Pointer[limit] // where the shards stop
	alone     heap                  // what happens then; see Host.Alone
	mark      atomic.Pointer[mark]  // the last Host.Mark, by virtual time
	work      work
	closing   bool
}

// New makes a fabric. Nothing happens in it until Run.
func New(cfg *Config) (*Fabric, error) {
	f := new(Fabric)
	if cfg != nil {
		f.cfg = *cfg
	}
	if err := f.cfg.complete(); err != nil {
		return nil, err
	}
	for c, w := range f.cfg.Switch.Weights {
		if w == 0 {
			f.strict |= 1 << c
		}
	}
	for dscp := range uint8(64) {
		f.classes[dscp] = dscp >> 3
		if f.cfg.Class != nil {
			f.classes[dscp] = f.cfg.Class(dscp)
		}
		if f.classes[dscp] >= classes {
			return nil, fmt.Errorf("fabric: Class(%d) is %d: there are %d classes", dscp, f.classes[dscp], classes)
		}
	}
	return f, f.build(&f.cfg.Topology)
}

// complete checks a configuration and sets the defaults.
func (c *Config) complete() error {
	if c.MTU == 0 {
		c.MTU = 4200
	}
	if c.MTU < link.MinMTU || c.MTU > link.MaxSuperframe {
		return fmt.Errorf("fabric: MTU is %d: it must be %d to %d", c.MTU, link.MinMTU, link.MaxSuperframe)
	}
	if c.Workers < 0 || c.Workers > MaxWorkers {
		return fmt.Errorf("fabric: Workers is %d: it must be 0 to %d", c.Workers, MaxWorkers)
	}
	if c.Link.Rate == 0 {
		c.Link.Rate = 100e9
	}
	c.Link.Delay = orDefault(c.Link.Delay, time.Microsecond)
	s := &c.Switch
	if s.Alpha == 0 {
		s.Alpha = 1
	}
	const maxBytes, maxWeight = 1 << 30, 1000
	for _, n := range []struct {
		name     string
		is, most int
	}{{"Buffer", s.Buffer, maxBytes}, {"Queue", s.Queue, maxBytes}, {"ECN.Min", s.ECN.Min, maxBytes}, {"ECN.Max", s.ECN.Max, maxBytes},
		{"PFC.Xoff", s.PFC.Xoff, maxBytes}, {"PFC.Xon", orDefault(s.PFC.Xon, 0), maxBytes},
		{"PFC.Headroom", orDefault(s.PFC.Headroom, 0), maxBytes},
		{"Weights", slices.Min(s.Weights[:]), maxWeight}, {"Weights", slices.Max(s.Weights[:]), maxWeight}} {
		if n.is < 0 || n.is > n.most {
			return fmt.Errorf("fabric: Switch.%s is %d: it must be 0 to %d", n.name, n.is, n.most)
		}
	}
	if s.Trim.Size == 0 {
		s.Trim.Size = trimSize
	}
	switch e := s.ECN; {
	case s.Trim.DSCP > 63:
		return fmt.Errorf("fabric: Switch.Trim.DSCP is %d: it must be 0 to 63", s.Trim.DSCP)
	case s.Trim.Size < minTrimSize || s.Trim.Size > maxTrimSize:
		return fmt.Errorf("fabric: Switch.Trim.Size is %d: it must be %d to %d, or 0 for %d", s.Trim.Size, minTrimSize, maxTrimSize, trimSize)
	case !(s.Alpha > 0):
		return fmt.Errorf("fabric: Switch.Alpha is %v: it must be positive", s.Alpha)
	case e.Max != 0 && e.Max < e.Min:
		return fmt.Errorf("fabric: Switch.ECN.Max is %d: it must not be less than Min, %d", e.Max, e.Min)
	case !(e.P >= 0 && e.P <= 1):
		return fmt.Errorf("fabric: Switch.ECN.P is %v: it must be 0 to 1", e.P)
	case s.ECMP > Spray:
		return fmt.Errorf("fabric: Switch.ECMP is %d: it must be HashFlow, HashQP or Spray", s.ECMP)
	case s.PFC.Classes != 0 && s.PFC.Xoff == 0:
		return errors.New("fabric: Switch.PFC.Xoff is 0: it must be positive if there are Classes")
	case s.PFC.Xon > s.PFC.Xoff:
		return fmt.Errorf("fabric: Switch.PFC.Xon is %d: it must not be more than Xoff, %d", s.PFC.Xon, s.PFC.Xoff)
	}
	if err := c.Link.check("Link"); err != nil {
		return err
	}
	s.PFC.Xon = orDefault(s.PFC.Xon, max(s.PFC.Xoff-2*(c.MTU+link.EthernetHeaderLen+overhead), 0))
	return nil
}

// maxFrame is the length of the longest frame.
func (f *Fabric) maxFrame() int { return f.cfg.MTU + link.EthernetHeaderLen + 2*link.TagLen }

func (l *Link) check(name string) error {
	switch {
	case !(l.Rate >= 1e6 && l.Rate <= 8e12):
		return fmt.Errorf("fabric: %s.Rate is %v: it must be 1e6 to 8e12 bit/s", name, l.Rate)
	case l.Delay < 0 || l.Delay > time.Second:
		return fmt.Errorf("fabric: %s.Delay is %v: it must be 0 to one second", name, l.Delay)
	}
	return nil
}

// Random numbers are those of a host, of a switch, or of a cable with bit errors, so that nothing
// depends on how many the others take. Below ofSwitches are those of hosts.
const (
	ofSwitches = 1 << 32
	ofCables   = 2 << 32
)

func (f *Fabric) newRandom(of uint64) *rand.ChaCha8 {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], f.cfg.Seed)
	binary.LittleEndian.PutUint64(seed[8:], of)
	return rand.NewChaCha8(seed)
}

// Hosts returns the hosts.
func (f *Fabric) Hosts() []*Host { return slices.Clone(f.hosts) }

// Now returns the virtual time since the fabric began. While hosts run at the same time, it is the
// last time at which none did, such as that when Run was called: see Host.Now.
func (f *Fabric) Now() time.Duration {
	if f.apart {
		return time.Duration(f.began / nanosecond)
	}
	return time.Duration(f.shards[0].now / nanosecond)
}

// Counters returns the counters of all hosts and switches.
func (f *Fabric) Counters() Counters {
	f.mustBeAlone("Fabric.Counters")
	var all Counters
	for _, s := range f.shards {
		all.add(&s.counters)
	}
	return all
}

func (c *Counters) add(o *Counters) {
	c.Sent += o.Sent
	c.Delivered += o.Delivered
	c.Dropped += o.Dropped
	c.Trimmed += o.Trimmed
	c.Lost += o.Lost
	c.Flushed += o.Flushed
	c.Marked += o.Marked
	c.Pauses += o.Pauses
}

// Run lets virtual time pass.
func (f *Fabric) Run(d time.Duration) {
	end := f.shards[0].now.after(d)
	f.advance(end, nil)
	f.setNow(max(f.shards[0].now, end))
}

// Next returns the time of the next event, if there is one. Until then nothing changes, unless the
// caller changes it.
func (f *Fabric) Next() (at time.Duration, ok bool) {
	f.mustBeAlone("Fabric.Next")
	if f.someRunnable() {
		return f.Now(), true
	}
	_, first := f.first()
	if first == nil {
		return 0, false
	}
	return time.Duration((first.at + nanosecond - 1) / nanosecond), true
}

// Wait runs the fabric until all processes have ended, but at most for a virtual time. The error
// says which hosts have processes left.
func (f *Fabric) Wait(most time.Duration) error {
	end := f.shards[0].now.after(most)
	ended := func() bool {
		for _, s := range f.shards {
			if s.processes > 0 {
				return false
			}
		}
		return true
	}
	if f.lookahead > 0 && f.runApart(end, ended) || f.lookahead == 0 && f.advance(end, ended) {
		return nil
	}
	var left []string
	for _, s := range f.shards {
		for p := range s.live {
			if !p.server {
				left = append(left, p.host.name)
			}
		}
	}
	slices.Sort(left)
	return fmt.Errorf("fabric: at %v, processes of %s have not ended", f.Now(), strings.Join(slices.Compact(left), ", "))
}

// Close ends the processes, at the places where they wait: their deferred functions run, and do not
// wait. Devices may be closed before or afterwards.
func (f *Fabric) Close() {
	if f.busy() {
		panic("fabric: a process or a callback closes the fabric")
	}
	f.closing = true
	defer func() {
		if len(f.live()) > 0 { // a deferred function has panicked, or ended the goroutine
			f.Close()
		}
		f.closing = false
		for _, h := range f.hosts {
			h.parked = nil
		}
	}()
	for live := f.live(); len(live) > 0; live = f.live() { // deferred functions may start further ones
		for _, p := range live {
			p.end()
		}
	}
}

// live returns the processes that have not ended, those of a worker in the order of their starts.
func (f *Fabric) live() (all []*Process) {
	for _, s := range f.shards {
		all = slices.AppendSeq(all, maps.Keys(s.live))
	}
	slices.SortFunc(all, func(a, b *Process) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.host.index, b.host.index))
	})
	return all
}
