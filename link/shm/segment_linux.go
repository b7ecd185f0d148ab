package shm

// How a segment works.
//
// # The segment is a directory
//
// Each process on a segment has a unix socket in the segment's directory, by a name that was drawn at random and is never used
// again. A process that joins listens first, and only then gives its socket that name, and connects to every other socket that it
// finds. So of two processes one finds the other at least; if both do, the connection that the one with the smaller name made
// is kept. A socket that refuses connections is that of a process which has died, and whoever finds it removes it.
//
// The directory has mode 0700, and its owner is checked: a segment is for the processes of one user, and those of root.
//
// # Two rings for each pair
//
// On a new connection each side sends one message (see hello) with its Ethernet address and a memfd: the memory of the ring that
// it will take frames from. The other side maps it and puts frames in. Package ring says what is in the memory. It takes
// superframes as they are. Frames are copied twice: into the ring by the sender, out of it by the receiver.
//
// A host on package netstack does without these copies ([link.Placer]). It builds RoCE packets in the ring, the payload
// copied there from the sending application's memory, and without ICRC, as memory does not flip bits on its way and nobody
// could verify a checksum over bytes that another process can change. The receiving host copies the headers before it looks
// at them, and the payload from the ring to the receiving application's memory. Wrappers such as capture and impair hide
// that, and hosts behind them send and get complete packets.
//
// A frame goes to the process that has its destination address, or to all if it is for a group. The first who comes with an
// address keeps it.
//
// # Sleep
//
// The bell of both rings is the connection: a message of one byte, which is sent only if the ring says that the other side
// sleeps. It has no eventfd, whose flags would be shared: one side could make the other's reads and writes block. A
// send that would wait is left out, as there are bells in the socket already. The end of the connection is the end of the
// pair: the kernel closes it when a process dies, at whatever instruction, and frees the memory with the last mapping.
//
// Who leaves is reported to the host (see departures), whose connections with it end.
//
// An application that polls looks at the rings itself, and the goroutines of the link sleep meanwhile.
//
// # Back pressure
//
// Write never waits: two hosts that wait for room in each other's rings, each on the goroutine that would make room, would wait
// for ever. What does not fit is copied to a queue of the sending process, which is emptied as the receiver wakes the
// sender. Only beyond a bound (queueBytes for each peer) frames are lost, and counted, as in a switch.
//
// # Hostile peers
//
// What a process of the same user writes into the memory is no more trusted than a packet:
//
//   - the memory must be sealed against shrinking and growing, be of tmpfs (huge pages can be punched out so that no page is
//     there again, which is SIGBUS), and have the size that was told, before it is mapped;
//   - the ring checks each index and header that it reads, and reads it once; frames are copied, then looked at. A ring that
//     cannot be is the end of the pair; a frame whose fields contradict each other is dropped, and counted;
//   - descriptors are close-on-exec; those that were not asked for are closed or never received;
//   - there are at most maxPeers peers, of which one process has maxLinks at most, and those who do not say hello in time are hung up on.

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

// maxPeers is how many others a process talks to, and how many more may be about to say hello.
const maxPeers = 256

// segment is a process's place on a segment.
type segment struct {
	config   *config
	own      hello
	path     string // of the socket
	listener *net.UnixListener
	claims   []*os.File

	*ring.Group

	peers atomic.Pointer[peers] // replaced, never changed
	work  sync.WaitGroup        // peers' goroutines, and who accepts

	mu        sync.Mutex
	closed    bool
	started   bool
	greeting  map[*net.UnixConn]bool // connections that have not said hello
	processes map[int32]*process     // others that there are connections with
	attached  chan struct{}          // closed when recv is set, or the segment is closed
	stop      chan struct{}          // closed when the segment is
	recv      link.Receiver

	departures departures

	refusal   string // that was logged last
	refusedAt time.Time
}

// peers are those who have said hello.
type peers struct {
	byMAC    map[[6]byte]*peer
	all      []*peer
	switches []*peer
}

