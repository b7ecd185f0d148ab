package netstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/stack"
)

// nagleFrom is the number of small writes that are sent as separate segments before the peer
// answers. Nagle's algorithm coalesces further ones. gVisor acknowledges up to 100 segments at
// once. A lower number limits the segments in flight.
const nagleFrom = 64

// stream is a gVisor TCP endpoint as a Stream. gonet implements plain reads and writes.
type stream struct {
	*gonet.TCPConn
	host *Host
	ep   tcpip.Endpoint
	wq   *waiter.Queue
	mss  int

	sendMu sync.Mutex // for piece
	piece  piece

	unanswered atomic.Int64 // pieces sent since the last answer
	awaiting   atomic.Bool  // CallOnAnswer was called after that
	ending     atomic.Bool  // a goroutine is about to run endNagle

	room      waiter.Entry
	onRoom    func()
	roomFunc  func() // notifyRoom, after its first use
	roomState atomic.Int32

	data           waiter.Entry
	readWaiter     readWaiter
	consumerWriter consumerWriter
	deadline       deadline
	writeDeadline  deadline // with a clock other than the machine's
	buffers        buffers

	closed     chan struct{}
	finishMu   sync.Mutex
	finished   bool                 // Close or Abort was called
	pendingSYN *gstack.PacketBuffer // a SYN for the same ports; see lazyTCP.supersede
	localRoute
}

// newStream makes a stream of a connection whose buffers the memory has admitted.
func (h *Host) newStream(ep tcpip.Endpoint, wq *waiter.Queue) *stream {
	ep.SocketOptions().SetDelayOption(false)
	h.tcpConfig.apply(ep)
	s := &stream{
		TCPConn: gonet.NewTCPConn(wq, ep), host: h, ep: ep, wq: wq, closed: make(chan struct{}),
	}
	s.readWaiter.stream, s.readWaiter.ready = s, make(chan struct{}, 1)
	s.data.Init(&s.readWaiter, readable)
	wq.EventRegister(&s.data)
	id := idOf(ep)
	note, noted := h.tcp.syns.take(id)
	s.mss = h.segmentSize(id, note, noted)
	s.buffers.init(ep.(*tcp.Endpoint), &h.tcp.memory, &h.tcpConfig, note, noted)
	s.localRoute.from, s.localRoute.to = h.owner(addrOf(id.LocalAddress)), addrOf(id.RemoteAddress)
	h.tcp.streams.Store(ep, s)
	return s
}

// dial opens a connection from local. The host chooses a missing address or port.
func (h *Host) dial(ctx context.Context, local, remote tcpip.FullAddress, proto tcpip.NetworkProtocolNumber) (*stream, error) {
	route, terr := h.stack.FindRoute(max(local.NIC, remote.NIC), local.Addr, remote.Addr, proto, false)
	if terr != nil {
		return nil, streamError(terr)
	}
	local.Addr = route.LocalAddress()
	route.Release()
	if local.Port != 0 {
		return h.connect(ctx, local, remote, proto, true)
	}
	for port := range drawPorts(h.clock, firstEphemeral, lastEphemeral) {
		if port == remote.Port && local.Addr == remote.Addr {
			continue // a connection to itself
		}
		local.Port = port
		if s, err := h.connect(ctx, local, remote, proto, false); !errors.Is(err, syscall.EADDRINUSE) {
			return s, err
		}
	}
	return nil, fmt.Errorf("all ports from %d to %d have a connection there: %w",
		firstEphemeral, lastEphemeral, syscall.EADDRNOTAVAIL)
}

// drawPorts yields the ports from first to last, beginning at a random one.
func drawPorts(c clock.Clock, first, last int) iter.Seq[uint16] {
	return func(yield func(uint16) bool) {
		n := last - first + 1
		start := int(c.Uint32() % uint32(n))
		for i := range n {
			if !yield(uint16(first + (start+i)%n)) {
				return
			}
		}
	}
}

// connect reserves memory for a connection's buffers, and dials.
func (h *Host) connect(ctx context.Context, local, remote tcpip.FullAddress, proto tcpip.NetworkProtocolNumber,
	patient bool) (*stream, error) {
	if err := h.tcp.memory.admit(); err != nil {
		return nil, err
	}
	ep, wq, err := h.open(ctx, local, remote, proto, patient)
	if err != nil {
		h.tcp.memory.release(leastBuffers)
		return nil, err
	}
	s := h.newStream(ep, wq)
	s.SetReadBuffer(0)
	return s, nil
}

