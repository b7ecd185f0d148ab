package ethswitch

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/fabric"
)

// network is a simulated network between the ports of a switch, whose virtual time follows the real
// one. Each port takes the place of a host. What a place receives goes to its port's link.
type network struct {
	mu      sync.Mutex
	fabric  *fabric.Fabric
	began   time.Time
	free    []*fabric.Host // places, the first one first
	cutter  link.Cutter
	arrived []arrival
	unused  [][]byte      // buffers of earlier arrivals, at most maxUnused
	due     time.Time     // when run goes on
	sooner  chan struct{} // run has to go on before that
}

// maxUnused is the most buffers that wait for further arrivals, and maxArrived the most frames that
// wait for run, as when a link takes long.
const (
	maxUnused  = 1024
	maxArrived = 1 << 14
)

// arrival is a frame that a place has received.
type arrival struct {
	port  *port
	frame []byte
}

func newNetwork(f *fabric.Fabric) *network {
	return &network{fabric: f, began: time.Now(), free: f.Hosts(), sooner: make(chan struct{}, 1)}
}

// add gives a port a place, and returns its name.
func (n *network) add(p *port) (place string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.free) == 0 {
		return "", fmt.Errorf("the network has %d hosts, and ports have taken the places of all", len(n.fabric.Hosts()))
	}
	p.host, n.free = n.free[0], n.free[1:]
	p.host.Attach(func(frames []link.Frame) {
		for i := range frames {
			if len(n.arrived) == maxArrived {
				p.dropped.Add(uint64(len(frames) - i))
				return
			}
			var room []byte
			if last := len(n.unused) - 1; last >= 0 {
				room, n.unused = n.unused[last], n.unused[:last]
			}
			n.arrived = append(n.arrived, arrival{p, append(room[:0], frames[i].Data...)})
		}
	})
	return p.host.Name(), nil
}

// remove frees the place of a port.
func (n *network) remove(p *port) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p.host.Attach(nil)
	p.host.Port().Flush()
	p.host.Port().Peer().Flush() // what the next port here is not to get
	i, _ := slices.BinarySearchFunc(n.free, p.host, func(a, b *fabric.Host) int { return a.Index() - b.Index() })
	n.free = slices.Insert(n.free, i, p.host)
	p.host = nil
}

// forward sends frames of a port's link into the network.
func (n *network) forward(from, to *port, frames []link.Frame) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if from.host == nil || to != everywhere && to.host == nil {
		return // removed meanwhile
	}
	n.catchUp(time.Now())
	host := to.host // nil: all
	for i := range frames {
		for packet := range n.cutter.Packets(&frames[i]) {
			if !from.host.Forward(packet, host) {
				from.refused.Add(1)
			}
		}
	}
	if next, ok := n.next(); ok && next.Before(n.due) {
		select {
		case n.sooner <- struct{}{}:
		default:
		}
	}
}

// catchUp runs the network up to the present.
func (n *network) catchUp(now time.Time) { n.fabric.Run(max(now.Sub(n.began)-n.fabric.Now(), 0)) }

// next returns when something happens in the network, or false.
func (n *network) next() (time.Time, bool) {
	at, ok := n.fabric.Next()
	return n.began.Add(at), ok
}

// run keeps the network's time equal to the real one, and passes on what arrives, until stop is
// closed.
func (n *network) run(stop <-chan struct{}) {
	const idle = time.Hour
	timer := time.NewTimer(idle)
	defer timer.Stop()
	var arrived []arrival
	for {
		now := time.Now()
		n.mu.Lock()
		for i := range arrived[:min(len(arrived), maxUnused-len(n.unused))] {
			n.unused = append(n.unused, arrived[i].frame)
		}
		n.catchUp(now)
		arrived, n.arrived = n.arrived, arrived[:0]
		next, ok := n.next()
		if !ok {
			next = now.Add(idle)
		}
		n.due = next
		n.mu.Unlock()
		deliver(arrived, now)
		timer.Reset(time.Until(next))
		select {
		case <-stop:
			return
		case <-n.sooner:
		case <-timer.C:
		}
	}
}

// deliver writes frames to the links of their ports, in order.
func deliver(arrived []arrival, now time.Time) {
	var batch [batchFrames]link.Frame
	for len(arrived) > 0 {
		p, k := arrived[0].port, 0
		for k < min(len(arrived), len(batch)) && arrived[k].port == p {
			batch[k] = link.Frame{Data: arrived[k].frame}
			k++
		}
		p.write(batch[:k], now)
		arrived = arrived[k:]
	}
}
