package shm

// Design of a segment.
//
// # The segment is a directory
//
// Each process on a segment has a unix socket in the segment's directory. Its name is random and
// never reused. A process that joins first listens, then gives its socket that name, and then
// connects to every other socket in the directory. So at least one of two processes connects to the
// other. If both do, they keep the connection that was opened by the process with the smaller name.
// A socket that refuses connections belongs to a dead process. Any process may remove it.
//
// The directory has mode 0700, and its owner is checked: a segment is for the processes of one user
// and of root.
//
// # Two rings for each pair
//
// On a new connection each side sends one message (see hello) with its Ethernet address and a
// memfd: the ring from which it will take frames. The other side maps the ring and puts frames in.
// Package ring defines the layout, and carries superframes unmodified. Frames are copied twice:
// into the ring by the sender, out of it by the receiver.
//
// A host on package netstack avoids these copies ([link.InPlace]). It builds RoCE packets in
// the ring and copies the payload there from the application's memory. The packets have no ICRC.
// Memory does not corrupt data in transit, and a checksum over bytes that another process can
// change proves nothing. The receiving host copies the headers before it examines them, and copies
// the payload from the ring to the application's memory. Wrappers such as capture and impair do not
// offer this, and hosts behind them exchange complete packets.
//
// A frame goes to the process that has its destination address; a group frame goes to all. If two
// processes present the same address, the first keeps it.
//
// # Sleep
//
// The connection carries the wakeups of both rings. A wakeup is a message of one byte, sent only if
// the ring says that the other side sleeps. An eventfd is unsuitable, because both sides share its
// flags: one side could make the other's reads and writes block. If the send would block, it is
// skipped, because the socket already holds other wakeups. The end of the connection ends the pair.
// If a process dies, the kernel closes the connection, and frees the memory with the last mapping.
//
// Departures are reported to the host (see departures), which then ends its connections with the
// departed host.
//
// An application that polls reads the rings itself, and the goroutines of the link sleep meanwhile.
//
// # Backpressure
//
// Write never waits. If two hosts each waited for room in the other's ring, on the goroutine that
// makes room, they would deadlock. Frames that do not fit are copied to a queue of the sending
// process. The queue drains when the receiver wakes the sender. Frames beyond a limit
// (ring.QueueBytes for each peer) are lost and counted, as in a switch.
//
// # Hostile peers
//
// Data that a process of the same user writes into the memory is trusted no more than a packet:
//
//   - The memory must be sealed against shrinking and growing, must be on tmpfs, and must have
//     the announced size before it is mapped. Huge pages are refused, because holes can be
//     punched into them, and an access to a hole is SIGBUS.
//   - The ring checks each index and header that it reads, and reads it once; frames are copied
//     before they are examined. A corrupt ring ends the pair. A frame with contradictory fields
//     is dropped and counted.
//   - Descriptors are close-on-exec; unexpected ones are closed or never received.
//   - There are at most maxPeers peers, at most maxLinks of which belong to one process. A
//     connection without a timely hello is closed.

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/link/userdir"
)

// maxPeers is the largest number of peers, and also of connections in the handshake.
const maxPeers = 256

// segment is this process's membership in a segment.
type segment struct {
	config   *config
	own      hello
	path     string // of the socket
	listener *net.UnixListener
	claims   []*os.File

	*ring.Group

	peers atomic.Pointer[peers] // replaced, never modified
	work  sync.WaitGroup        // goroutines of peers and of the listener

	mu          sync.Mutex
	closed      bool
	started     bool
	handshaking map[*net.UnixConn]bool // connections in the handshake
	processes   map[int32]*process     // other processes with connections
	attached    chan struct{}          // closed when recv is set or the segment is closed
	stop        chan struct{}          // closed when the segment is
	recv        link.Receiver

	departures departures

	refusal   string // the last one that was logged
	refusedAt time.Time
}

// peers are the processes that have completed the handshake.
type peers struct {
	byMAC    map[[6]byte]*peer
	all      []*peer
	switches []*peer
}