// open opens a connection, and waits until it is established or ctx ends. If patient, it first
// waits briefly for an earlier connection on the same addresses and ports to end.
func (h *Host) open(ctx context.Context, local, remote tcpip.FullAddress, proto tcpip.NetworkProtocolNumber,
	patient bool) (tcpip.Endpoint, *waiter.Queue, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if err := h.tcp.closings.awaitPort(ctx, gstack.TransportEndpointID{
		LocalAddress: local.Addr, LocalPort: local.Port, RemoteAddress: remote.Addr, RemotePort: remote.Port,
	}, patient); err != nil {
		return nil, nil, err
	}
	wq := new(waiter.Queue)
	ep, terr := h.stack.NewEndpoint(tcp.ProtocolNumber, proto, wq)
	if terr != nil {
		return nil, nil, streamError(terr)
	}
	ep.SocketOptions().SetReuseAddress(true) // connections to other peers may use the port
	if terr := ep.Bind(local); terr != nil {
		ep.Close()
		return nil, nil, streamError(terr)
	}
	entry, connected := waiter.NewChannelEntry(waiter.WritableEvents)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	terr = ep.Connect(remote)
	if _, started := terr.(*tcpip.ErrConnectStarted); started {
		select {
		case <-ctx.Done():
			ep.Close()
			return nil, nil, ctx.Err()
		case <-connected:
		}
		terr = ep.LastError()
	}
	if terr != nil {
		ep.Close()
		return nil, nil, streamError(terr)
	}
	return ep, wq, nil
}

// Send implements Stream.
func (s *stream) Send(n int, fill stack.PieceWriter) (bool, error) {
	if n <= 0 || n > stack.MaxPiece {
		return false, fmt.Errorf("netstack: piece of a stream has %d bytes: want 1 to %d", n, stack.MaxPiece)
	}
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	s.piece = piece{n: n, fill: fill}
	s.unanswered.Add(1) // before its answer can arrive
	sent, err := s.enqueue()
	if !sent && err == nil && s.buffers.growSend() {
		sent, err = s.enqueue()
	}
	s.piece.fill = nil
	if sent {
		s.buffers.sent.Add(uint64(n))
	} else {
		s.unanswered.Add(-1)
	}
	return sent, err
}

// enqueue appends piece to the send buffer. It returns false if there is no room.
func (s *stream) enqueue() (bool, error) {
	s.piece.short, s.piece.failed = false, false
	_, terr := s.ep.Write(&s.piece, tcpip.WriteOptions{Atomic: true})
	if s.piece.failed {
		return false, stack.ErrNotFilled
	}
	if _, full := terr.(*tcpip.ErrWouldBlock); full || s.piece.short {
		return false, nil
	}
	if terr != nil {
		return false, streamError(terr)
	}
	return true, nil
}

// Write implements net.Conn. Each small write is sent at once, as a separate segment, unless many
// are unanswered. In that case Nagle's algorithm coalesces them until the peer answers. Thousands
// of small segments would overflow queues in the network. They would also overflow the peer's
// receive buffer, which counts hundreds of bytes for each, while the window counts only the
// payload.
func (s *stream) Write(b []byte) (n int, err error) {
	if len(b) < s.mss && s.unanswered.Add(1) > nagleFrom {
		if o := s.ep.SocketOptions(); !o.GetDelayOption() {
			o.SetDelayOption(true)
		}
	}
	if s.buffers.acked() && !s.buffers.hasRoom() {
		s.buffers.growSend()
	}
	// Each write takes at most the send buffer's size, so that the buffer can grow in between.
	for n, err = 0, nil; ; s.buffers.growSend() {
		size := min(len(b)-n, int(s.buffers.sendSize.Load()))
		var part int
		part, err = s.TCPConn.Write(b[n : n+size])
		s.buffers.sent.Add(uint64(part))
		if n += part; err != nil || n == len(b) {
			return n, withErrno(err)
		}
	}
}

// Read implements net.Conn.
func (s *stream) Read(b []byte) (int, error) {
	n, err := s.TCPConn.Read(b)
	s.buffers.consumed(n)
	return n, withErrno(err)
}

// endNagle ends Nagle's algorithm, and sends coalesced data.
func (s *stream) endNagle() {
	s.ending.Store(false)
	s.ep.SocketOptions().SetDelayOption(false)
}

// Unanswered implements Stream.
func (s *stream) Unanswered() int { return int(max(s.unanswered.Load(), 0)) }

// CallOnAnswer implements Stream.
func (s *stream) CallOnAnswer() {
	s.awaiting.Store(true)
	if s.unanswered.Load() <= 0 { // the answer came before CallOnAnswer
		s.answer()
	}
}

// answer calls OnRoom's function, if CallOnAnswer has requested that.
func (s *stream) answer() {
	if s.awaiting.Load() && s.awaiting.Swap(false) {
		s.NotifyEvent(waiter.WritableEvents)
	}
}

// segmentArrived is called after a segment has arrived. Ending Nagle's algorithm takes the
// endpoint's lock, which a writer may hold.
func (s *stream) segmentArrived() {
	if s.ep.SocketOptions().GetDelayOption() && !s.ending.Swap(true) {
		go s.endNagle()
	}
	if s.unanswered.Load() <= 0 {
		return
	}
	s.unanswered.Store(0)
	s.answer()
}

