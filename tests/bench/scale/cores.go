//go:build linux

package main

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/verbs"
)

// forEach is how long a goroutine sends in a round.
const forEach = 100 * time.Millisecond

// loads are the work of each goroutine, on its own QP and CQ.
var loads = []struct {
	what   string
	alone  bool // UC, whose frames the link discards: only the sender's work, up to the link
	size   int  // of a WRITE, in bytes
	memory int  // on either side, which WRITEs use in turn
}{
	{"direct", false, 8, 4 << 10},
	{"direct", false, 64 << 10, 64 << 10},
	{"direct", false, 64 << 10, 16 << 20},
	{"sender alone", true, 8, 4 << 10},
	{"sender alone", true, 64 << 10, 64 << 10},
	{"sender alone", true, 64 << 10, 16 << 20},
}

// cores prints the work of one goroutine and of several, up to one per processor, in the same time.
// They use one device, or a device each, which shows the cost of sharing a device. The CPU time of
// a message shows the same where the processors are not idle.
func cores(o *options) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tbytes\tmemory\tgoroutines\tdevices\ta second\tof one's\tCPU ns each\tof one's\t")
	for _, l := range loads {
		var teams []*team
		for n := 1; n <= runtime.GOMAXPROCS(0); n *= 2 {
			for _, devices := range []int{1, n}[:min(n, 2)] {
				t := &team{devices: devices}
				for i := range n {
					if i < devices {
						if err := t.open(l.alone); err != nil {
							return err
						}
					}
					if err := t.join(t.nodes[i%devices], l.alone, l.size, l.memory); err != nil {
						return err
					}
				}
				teams = append(teams, t)
			}
		}
		for _, t := range teams {
			t.discard.Store(l.alone) // the peers have resolved each other's address
		}
		for range o.rounds {
			for _, t := range teams {
				if err := t.round(); err != nil {
					return err
				}
			}
		}
		for _, t := range teams {
			rate, each := median(t.rates), median(t.cpu)
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%.3g\t%.2f\t%.0f\t%.2f\t\n", l.what, l.size, l.memory, len(t.writers), t.devices,
				rate, rate/median(teams[0].rates), each, each/median(teams[0].cpu))
		}
	}
	return w.Flush()
}

// team is a set of writers that write at the same time.
type team struct {
	devices int // of the writers
	discard atomic.Bool
	nodes   [][2]*node // a device, and its peer
	writers []*writer

	rates []float64 // messages per second of all writers
	cpu   []float64 // CPU ns of the process per message
}

// discarding is a link that discards IP packets while on is set.
type discarding struct {
	link.Link
	on *atomic.Bool
}

func (d discarding) Write(frames []link.Frame) (int, error) {
	// Not ARP.
	if d.on.Load() && len(frames) > 0 && frames[0].Data[12] == 8 && frames[0].Data[13] == 0 {
		return len(frames), nil
	}
	return d.Link.Write(frames)
}

// open adds a device and its peer.
func (t *team) open(alone bool) error {
	wrap := func(l link.Link) link.Link { return l }
	if alone {
		wrap = func(l link.Link) link.Link { return discarding{l, &t.discard} }
	}
	nodes, err := newNodesOn(wrap, inFlight)
	t.nodes = append(t.nodes, nodes)
	return err
}

// join adds a writer.
func (t *team) join(nodes [2]*node, alone bool, size, memory int) error {
	var own [2]*node
	for i, n := range nodes {
		var err error
		if own[i], err = n.withCQ(inFlight); err != nil {
			return err
		}
	}
	local, err := own[0].pd.RegMR(make([]byte, memory), 0)
	if err != nil {
		return err
	}
	remote, err := own[1].pd.RegMR(make([]byte, memory), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	kind := verbs.RC
	if alone {
		if err := resolve(own); err != nil {
			return err
		}
		kind = verbs.UC
	}
	qps, err := pair(own, kind, inFlight)
	t.writers = append(t.writers, &writer{qp: qps[0], cq: own[0].cq, local: local, remote: remote, wcs: make([]verbs.WC, inFlight),
		wr: verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, RKey: remote.RKey()}, size: size, memory: memory})
	return err
}

// resolve lets two nodes learn each other's Ethernet address.
func resolve(nodes [2]*node) error {
	r, err := newRing(nodes, 1)
	if err != nil {
		return err
	}
	return r.send(1)
}

// round runs all writers and adds a sample.
func (t *team) round() error {
	var ready, done sync.WaitGroup
	begin := make(chan struct{})
	errs := make(chan error, len(t.writers))
	for _, w := range t.writers {
		w.written = 0
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-begin
			errs <- w.write(time.Now().Add(forEach))
		})
	}
	ready.Wait()
	from := now()
	close(begin)
	done.Wait()
	to, n := now(), 0
	for _, w := range t.writers {
		if err := <-errs; err != nil {
			return err
		}
		n += w.written
	}
	t.rates = append(t.rates, float64(n)/to.time.Sub(from.time).Seconds())
	t.cpu = append(t.cpu, float64((to.cpu-from.cpu).Nanoseconds())/float64(n))
	return nil
}

// writer writes on one QP.
type writer struct {
	qp            *verbs.QP
	cq            *verbs.CQ
	local, remote *verbs.MR
	wr            verbs.SendWR
	sge           [1]verbs.SGE // the SGE of wr
	wcs           []verbs.WC
	size, memory  int
	at            int // in memory
	written       int

	_ [64]byte // keeps writers in different cache lines
}

// write writes until the given time, with inFlight messages in flight.
func (w *writer) write(until time.Time) error {
	w.wr.SGList = w.sge[:]
	for time.Now().Before(until) {
		for range inFlight {
			w.sge[0], w.wr.RemoteAddr = w.local.SGE(w.at, w.size), w.remote.Addr()+uint64(w.at)
			if err := w.qp.PostSend(&w.wr); err != nil {
				return err
			}
			w.at = (w.at + w.size) % w.memory
		}
		for left := inFlight; left > 0; {
			n, err := w.cq.Poll(w.wcs)
			if err != nil {
				return err
			}
			for _, wc := range w.wcs[:n] {
				if wc.Status != verbs.WCSuccess {
					return fmt.Errorf("a WRITE: %v", wc.Status)
				}
			}
			left -= n
		}
		w.written += inFlight
	}
	return nil
}
