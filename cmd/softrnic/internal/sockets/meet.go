//go:build linux

package sockets

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/userdir"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// Agents of one user on one machine meet to hand a connection over to their programs. The agent
// whose program listens has a Unix socket for each address at which it listens over RDMA. The
// agent whose program connects visits this socket first, then connects over RDMA, and then offers
// one end of a pair of sockets, with the identity of the connection over RDMA. The other agent
// accepts the offer if it has accepted this connection. As the names of these sockets are in the
// abstract namespace, they are of one network namespace.

// connID identifies a connection over RDMA at both ends. Two networks may have the same addresses.
type connID struct {
	client, server     netip.AddrPort
	clientQP, serverQP uint32 // 0 for iWARP, whose QPs do not know each other's numbers
}

const connIDLen = 2*nameLen + 8

// An offer is a packet with an end of a pair: the identity of the connection, and the number of
// bytes to drain from the end, uint32.
const offerLen = connIDLen + 4

func (id connID) bytes() []byte {
	b := make([]byte, connIDLen)
	putName(b, id.client)
	putName(b[nameLen:], id.server)
	binary.NativeEndian.PutUint32(b[2*nameLen:], id.clientQP)
	binary.NativeEndian.PutUint32(b[2*nameLen+4:], id.serverQP)
	return b
}

func parseConnID(b []byte) connID {
	return connID{getName(b), getName(b[nameLen:]), binary.NativeEndian.Uint32(b[2*nameLen:]), binary.NativeEndian.Uint32(b[2*nameLen+4:])}
}

// idOf returns the identity of a connection over RDMA, which this agent has made or accepted.
func idOf(c net.Conn, made bool) connID {
	id := connID{client: parse(c.LocalAddr()), server: parse(c.RemoteAddr())}
	if qp := c.(*rsocket.Conn).QP(); qp.Transport() != verbs.IWARP {
		if attr, _, err := qp.Query(); err == nil {
			id.clientQP, id.serverQP = qp.Num(), attr.DestQPNum
		}
	}
	if !made {
		id = connID{id.server, id.client, id.serverQP, id.clientQP}
	}
	return id
}

// meetingName returns the name of the Unix socket at which agents of this user meet.
func meetingName(at netip.AddrPort) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixpacket", Name: fmt.Sprintf("@softrnic-direct-%d-%v", os.Geteuid(), at)}
}

// checkUser returns an error if the other end of a connection is of another user.
func checkUser(c *net.UnixConn) error {
	cred, err := userdir.Credentials(c)
	if err == nil && cred.Uid != uint32(os.Geteuid()) {
		err = fmt.Errorf("it is of user %d", cred.Uid)
	}
	return err
}

// visit connects to the agent of this machine whose program listens at an address. It returns nil
// if there is none.
func (a *Agent) visit(to netip.AddrPort) *net.UnixConn {
	if !a.cfg.Direct || a.directFull() {
		return nil
	}
	c, err := net.DialUnix("unixpacket", nil, meetingName(to))
	if err != nil {
		return nil // nobody is there
	}
	if err = checkUser(c); err == nil {
		err = awaitWelcome(c)
	}
	if err != nil {
		a.log.Debug("a connection is not handed over", "to", to, "error", err)
		_ = c.Close()
		return nil
	}
	return c
}

// Answers to a visit and to an offer.
const (
	welcome  = 'W'
	accepted = 'A'
	refused  = 'R'
)

// awaitWelcome waits until the other agent knows of a visit. It then waits for the offer when a
// connection arrives over RDMA.
func awaitWelcome(c *net.UnixConn) error {
	var b [1]byte
	_ = c.SetReadDeadline(time.Now().Add(welcomeTimeout))
	n, err := c.Read(b[:])
	_ = c.SetReadDeadline(time.Time{})
	if err == nil && (n != 1 || b[0] != welcome) {
		err = errors.New("the other agent has too many visits")
	}
	return err
}

// offer offers the other agent an end of a pair of sockets, for a connection over RDMA. After an
// error it is not known whether the other agent uses it.
func (a *Agent) offer(visit *net.UnixConn, rdma net.Conn, end, filled int) (taken bool, err error) {
	defer context.AfterFunc(a.ctx, func() { _ = visit.Close() })()
	var reply [2]byte
	packet := binary.NativeEndian.AppendUint32(idOf(rdma, true).bytes(), uint32(filled))
	if _, _, err = visit.WriteMsgUnix(packet, unix.UnixRights(end), nil); err != nil {
		return false, nil // it has closed the connection, and got nothing
	}
	n, err := visit.Read(reply[:])       // it answers after meetTimeout at the latest, and after delivering
	if errors.Is(err, unix.ECONNRESET) { // it has answered without reading the offer
		n, err = visit.Read(reply[:])
	}
	if err != nil || n != 1 {
		return false, errors.Join(err, errors.New("the other agent has ended"))
	}
	return reply[0] == accepted, nil
}

// Limits of visits.
const (
	maxVisits = 256 // at one address; further ones are refused, and the agents relay
	// meetTimeout is how long an offer waits for its connection over RDMA, or that for an offer.
	meetTimeout = 2 * time.Second
	// welcomeTimeout is how long a connect, also of a nonblocking socket, may be delayed by an agent
	// that does not answer. On a busy machine an agent takes some 100 ms.
	welcomeTimeout = time.Second
)