func newPeers(all []*peer) *peers {
	t := &peers{byMAC: make(map[[6]byte]*peer, len(all)), all: all}
	for _, p := range all {
		t.byMAC[p.mac] = p
		if p.isSwitch {
			t.switches = append(t.switches, p)
		}
	}
	return t
}

// setPeers replaces the set of peers. s.mu is held.
func (s *segment) setPeers(all []*peer) {
	s.peers.Store(newPeers(all))
	pairs := make([]*ring.Pair, len(all))
	for i, p := range all {
		pairs[i] = p.Pair
	}
	s.Set(pairs)
}

func open(c *config) (medium, error) {
	if err := userdir.Make(c.dir); err != nil {
		return nil, err
	}
	s := &segment{Group: ring.NewGroup(), config: c, handshaking: map[*net.UnixConn]bool{}, processes: map[int32]*process{},
		attached: make(chan struct{}), stop: make(chan struct{})}
	s.departures.pending = map[[6]byte]*departure{}
	if err := s.claim(); err != nil {
		return nil, errors.Join(err, releaseClaims(s.claims))
	}
	s.own = hello{ring: c.ring, mac: [6]byte(c.mac), isSwitch: c.isSwitch}
	_, _ = rand.Read(s.own.id[:]) // never fails
	s.peers.Store(newPeers(nil))
	name := hex.EncodeToString(s.own.id[:])
	s.path = filepath.Join(c.dir, name)
	temporary := filepath.Join(c.dir, socketPrefix+c.mac.String())
	if len(s.path) > userdir.MaxPath {
		err := fmt.Errorf("the path %s has %d bytes, but a unix socket allows %d: use a shorter directory or name",
			s.path, len(s.path), userdir.MaxPath)
		return nil, errors.Join(err, releaseClaims(s.claims))
	}
	_ = os.Remove(temporary) // left by a dead process with this address
	var err error
	if s.listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: temporary, Net: "unixpacket"}); err != nil {
		return nil, errors.Join(err, releaseClaims(s.claims))
	}
	s.listener.SetUnlinkOnClose(false)
	if err := os.Rename(temporary, s.path); err != nil {
		return nil, errors.Join(err, s.listener.Close(), os.Remove(temporary), releaseClaims(s.claims))
	}
	s.work.Go(func() { userdir.Accept(s.listener, func(conn *net.UnixConn) { s.startHandshake(conn, "", nil) }) })
	if err := s.connectAll(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.work.Go(s.reconnect)
	s.work.Go(s.Run)
	return s, nil
}

// connectInterval is the interval at which a process looks for others to which it is not connected.
// Their handshake may have been too slow, or their pair may have ended.
const connectInterval = time.Second

func (s *segment) reconnect() {
	tick := time.NewTicker(connectInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			_ = s.connectAll() // a directory that cannot be read now may be readable later
		}
	}
}

// connectAll connects to all processes on the segment that are not peers, and waits until their
// handshakes have ended.
func (s *segment) connectAll() error {
	entries, err := os.ReadDir(s.config.dir)
	if err != nil {
		return err
	}
	known := map[string]bool{filepath.Base(s.path): true}
	if t := s.peers.Load(); t != nil {
		for _, p := range t.all {
			known[hex.EncodeToString(p.id[:])] = true
		}
	}
	var pending sync.WaitGroup
	for _, e := range entries {
		path := filepath.Join(s.config.dir, e.Name())
		if e.Type().IsRegular() && strings.HasPrefix(e.Name(), claimPrefix) && !s.claimed(path) {
			removeStaleClaim(s.config.dir, path)
			continue
		}
		if known[e.Name()] || e.Type() != fs.ModeSocket || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			_ = os.Remove(path) // its process has died
		case err == nil:
			s.startHandshake(conn, e.Name(), &pending)
		}
	}
	pending.Wait()
	return nil
}