// piece is the payload of one Send. gVisor reads it at once into its send buffer.
type piece struct {
	n      int
	fill   stack.PieceWriter
	short  bool // gVisor's buffer is too short
	failed bool // the PieceWriter has failed
}

func (p *piece) Len() int { return p.n }

func (p *piece) Read(b []byte) (int, error) {
	switch {
	case len(b) == 0:
		return 0, nil
	case len(b) < p.n:
		p.short = true
		return 0, io.ErrShortBuffer
	}
	if p.failed = !p.fill.WritePiece(b[:p.n]); p.failed {
		return 0, stack.ErrNotFilled
	}
	return p.n, nil
}

// OnRoom implements Stream. gVisor notifies with the endpoint locked, so f runs on another
// goroutine. That goroutine exists only during the call, because most streams have nothing to send.
func (s *stream) OnRoom(f func()) {
	s.onRoom = f
	s.room.Init(s, waiter.WritableEvents|waiter.EventErr|waiter.EventHUp)
	s.wq.EventRegister(&s.room)
}

// notifyRoom calls onRoom until there are no more notifications.
func (s *stream) notifyRoom() {
	for !s.isClosed() {
		if s.onRoom(); s.roomState.CompareAndSwap(roomNotifying, roomIdle) {
			return
		}
		s.roomState.Store(roomNotifying)
	}
}

// States of roomState.
const (
	roomIdle      = iota
	roomNotifying // notifyRoom is running
	roomPending   // notifyRoom is running, and must call onRoom again
)

// NotifyEvent implements waiter.EventListener.
func (s *stream) NotifyEvent(waiter.EventMask) {
	for {
		switch news := s.roomState.Load(); {
		case news == roomPending:
			return
		case s.roomState.CompareAndSwap(news, news+1):
			if news == roomIdle {
				if s.roomFunc == nil {
					s.roomFunc = s.notifyRoom // so that go allocates nothing
				}
				go s.roomFunc()
			}
			return
		}
	}
}

// MSS implements Stream.
func (s *stream) MSS() int { return s.mss }

// Offloaded implements Stream.
func (s *stream) Offloaded() bool {
	n := s.host.owner(addrOf(idOf(s.ep).LocalAddress))
	return n != nil && n.link.Offloads().TSO
}

// SetTOS implements Stream. gVisor has one value for both IP versions, and refuses none.
func (s *stream) SetTOS(tos uint8) { _ = s.ep.SetSockOptInt(tcpip.IPv4TOSOption, int(tos)) }

// SetReadBuffer implements stack.Stream.
func (s *stream) SetReadBuffer(n int) { s.buffers.setRead(int64(n)) }

// Close implements net.Conn. Data in the send buffer is still delivered, if the peer takes it
// within the linger time.
func (s *stream) Close() error {
	if renewal, first := s.finish(); first {
		s.host.tcp.closings.close(s.ep, s.wq, s.buffers.close())
		s.requeueSYN(renewal)
	}
	return nil
}

// Abort implements Stream.
func (s *stream) Abort() {
	renewal, first := s.finish()
	if tcp.EndpointState(s.ep.State()) == tcp.StateTimeWait {
		s.ep.SocketOptions().SetMark(Discard) // RFC 9293 §3.10.5: no RST
	}
	s.ep.Abort()
	if first {
		s.host.tcp.memory.release(s.buffers.close())
	}
	s.requeueSYN(renewal)
}

// finish ends the stream's activities outside of gVisor. first is false if that was done before.
func (s *stream) finish() (renewal *gstack.PacketBuffer, first bool) {
	s.finishMu.Lock()
	defer s.finishMu.Unlock()
	if s.finished {
		return nil, false
	}
	s.finished = true
	renewal, s.pendingSYN = s.pendingSYN, nil
	close(s.closed)
	s.host.tcp.streams.Delete(s.ep)
	s.deadline.set(s.host.clock, time.Time{}, nil)
	s.writeDeadline.set(s.host.clock, time.Time{}, nil)
	s.readWaiter.wake()
	// A connection in TIME-WAIT keeps its queue. Its queue must not keep the stream.
	s.wq.EventUnregister(&s.data)
	if s.onRoom != nil {
		s.wq.EventUnregister(&s.room)
	}
	return renewal, true
}

// awaitClose keeps a SYN, which is received again after the stream is closed. It returns false if
// the stream is already closed.
func (s *stream) awaitClose(pkt *gstack.PacketBuffer) bool {
	s.finishMu.Lock()
	defer s.finishMu.Unlock()
	if s.finished {
		return false
	}
	if s.pendingSYN != nil {
		s.pendingSYN.DecRef()
	}
	s.pendingSYN = pkt.Clone()
	return true
}

// requeueSYN receives the kept SYN again.
func (s *stream) requeueSYN(pkt *gstack.PacketBuffer) {
	if pkt != nil {
		s.host.tcp.QueuePacket(s.ep.(gstack.TransportEndpoint), idOf(s.ep), pkt)
		pkt.DecRef()
	}
}