func newPeers(all []*peer) *peers {
	t := &peers{byMAC: make(map[[6]byte]*peer, len(all)), all: all}
	for _, p := range all {
		t.byMAC[p.mac] = p
		if p.sw {
			t.switches = append(t.switches, p)
		}
	}
	return t
}

// setPeers says who the peers are now. It is called with s.mu held.
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
	s := &segment{Group: ring.NewGroup(), config: c, greeting: map[*net.UnixConn]bool{}, processes: map[int32]*process{}, attached: make(chan struct{}), stop: make(chan struct{})}
	s.departures.pending = map[[6]byte]*departure{}
	if err := s.claim(); err != nil {
		return nil, errors.Join(err, giveUp(s.claims))
	}
	s.own = hello{ring: c.ring, mac: [6]byte(c.mac), sw: c.sw}
	_, _ = rand.Read(s.own.id[:]) // never fails
	s.peers.Store(newPeers(nil))
	name := hex.EncodeToString(s.own.id[:])
	s.path = filepath.Join(c.dir, name)
	temporary := filepath.Join(c.dir, socketPrefix+c.mac.String())
	if len(s.path) > userdir.MaxPath {
		return nil, errors.Join(fmt.Errorf("the path %s has %d bytes, and a unix socket's has at most %d: give a shorter directory or name", s.path, len(s.path), userdir.MaxPath), giveUp(s.claims))
	}
	_ = os.Remove(temporary) // of a process with this address that has died
	var err error
	if s.listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: temporary, Net: "unixpacket"}); err != nil {
		return nil, errors.Join(err, giveUp(s.claims))
	}
	s.listener.SetUnlinkOnClose(false)
	if err := os.Rename(temporary, s.path); err != nil {
		return nil, errors.Join(err, s.listener.Close(), os.Remove(temporary), giveUp(s.claims))
	}
	s.work.Go(func() { userdir.Accept(s.listener, func(conn *net.UnixConn) { s.greet(conn, "", nil) }) })
	if err := s.meet(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.work.Go(s.meetAgain)
	s.work.Go(s.Run)
	return s, nil
}

// meetInterval is how often a process looks for others that it has not met when it joined: they were too busy to say hello in
// time, or the pair has ended.
const meetInterval = time.Second

func (s *segment) meetAgain() {
	tick := time.NewTicker(meetInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			_ = s.meet() // a directory that cannot be read now may be the next time
		}
	}
}

// meet connects to all who are there and no peers, and waits until they have said hello.
func (s *segment) meet() error {
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
	var met sync.WaitGroup
	for _, e := range entries {
		path := filepath.Join(s.config.dir, e.Name())
		if e.Type().IsRegular() && strings.HasPrefix(e.Name(), claimPrefix) && !s.claimed(path) {
			sweepClaim(s.config.dir, path)
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
			s.greet(conn, e.Name(), &met)
		}
	}
	met.Wait()
	return nil
}

// claimed reports whether a claim is this process's own, in this segment.
func (s *segment) claimed(path string) bool {
	return slices.ContainsFunc(s.claims, func(f *os.File) bool { return f.Name() == path })
}

// greet says hello on a connection, which this process has begun to a socket by this name if that is not "", and serves it.
// met, if not nil, counts those who have not answered.
func (s *segment) greet(conn *net.UnixConn, to string, met *sync.WaitGroup) {
	cred, err := userdir.Credentials(conn)
	if err != nil {
		_ = conn.Close()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.greeting) >= maxPeers {
		_ = conn.Close()
		return
	}
	from, err := s.admit(cred.Pid)
	if err != nil {
		_ = conn.Close()
		s.logRefusal(err)
		return
	}
	s.greeting[conn] = true
	if met != nil {
		met.Add(1)
	}
	s.work.Go(func() {
		defer s.dismiss(from)
		p, err := s.exchange(conn, from)
		if err == nil {
			p.began = to != ""
			err = s.check(p, to)
		}
		if err == nil {
			s.meets(p)
			err = s.add(p)
		}
		s.mu.Lock()
		delete(s.greeting, conn)
		s.mu.Unlock()
		if met != nil {
			met.Done()
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
			_ = p.Serve(s.recv, nil) // what was wrong with a ring is counted
		}
		removed := s.remove(p)
		p.Close()
		if removed {
			s.work.Go(func() { s.hasEnded(p) })
		}
	})
}