// claimed reports whether a claim belongs to this process's membership in this segment.
func (s *segment) claimed(path string) bool {
	return slices.ContainsFunc(s.claims, func(f *os.File) bool { return f.Name() == path })
}

// startHandshake starts a handshake on a connection, and serves the connection after that. to is
// the name of the socket that this process has connected to, or "" for an accepted connection.
// pending, if not nil, counts unfinished handshakes.
func (s *segment) startHandshake(conn *net.UnixConn, to string, pending *sync.WaitGroup) {
	cred, err := userdir.Credentials(conn)
	if err != nil {
		_ = conn.Close()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.handshaking) >= maxPeers {
		_ = conn.Close()
		return
	}
	from, err := s.addLink(cred.Pid)
	if err != nil {
		_ = conn.Close()
		s.logRefusal(err)
		return
	}
	s.handshaking[conn] = true
	if pending != nil {
		pending.Add(1)
	}
	s.work.Go(func() {
		defer s.removeLink(from)
		p, err := s.handshake(conn, from)
		if err == nil {
			p.dialed = to != ""
			err = s.verify(p, to)
		}
		if err == nil {
			s.connected(p)
			err = s.add(p)
		}
		s.mu.Lock()
		delete(s.handshaking, conn)
		s.mu.Unlock()
		if pending != nil {
			pending.Done()
		}
		if err != nil {
			s.refused(err)
			if p != nil {
				p.Close()
			}
			_ = conn.Close()
			return
		}
		<-s.attached
		if s.recv != nil {
			_ = p.Serve(s.recv, nil) // corrupt rings are counted
		}
		removed := s.remove(p)
		p.Close()
		if removed {
			s.work.Go(func() { s.connectionEnded(p) })
		}
	})
}

// refusalInterval is the interval at which the same refusal is logged. A refused process tries
// again and again.
const refusalInterval = time.Minute

// refused logs why a process is not a peer. In two cases it logs nothing: both processes have
// connected to each other, or the other process has left.
func (s *segment) refused(err error) {
	if gone := new(net.OpError); errors.As(err, &gone) && !gone.Timeout() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logRefusal(err)
}

// logRefusal is refused with s.mu held.
func (s *segment) logRefusal(err error) {
	now, what := time.Now(), err.Error()
	if s.closed || s.config.log == nil || errors.Is(err, errDuplicate) || what == s.refusal && now.Sub(s.refusedAt) < refusalInterval {
		return
	}
	s.refusal, s.refusedAt = what, now
	s.config.log.Warn("a process on the segment was refused, so no frames are exchanged with it", "segment", s.config.dir, "error", err)
}

// verify compares the peer's hello with the segment's directory. The socket that the hello names
// must exist. If this process opened the connection, it must be the socket that it connected to.
// The peer's address must be claimed.
func (s *segment) verify(p *peer, to string) error {
	name := hex.EncodeToString(p.id[:])
	if to != "" && to != name {
		return fmt.Errorf("the socket %s claims to be %s", to, name)
	}
	if info, err := os.Lstat(filepath.Join(s.config.dir, name)); err != nil || info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("the peer's socket %s does not exist", name)
	}
	mac := net.HardwareAddr(p.mac[:]).String()
	if !isClaimed(s.config.dir, mac) {
		return fmt.Errorf("the peer's address %s is not claimed", mac)
	}
	return nil
}

// add makes a process with a completed handshake a peer.
func (s *segment) add(p *peer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	all := slices.Clone(s.peers.Load().all)
	switch {
	case len(all) == maxPeers:
		return fmt.Errorf("the segment has %d peers, the most allowed", maxPeers)
	case p.id == s.own.id || p.mac == s.own.mac:
		return errAddressInUse
	}
	if i := slices.IndexFunc(all, func(q *peer) bool { return q.id == p.id }); i >= 0 {
		// Both processes have connected. They keep the connection that was opened by the process with the
		// smaller name.
		ownIsSmaller := string(s.own.id[:]) < string(p.id[:])
		if p.dialed != ownIsSmaller || all[i].dialed == p.dialed || all[i].mac != p.mac {
			return errDuplicate
		}
		all[i].Shutdown()
		all = slices.Delete(all, i, i+1)
	}
	if slices.ContainsFunc(all, func(q *peer) bool { return q.mac == p.mac }) {
		return errAddressInUse
	}
	s.setPeers(append(all, p))
	return nil
}

