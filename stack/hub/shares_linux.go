package hub

// Sockets of the users of a hub of the machine.
//
// The hub has a socket for each user at an address, which it reads itself. The kernel steers to it
// what comes from other machines for the QPNs of the user's clients. Thus no user's datagrams wait
// behind another's, or are lost because another's fill the buffer. Everything else arrives at the
// hub's first socket: MADs, and all datagrams of this machine's processes, which can send as many
// as they like to any QPN.

import (
	"net/netip"
	"os"

	"github.com/softrnic/softrnic/stack/internal/rxsocket"
)

// loopbackIndex is the index of the loopback interface in each network namespace. All datagrams of
// the machine's own processes arrive there.
const loopbackIndex = 1

// share is a user's socket at an address.
type share struct {
	*rxsocket.Socket
	index uint16
	file  *os.File // keeps the socket's index
}

// shares are the sockets of the users at an address. They are guarded by server.mu.
type shares struct {
	of     map[*user]*share
	unused []*share
}

// openShare opens the socket of a client's user at an address, unless it is open. Without one, the
// user's datagrams arrive at the hub's first socket. mu is held.
func (s *server) openShare(m *member, a netip.Addr) {
	in := s.sockets[a]
	if !s.cfg.System || in.steered == nil || !in.steered.Alone() {
		return
	}
	if in.shares.of[m.user] == nil {
		h, err := s.unusedShare(a, in)
		if err != nil {
			s.cfg.Log.Debug("a user has no socket at an address", "addr", a, "user", m.user.uid, "error", err)
			return
		}
		if in.shares.of == nil {
			in.shares.of = map[*user]*share{}
		}
		in.shares.of[m.user] = h
	}
	s.steerShares(a, in)
}

// unusedShare returns a socket without a user. mu is held.
func (s *server) unusedShare(a netip.Addr, in *listening) (*share, error) {
	if n := len(in.shares.unused); n > 0 {
		h := in.shares.unused[n-1]
		in.shares.unused = in.shares.unused[:n-1]
		return h, nil
	}
	f, index, err := s.newSocket(in)
	if err != nil {
		return nil, err
	}
	h := &share{index: index, file: f}
	in.opened = append(in.opened, f)
	if h.Socket, err = rxsocket.Duplicate(a, f, &arrivals{relay: s.relay, dst: a, remote: true}); err != nil {
		return nil, err
	}
	s.work.Go(func() { h.RunDirectWait(&s.direct) })
	return h, nil
}

// endShare ends a client's part in its user's socket at an address, and the socket's use if this
// was the last client. mu is held.
func (s *server) endShare(m *member, a netip.Addr) {
	in := s.sockets[a]
	if !s.cfg.System || in == nil || in.shares.of[m.user] == nil {
		return
	}
	last := true
	for o := range s.members {
		if o != m && o.user == m.user && o.addrs[a] {
			last = false
		}
	}
	if last {
		in.shares.unused = append(in.shares.unused, in.shares.of[m.user])
		delete(in.shares.of, m.user)
	}
	s.steerShares(a, in)
}

// steerShares tells the kernel which datagrams from other machines are for which user's socket. If
// it refuses, all arrive at the hub's first socket. mu is held.
func (s *server) steerShares(a netip.Addr, in *listening) {
	t := rxsocket.Table{Interface: loopbackIndex}
	for m := range s.members {
		if h := in.shares.of[m.user]; h != nil && m.addrs[a] {
			for i := range uint32(1) << m.lease.bits {
				t.ByQPN[m.lease.qpnSlot+i] = h.index
			}
		}
	}
	if err := in.steered.Steer(&t); err != nil {
		s.cfg.Log.Warn("the kernel refuses to steer datagrams to the users' sockets", "addr", a, "error", err)
		_ = in.steered.Steer(nil)
	}
	var all []*share
	for _, h := range in.shares.of {
		all = append(all, h)
	}
	in.drain.Store(&all)
}

// qp1 is the QPN of MADs.
const qp1 = 1

// isMAD reports whether a datagram is for QP 1, by the destination QPN of its BTH.
func isMAD(b []byte) bool { return len(b) >= 8 && b[5] == 0 && b[6] == 0 && b[7] == qp1 }

// drainShares receives what has arrived at the users' sockets, before a MAD of another machine is
// delivered, so that a disconnect does not overtake the last acknowledgement.
func (in *arrivals) drainShares(a *rxsocket.Arrival) {
	if in.shares == nil || !isMAD(a.Payload) {
		return
	}
	r := in.relay
	r.mu.Lock()
	local := r.own[a.From.Addr().Unmap().WithZone("")]
	r.mu.Unlock()
	if all := in.shares.Load(); all != nil && !local {
		for _, h := range *all {
			h.Drain()
		}
	}
}

// isCrowdedOut reports whether the client's ring has too little room for what may be another
// user's. Users may fill half of it for each other. Any process of the machine may send to a
// client, from an address that is not the hub's.
func (p *part) isCrowdedOut() bool {
	ownUser := p.from != nil && p.from.user == p.to.user
	return !p.remote && !ownUser && !p.to.ring.HasRoom(len(p.to.memory)/2)
}