// meeting has the visits at an agent's listening addresses. The zero value has none.
type meeting struct {
	sockets []*net.UnixListener

	mu      sync.Mutex
	visits  map[*visitor]struct{}
	changed chan struct{} // closed when visits change
}

// offer is what a visitor offers.
type offer struct {
	id     connID
	end    int // a descriptor; -1: no offer yet
	filled int // bytes to drain from it
}

// visitor is an agent that visits.
type visitor struct {
	c     *net.UnixConn
	since time.Time
	offer
}

// reply answers an offer, and ends the visit.
func (v *visitor) reply(accepts bool) {
	b := byte(refused)
	if accepts {
		b = accepted
	}
	_, _ = v.c.Write([]byte{b})
	_ = v.c.Close()
}

// openMeeting listens for visits at the addresses of an rsocket.
func (a *Agent) openMeeting(at netip.AddrPort, only bool) *meeting {
	m := &meeting{visits: map[*visitor]struct{}{}, changed: make(chan struct{})}
	if !a.cfg.Direct {
		return m
	}
	addrs := []netip.Addr{at.Addr()}
	if at.Addr().IsUnspecified() {
		addrs = a.node.Addrs()
	}
	for _, addr := range addrs {
		if addr.Is4() != at.Addr().Is4() && (only || at.Addr().Is4()) {
			continue
		}
		l, err := net.ListenUnix("unixpacket", meetingName(netip.AddrPortFrom(addr, at.Port())))
		if err != nil {
			a.log.Info("connections to an address are not handed over", "at", addr, "error", err)
			continue
		}
		m.sockets = append(m.sockets, l)
		a.work.Go(func() {
			userdir.Accept(l, func(c *net.UnixConn) {
				v := &visitor{c: c, since: time.Now(), offer: offer{end: -1}}
				if err := checkUser(c); err != nil || !m.enter(v, a) {
					v.reply(false)
				}
			})
		})
	}
	return m
}

func (m *meeting) close() (err error) {
	for _, l := range m.sockets {
		err = errors.Join(err, l.Close())
	}
	return err
}

// enter admits a visitor, and then reads its offer.
func (m *meeting) enter(v *visitor, a *Agent) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.visits) >= maxVisits {
		a.notDirect.Add(1)
		return false
	}
	if a.directFull() {
		return false
	}
	m.visits[v] = struct{}{}
	if _, err := v.c.Write([]byte{welcome}); err != nil {
		delete(m.visits, v)
		return false
	}
	_ = v.c.SetReadDeadline(v.since.Add(a.cfg.Wait + meetTimeout)) // it connects over RDMA first
	a.work.Go(func() {
		defer context.AfterFunc(a.ctx, func() { _ = v.c.SetReadDeadline(time.Now()) })()
		o, err := readOffer(v.c)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.wake()
		if err != nil {
			delete(m.visits, v)
			v.reply(false)
			return
		}
		v.offer = o
		time.AfterFunc(meetTimeout, func() {
			if m.leave(v) {
				_ = unix.Close(v.end)
				v.reply(false)
			}
		})
	})
	return true
}

// wake wakes those that wait for visits to change. m.mu is held.
func (m *meeting) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// leave removes a visitor. It returns false if it has been removed.
func (m *meeting) leave(v *visitor) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, there := m.visits[v]
	delete(m.visits, v)
	m.wake()
	return there
}

// await returns the visitor that offers an end for a connection over RDMA, or nil. It waits only
// while an agent visits that has not offered yet.
func (m *meeting) await(ctx context.Context, id connID) *visitor {
	if len(m.sockets) == 0 {
		return nil
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, meetTimeout)
	defer cancel()
	for {
		m.mu.Lock()
		undecided := false
		for v := range m.visits {
			if v.end >= 0 && v.id == id {
				delete(m.visits, v)
				m.mu.Unlock()
				if drain(v.end, v.filled) != nil {
					_ = unix.Close(v.end)
					v.reply(false)
					return nil
				}
				return v
			}
			undecided = undecided || v.end < 0 && v.since.Before(began)
		}
		changed := m.changed
		m.mu.Unlock()
		if !undecided {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// readOffer reads the offer of a visitor. The caller closes the descriptor.
func readOffer(c *net.UnixConn) (o offer, err error) {
	o.end = -1
	b, oob := make([]byte, offerLen+1), make([]byte, unix.CmsgSpace(4*4))
	n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return o, err
	}
	fds, err := descriptors(oob[:oobn])
	if err == nil && (n != offerLen || len(fds) != 1 || !isUnixStream(fds[0])) {
		err = errors.New("it is no offer")
	}
	if err != nil {
		closeAll(fds...)
		return o, err
	}
	return offer{parseConnID(b), fds[0], int(min(binary.NativeEndian.Uint32(b[connIDLen:]), pendingSize))}, nil
}

func isUnixStream(socket int) bool {
	domain, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DOMAIN)
	kind, err2 := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_TYPE)
	return err == nil && err2 == nil && domain == unix.AF_UNIX && kind == unix.SOCK_STREAM
}
