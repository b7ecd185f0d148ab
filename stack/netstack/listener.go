package netstack

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// A listener holds up to listenBacklog unaccepted connections. It takes them from gVisor at once,
// so that their buffers are reserved in the shared memory. In addition gVisor holds up to
// handshakeBacklog connections, until the listener takes them.
const (
	listenBacklog    = 4096
	handshakeBacklog = 512
)

// streamListener accepts Streams.
type streamListener struct {
	*gonet.TCPListener
	host *Host
	ep   tcpip.Endpoint
	wq   *waiter.Queue

	once   sync.Once
	closed chan struct{}
	done   chan struct{} // acceptLoop has returned

	mu      sync.Mutex
	changed sync.Cond // waiting or over
	waiting []*stream // unaccepted connections
	over    bool
	err     error // the error of Accept when it is over

	readBuffer atomic.Int64 // for accepted connections
}

func (h *Host) listen(local tcpip.FullAddress, proto tcpip.NetworkProtocolNumber, v6only bool) (*streamListener, error) {
	wq := new(waiter.Queue)
	ep, err := h.stack.NewEndpoint(tcp.ProtocolNumber, proto, wq)
	if err != nil {
		return nil, streamError(err)
	}
	// A restarting server must not wait for its old connections' TIME-WAIT.
	ep.SocketOptions().SetReuseAddress(true)
	ep.SocketOptions().SetV6Only(v6only)
	if err = ep.Bind(local); err == nil {
		err = ep.Listen(handshakeBacklog)
	}
	if err != nil {
		ep.Close()
		return nil, streamError(err)
	}
	l := &streamListener{
		TCPListener: gonet.NewTCPListener(h.stack, wq, ep), host: h, ep: ep, wq: wq,
		closed: make(chan struct{}), done: make(chan struct{}),
	}
	l.changed.L = &l.mu
	go l.acceptLoop()
	return l, nil
}

// SetReadBuffer implements stack.StreamListener.
func (l *streamListener) SetReadBuffer(n int) { l.readBuffer.Store(int64(n)) }

// acceptLoop takes connections from gVisor until the listener is closed. It resets those without
// memory for their buffers.
func (l *streamListener) acceptLoop() {
	defer close(l.done)
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents)
	l.wq.EventRegister(&entry)
	defer l.wq.EventUnregister(&entry)
	for l.hasPlace() {
		ep, wq, terr := l.ep.Accept(nil)
		switch terr.(type) {
		case nil:
			l.offer(ep, wq)
			continue
		case *tcpip.ErrWouldBlock:
			select {
			case <-l.closed:
			case <-ready:
			}
			continue
		}
		for _, s := range l.end(streamError(terr)) { // the host is closed, or the listener
			s.Abort()
		}
		return
	}
}

// end makes Accept return err from now on, and returns the unaccepted connections. Only the first
// call has an effect.
func (l *streamListener) end(err error) (left []*stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.over, l.err = true, err
		left, l.waiting = l.waiting, nil
		l.changed.Broadcast()
	}
	return left
}

// hasPlace waits until there is room for one more connection. It returns false if the listener is
// closed.
func (l *streamListener) hasPlace() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.over && len(l.waiting) >= listenBacklog {
		l.changed.Wait()
	}
	return !l.over
}

// offer queues a connection for Accept.
func (l *streamListener) offer(ep tcpip.Endpoint, wq *waiter.Queue) {
	if err := l.host.tcp.memory.admit(); err != nil {
		l.host.tcp.syns.take(idOf(ep))
		l.host.log.Debug("TCP connection reset", "listener", l.Addr(), "error", err)
		ep.Abort()
		return
	}
	s := l.host.newStream(ep, wq)
	l.mu.Lock()
	if !l.over {
		l.waiting = append(l.waiting, s)
		l.changed.Broadcast()
		s = nil
	}
	l.mu.Unlock()
	if s != nil {
		s.Abort()
	}
}

// Accept implements net.Listener.
func (l *streamListener) Accept() (net.Conn, error) {
	l.mu.Lock()
	for !l.over && len(l.waiting) == 0 {
		l.changed.Wait()
	}
	if l.over {
		l.mu.Unlock()
		return nil, l.err
	}
	s := l.waiting[0]
	l.waiting = slices.Delete(l.waiting, 0, 1)
	l.changed.Broadcast()
	l.mu.Unlock()
	s.SetReadBuffer(int(l.readBuffer.Load()))
	return s, nil
}

// Close implements net.Listener. It resets unaccepted connections.
func (l *streamListener) Close() (err error) {
	l.once.Do(func() {
		left := l.end(net.ErrClosed)
		close(l.closed)
		err = l.TCPListener.Close()
		<-l.done
		for _, s := range left {
			s.Abort()
		}
	})
	return err
}
