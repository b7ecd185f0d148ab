package rocetransport

// Receive path: multicast datagrams. Each attached QP gets a copy, under its own lock. (IBTA Vol 1
// §10.5)

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// multicastQPN is the destination QP of multicast datagrams.
const multicastQPN = 1<<qpnBits - 1

// groups holds the QPs attached to each multicast group.
type groups struct {
	mu      sync.Mutex                      // serializes writers
	members atomic.Pointer[map[group][]*qp] // copied on write, for lock-free reads on the receive path
}

type group struct {
	port uint8
	addr netip.Addr
}

// AttachMcast joins a group on the QP's port, and gives the QP a copy of its datagrams.
func (e *Engine) AttachMcast(p verbs.ProviderQP, gid verbs.GID) error {
	q, ok := p.(*qp)
	if !ok || q.service != wire.UD {
		return fmt.Errorf("multicast is for UD QPs over RoCEv2: %w", verbs.ErrInvalid)
	}
	g := group{q.port, gid.Addr()}
	e.groups.mu.Lock()
	defer e.groups.mu.Unlock()
	if err := e.nics[g.port-1].Join(g.addr); err != nil {
		return fmt.Errorf("%w: %w", verbs.ErrInvalid, err)
	}
	all := e.groups.clone()
	all[g] = append(slices.Clone(all[g]), q)
	e.groups.members.Store(&all)
	return nil
}

// DetachMcast reverts AttachMcast.
func (e *Engine) DetachMcast(p verbs.ProviderQP, gid verbs.GID) error {
	q, _ := p.(*qp)
	e.groups.mu.Lock()
	defer e.groups.mu.Unlock()
	all := e.groups.clone()
	for g, members := range all {
		i := slices.Index(members, q)
		if g.addr != gid.Addr() || i < 0 { // the QP may have been attached on another port
			continue
		}
		all[g] = slices.Concat(members[:i], members[i+1:])
		if len(all[g]) == 0 {
			delete(all, g)
		}
		e.groups.members.Store(&all)
		return e.nics[g.port-1].Leave(g.addr)
	}
	return fmt.Errorf("not attached to %v: %w", gid.Addr(), verbs.ErrInvalid)
}

func (g *groups) clone() map[group][]*qp {
	all := make(map[group][]*qp)
	if old := g.members.Load(); old != nil {
		maps.Copy(all, *old)
	}
	return all
}

// receiveMulticast gives each attached QP a copy. The caller must not hold a QP's lock.
func (e *Engine) receiveMulticast(port uint8, d *stack.Datagram, pkt *wire.Packet) {
	var members []*qp
	if all := e.groups.members.Load(); all != nil {
		members = (*all)[group{port, d.Dst}]
	}
	if len(members) == 0 {
		e.Counters.UnknownQP.Add(1)
		return
	}
	e.Counters.rcvdPkts.Add(1)
	for _, q := range members {
		// Numbers and addresses are unique, so q is the sender if both match.
		if q.blockSelf && pkt.DETH.SrcQP == q.num && d.Looped {
			continue
		}
		q.h.Lock()
		q.receive(port, d, pkt)
		q.sendDueAndUnlock()
	}
}