// refusalInterval is how often the log says the same of processes that are refused: they try again and again.
const refusalInterval = time.Minute

// refused logs why a process is no peer. That both have connected to each other, or that it has gone, is no reason to say
// anything.
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
	if s.closed || s.config.log == nil || errors.Is(err, errTwice) || what == s.refusal && now.Sub(s.refusedAt) < refusalInterval {
		return
	}
	s.refusal, s.refusedAt = what, now
	s.config.log.Warn("a process on the segment was refused: nothing is exchanged with it", "segment", s.config.dir, "error", err)
}

// check compares what a process says of itself with what is in the segment's directory. Its socket must be there by the name that
// it says, which is the one that was connected to if this process has begun; and somebody must hold the claim of its address.
func (s *segment) check(p *peer, to string) error {
	name := hex.EncodeToString(p.id[:])
	if to != "" && to != name {
		return fmt.Errorf("the socket %s says that it is %s", to, name)
	}
	if info, err := os.Lstat(filepath.Join(s.config.dir, name)); err != nil || info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("the peer says that its socket is %s, where there is none", name)
	}
	mac := net.HardwareAddr(p.mac[:]).String()
	if !isClaimed(s.config.dir, mac) {
		return fmt.Errorf("the peer says that its address is %s, which nobody has claimed", mac)
	}
	return nil
}

// add makes a process that has said hello a peer.
func (s *segment) add(p *peer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	all := slices.Clone(s.peers.Load().all)
	switch {
	case len(all) == maxPeers:
		return fmt.Errorf("there are %d peers", maxPeers)
	case p.id == s.own.id || p.mac == s.own.mac:
		return errTaken
	}
	if i := slices.IndexFunc(all, func(q *peer) bool { return q.id == p.id }); i >= 0 {
		// Both have connected: of the two connections that of the one with the smaller name stays.
		ownIsSmaller := string(s.own.id[:]) < string(p.id[:])
		if p.began != ownIsSmaller || all[i].began == p.began || all[i].mac != p.mac {
			return errTwice
		}
		all[i].Shutdown()
		all = slices.Delete(all, i, i+1)
	}
	if slices.ContainsFunc(all, func(q *peer) bool { return q.mac == p.mac }) {
		return errTaken
	}
	s.setPeers(append(all, p))
	return nil
}

// remove makes a process a peer no more; false if it was none, or the segment is closed.
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

// Attach implements link.Link. What came before it has waited in the rings.
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

// send passes frames on, those that follow each other to one peer together.
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

// Reserve implements link.Placer.
func (s *segment) Reserve(dst [6]byte, n int) link.Room {
	if p := s.peer(dst); p != nil {
		return p.Reserve(n)
	}
	return link.Room{}
}

// Backlog implements link.Placer.
func (s *segment) Backlog(dst [6]byte) int {
	if p := s.peer(dst); p != nil {
		return p.Queued()
	}
	return 0
}

// peer is who has an address, or nil.
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

// Peers are the addresses of the others on the segment.
func (s *segment) Peers() (macs []net.HardwareAddr) {
	t := s.peers.Load()
	if t == nil {
		return nil
	}
	for _, mac := range slices.SortedFunc(maps.Keys(t.byMAC), func(a, b [6]byte) int { return strings.Compare(string(a[:]), string(b[:])) }) {
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
		err = errors.Join(os.Remove(s.path), s.listener.Close(), giveUp(s.claims))
		for conn := range s.greeting {
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