// remove removes a peer. It returns false if the process is no peer, or if the segment is closed.
func (s *segment) remove(p *peer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.peers.Load()
	if t == nil {
		return false
	}
	i := slices.Index(t.all, p)
	if i >= 0 {
		s.setPeers(slices.Delete(slices.Clone(t.all), i, i+1))
	}
	return i >= 0
}

// Attach implements link.Link. Frames that arrived earlier have waited in the rings.
func (s *segment) Attach(recv link.Receiver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return
	case s.started:
		panic("shm: Attach called twice: a link serves one host")
	}
	s.started, s.recv = true, recv
	close(s.attached)
}

// Write implements link.Link.
func (s *segment) Write(frames []link.Frame) (int, error) {
	for i := range frames {
		if err := frames[i].Validate(s.config.mtu, ring.Offloads); err != nil {
			s.send(frames[:i])
			return i, fmt.Errorf("%s: %w", s.config.dir, err)
		}
	}
	return len(frames), s.send(frames)
}

// send sends frames. Successive frames to the same peer are sent together.
func (s *segment) send(frames []link.Frame) error {
	t := s.peers.Load()
	if t == nil {
		return fmt.Errorf("%s: %w", s.config.dir, net.ErrClosed)
	}
	for first := 0; first < len(frames); {
		to := [6]byte(frames[first].Data)
		next := first + 1
		for next < len(frames) && [6]byte(frames[next].Data) == to {
			next++
		}
		if to[0]&1 == 0 {
			if p := t.byMAC[to]; p != nil {
				p.Send(frames[first:next])
			} else {
				for _, p := range t.switches {
					p.Send(frames[first:next])
				}
			}
		} else {
			for _, p := range t.all {
				p.Send(frames[first:next])
			}
		}
		first = next
	}
	return nil
}

// Reserve implements link.InPlace.
func (s *segment) Reserve(dst [6]byte, n int) link.Reservation {
	if p := s.peer(dst); p != nil {
		return p.Reserve(n)
	}
	return link.Reservation{}
}

// Backlog implements link.InPlace.
func (s *segment) Backlog(dst [6]byte) int {
	if p := s.peer(dst); p != nil {
		return p.Queued()
	}
	return 0
}

// peer returns the peer with this address, or nil.
func (s *segment) peer(mac [6]byte) *peer {
	t := s.peers.Load()
	if t == nil {
		return nil
	}
	if len(t.all) == 1 && t.all[0].mac == mac {
		return t.all[0]
	}
	return t.byMAC[mac]
}

// Peers returns the addresses of the other processes on the segment.
func (s *segment) Peers() (macs []net.HardwareAddr) {
	t := s.peers.Load()
	if t == nil {
		return nil
	}
	order := func(a, b [6]byte) int { return strings.Compare(string(a[:]), string(b[:])) }
	for _, mac := range slices.SortedFunc(maps.Keys(t.byMAC), order) {
		macs = append(macs, mac[:])
	}
	return macs
}

// Close leaves the segment.
func (s *segment) Close() error {
	s.mu.Lock()
	var err error
	if !s.closed {
		s.closed = true
		close(s.stop)
		s.Group.Close()
		if !s.started {
			close(s.attached)
		}
		err = errors.Join(os.Remove(s.path), s.listener.Close(), releaseClaims(s.claims))
		for conn := range s.handshaking {
			_ = conn.Close()
		}
		for _, p := range s.peers.Swap(nil).all {
			p.Shutdown()
		}
	}
	s.mu.Unlock()
	s.work.Wait()
	return err
}
