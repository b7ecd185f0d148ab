//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/tap"
	"github.com/softrnic/softrnic/tests/internal/namespace"
	"github.com/softrnic/softrnic/verbs"
)

// trips is the number of round trips of which a timeline shows the medians. Some go before.
const (
	trips       = 20_000
	tripsBefore = 2_000
)

// stamps are the moments of half a round trip at one side, since the beginning. If there are
// several frames, they are of the first that is written and of the last that is received.
type stamps struct {
	received, processed time.Duration // the link passes the frame on, and gets it back
	polled              time.Duration // CQ.Poll returns the completion
	post                time.Duration // PostSend is called, after PostRecv
	write, written      time.Duration // the link is called to write the answer, and returns
	posted              time.Duration // PostSend returns
	reads, writes       int           // calls that passed frames on, and calls to write
}

// stamped is a link that stamps its calls. All are made by the side's goroutine, because it polls
// without a pause: the link's own goroutine does not read.
type stamped struct {
	*tap.Link
	began time.Time
	now   stamps
}

func (s *stamped) Attach(recv link.Receiver) {
	s.Link.Attach(func(frames []link.Frame) {
		s.now.received = time.Since(s.began)
		recv(frames)
		s.now.processed = time.Since(s.began)
		s.now.reads++
	})
}

func (s *stamped) Write(frames []link.Frame) (int, error) {
	at := time.Since(s.began)
	n, err := s.Link.Write(frames)
	if s.now.writes++; s.now.post > 0 && s.now.write == 0 {
		s.now.write, s.now.written = at, time.Since(s.began)
	}
	return n, err
}

// timeline prints where half a round trip of a SEND of 8 bytes over TAP goes.
func timeline(*options) error {
	processors, err := twoProcessors()
	if err != nil {
		return err
	}
	var nodes [2]*node
	var links [2]*stamped
	began := time.Now()
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		made <- func() error {
			ns, err := netns.New()
			if err != nil {
				return fmt.Errorf("making a network namespace: %w", err)
			}
			return namespace.Do(ns, func() error { return openTAPs(&nodes, &links, began) })
		}()
	}()
	if err := <-made; err != nil {
		return err
	}
	qps, err := pair(nodes, verbs.RC, 16)
	if err != nil {
		return err
	}
	var all [2][]stamps
	errs := make(chan error, 2)
	for i := range nodes {
		p := &pinger{node: nodes[i], link: links[i], qp: qps[i], first: i == 0, all: &all[i]}
		if err := p.prepare(); err != nil {
			return err
		}
		go func() { errs <- p.run(processors[i]) }()
	}
	for range nodes {
		if err := <-errs; err != nil {
			return err
		}
	}
	return printTimeline(all)
}

// twoProcessors returns the numbers of two processors that this process may use.
func twoProcessors() (two [2]int, err error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return two, err
	}
	n := 0
	for i := 0; n < len(two) && i < 1024; i++ {
		if all.IsSet(i) {
			two[n] = i
			n++
		}
	}
	if n < len(two) {
		return two, errors.New("the two sides need a processor each")
	}
	return two, nil
}

// openTAPs opens two nodes on TAPs of a bridge.
func openTAPs(nodes *[2]*node, links *[2]*stamped, began time.Time) error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return err
	}
	for i := range nodes {
		l, err := tap.Open(fmt.Sprintf("rnic%d", i), &tap.Config{Bridge: bridge.Name, Wait: link.WaitPoll})
		if err != nil {
			return err
		}
		links[i] = &stamped{Link: l, began: began}
		if nodes[i], err = newNode(links[i], fmt.Sprintf("10.0.0.%d/24", i+1), 16); err != nil {
			return err
		}
	}
	return nil
}

// pinger is a side of the exchange.
type pinger struct {
	*node
	link  *stamped
	qp    *verbs.QP
	first bool
	send  verbs.SendWR
	recv  verbs.RecvWR
	all   *[]stamps
}

// prepare registers memory and posts the first receive request.
func (p *pinger) prepare() error {
	mr, err := p.pd.RegMR(make([]byte, 2*message), verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	p.send = verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, message)}}
	p.recv = verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(message, message)}}
	return p.qp.PostRecv(&p.recv)
}

// run exchanges messages, on a processor of its own.
func (p *pinger) run(processor int) error {
	runtime.LockOSThread()
	var one unix.CPUSet
	one.Set(processor)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	now := &p.link.now
	for n := range tripsBefore + trips {
		if !p.first || n > 0 {
			if err := p.await(); err != nil {
				return err
			}
			now.polled = time.Since(p.link.began)
			if err := p.qp.PostRecv(&p.recv); err != nil {
				return err
			}
		}
		now.post = time.Since(p.link.began)
		if err := p.qp.PostSend(&p.send); err != nil {
			return err
		}
		now.posted = time.Since(p.link.began)
		if n >= tripsBefore {
			*p.all = append(*p.all, *now)
		}
		*now = stamps{}
	}
	if p.first {
		return p.await()
	}
	return nil
}

// await polls until a message has arrived.
func (p *pinger) await() error {
	var wcs [4]verbs.WC
	for {
		n, err := p.cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			if wc.Status != verbs.WCSuccess {
				return fmt.Errorf("%v: %v", wc.Opcode, wc.Status)
			}
			if wc.Opcode == verbs.WCRecv {
				return nil
			}
		}
	}
}

// printTimeline prints the medians of the stretches, of both sides.
func printTimeline(all [2][]stamps) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "ns\tstretch of half a round trip\t")
	total := 0.0
	row := func(what string, each func(here, there *stamps) time.Duration) {
		var ns []float64
		for side := range all {
			for i := 1; i < trips-1; i++ {
				here, there := &all[side][i], &all[1-side][i]
				if side == 1 {
					there = &all[0][i+1]
				}
				ns = append(ns, float64(each(here, there)))
			}
		}
		slices.Sort(ns)
		m := ns[len(ns)/2]
		total += m
		fmt.Fprintf(w, "%.0f\t%s\t\n", m, what)
	}
	row("PostSend: from the call to the link", func(here, _ *stamps) time.Duration { return here.write - here.post })
	row("from the link that writes to the link that has read", func(here, there *stamps) time.Duration {
		return there.received - here.write
	})
	row("the frame is processed", func(_, there *stamps) time.Duration { return there.processed - there.received })
	row("CQ.Poll returns", func(_, there *stamps) time.Duration { return there.polled - there.processed })
	row("PostRecv", func(_, there *stamps) time.Duration { return there.post - there.polled })
	fmt.Fprintf(w, "%.0f\tin all\t\n", total)
	row("of these, after the link has begun to write: its system call",
		func(here, _ *stamps) time.Duration { return here.written - here.write })
	row("at the same time as the other side's: from the end of the system call to that of PostSend",
		func(here, _ *stamps) time.Duration { return here.posted - here.written })
	row("half of what the program measured", func(here, there *stamps) time.Duration { return there.post - here.post })
	reads, writes := 0, 0
	for _, s := range slices.Concat(all[0], all[1]) {
		reads, writes = reads+s.reads, writes+s.writes
	}
	fmt.Fprintf(w, "%.2f\tcalls of the link to write in half a round trip; frames came in %.2f\t\n", float64(writes)/2/trips,
		float64(reads)/2/trips)
	return w.Flush()
}
