package tlshost

import (
	"container/list"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/softrnic/softrnic/stack"
)

const (
	// handshakeTime limits the time of a client for the handshake.
	handshakeTime = 5 * time.Second

	// maxHandshakes limits the handshakes of a listener at a time. One takes up to about 400 KiB
	// (see maxReceived).
	maxHandshakes = 256

	// alertTime is how long a client that was refused may send, so that the alert reaches it.
	alertTime = 500 * time.Millisecond

	// backlog is the number of connections that may wait for Accept.
	backlog = 128
)

// listener accepts TLS connections. Handshakes run on goroutines of their own, so that a slow
// client does not delay others. If there are too many, the oldest of the address with the most is
// reset: the clients of one address cannot displace those of others.
type listener struct {
	stack.StreamListener
	host *Host
	done chan struct{} // the inner listener has ended
	err  error         // why; after done is closed

	accepted chan stack.Stream

	mu       sync.Mutex
	closed   bool
	starting list.List // handshakes (*starting), the oldest first
}

// starting is a connection during its handshake.
type starting struct {
	conn stack.Stream
	peer netip.Addr
}

// ListenStream implements [stack.Network].
func (h *Host) ListenStream(laddr netip.AddrPort) (stack.StreamListener, error) {
	return h.listen(h.Stack.ListenStream, laddr)
}

// ListenFamily implements [stack.FamilyListener]. It is ListenStream if the stack cannot do it.
func (h *Host) ListenFamily(laddr netip.AddrPort) (stack.StreamListener, error) {
	if f, ok := h.Stack.(stack.FamilyListener); ok {
		return h.listen(f.ListenFamily, laddr)
	}
	return h.ListenStream(laddr)
}

func (h *Host) listen(listen func(netip.AddrPort) (stack.StreamListener, error), laddr netip.AddrPort) (stack.StreamListener, error) {
	c := h.cfg.TLS
	if len(c.Certificates) == 0 && c.GetCertificate == nil {
		return nil, fmt.Errorf("listen tls %v: a listener needs a certificate", laddr)
	}
	if h.cfg.Admit != nil && c.ClientAuth < tls.VerifyClientCertIfGiven {
		h.cfg.Logger.Warn("a listener admits peers by their certificates, and verifies none of clients", "address", laddr)
	}
	inner, err := listen(laddr)
	if err != nil {
		return nil, err
	}
	l := &listener{StreamListener: inner, host: h, done: make(chan struct{}), accepted: make(chan stack.Stream, backlog)}
	go l.run()
	return l, nil
}

// run accepts TCP connections.
func (l *listener) run() {
	defer close(l.done)
	for {
		c, err := l.StreamListener.Accept()
		if err != nil {
			l.err = err
			return
		}
		at := l.add(c.(stack.Stream))
		if at == nil {
			c.(stack.Stream).Abort()
			continue
		}
		go l.handshake(at)
	}
}

// add adds a connection to those with a handshake. It returns nil if the listener is closed.
func (l *listener) add(c stack.Stream) *list.Element {
	s := &starting{conn: c}
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		s.peer = a.AddrPort().Addr().Unmap()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	if l.starting.Len() >= maxHandshakes {
		at := l.busiest()
		l.starting.Remove(at)
		at.Value.(*starting).conn.Abort()
		l.host.displaced.Add(1)
	}
	return l.starting.PushBack(s)
}

// busiest returns the oldest handshake of the address with the most. mu is held.
func (l *listener) busiest() *list.Element {
	counts := map[netip.Addr]int{}
	var most netip.Addr
	for at := l.starting.Front(); at != nil; at = at.Next() {
		a := at.Value.(*starting).peer
		if counts[a]++; counts[a] > counts[most] {
			most = a
		}
	}
	at := l.starting.Front()
	for at.Next() != nil && at.Value.(*starting).peer != most {
		at = at.Next()
	}
	return at
}

// handshake sets up TLS and passes the stream to Accept.
func (l *listener) handshake(at *list.Element) {
	s := at.Value.(*starting)
	ctx, cancel := l.host.clock.WithTimeout(context.Background(), handshakeTime)
	defer cancel()
	w := newWire(s.conn, l.host.clock)
	stream, err := l.host.handshake(ctx, w, tls.Server(w, l.host.config(s.peer)))
	if err != nil {
		w.closeAfterAlert(alertTime)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starting.Remove(at)
	if err != nil {
		l.host.refused.Add(1)
		l.host.cfg.Logger.Info("a TLS connection was refused", "from", s.peer, "error", err)
		return
	}
	if !l.closed {
		select {
		case l.accepted <- stream:
			return
		default:
		}
	}
	l.host.refused.Add(1)
	stream.Abort()
}

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	select {
	case s := <-l.accepted:
		return s, nil
	case <-l.done:
		return nil, l.err
	}
}

// Close implements [net.Listener]. It resets connections that were not accepted.
func (l *listener) Close() error {
	err := l.StreamListener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for at := l.starting.Front(); at != nil; at = at.Next() {
		at.Value.(*starting).conn.Abort()
	}
	for {
		select {
		case s := <-l.accepted:
			s.Abort()
		default:
			return err
		}
	}
}
