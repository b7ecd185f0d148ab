package netstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/softrnic/softrnic/stack"
)

// nagleFrom is how many small writes are sent as segments of their own before anything comes from the peer; further
// ones are gathered by Nagle's algorithm. gVisor acknowledges up to 100 segments at once, so with fewer the segments
// under way do not pile up.
const nagleFrom = 64

// stream is a gVisor TCP endpoint as a Stream. Plain reading and writing are gonet's.
type stream struct {
	*gonet.TCPConn
	host *Host
	ep   tcpip.Endpoint
	wq   *waiter.Queue
	mss  int

	sendMu sync.Mutex // for piece
	piece  piece

	unheard  atomic.Int64 // pieces sent since anything came
	awaiting atomic.Bool  // CallOnAnswer was called since
	ending   atomic.Bool  // endNagle is to run

	room     waiter.Entry
	onRoom   func()
	tell     func() // tellRoom, once it was needed
	roomNews atomic.Int32

	data     waiter.Entry
	arrivals arrivals
	intake   intake
	deadline deadline
	buffers  buffers

	closed   chan struct{}
	finishMu sync.Mutex
	finished bool                 // Close or Abort was called
	renewal  *gstack.PacketBuffer // the SYN that waits for it; see lazyTCP.supersede
	way
}

// newStream makes a connection, which the memory of TCP's buffers has admitted, a stream.
func (h *Host) newStream(ep tcpip.Endpoint, wq *waiter.Queue) *stream {
	ep.SocketOptions().SetDelayOption(false)
	h.tcpConfig.apply(ep)
	s := &stream{
		TCPConn: gonet.NewTCPConn(wq, ep), host: h, ep: ep, wq: wq, closed: make(chan struct{}),
	}
	s.arrivals.ready = make(chan struct{}, 1)
	s.data.Init(&s.arrivals, readable)
	wq.EventRegister(&s.data)
	id := idOf(ep)
	note, noted := h.tcp.syns.take(id)
	s.mss = h.segmentSize(id, note, noted)
	s.buffers.init(ep.(*tcp.Endpoint), &h.tcp.memory, &h.tcpConfig, note, noted)
	s.way.from, s.way.to = h.owner(addrOf(id.LocalAddress)), addrOf(id.RemoteAddress)
	h.tcp.streams.Store(ep, s)
	return s
}

// dial opens a connection from local, whose address and port may be the host's to choose.
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
	for port := range drawPorts(firstEphemeral, lastEphemeral) {
		if port == remote.Port && local.Addr == remote.Addr {
			continue // a connection with itself
		}
		local.Port = port
		if s, err := h.connect(ctx, local, remote, proto, false); !errors.Is(err, syscall.EADDRINUSE) {
			return s, err
		}
	}
	return nil, fmt.Errorf("all ports from %d to %d have a connection there: %w", firstEphemeral, lastEphemeral, syscall.EADDRNOTAVAIL)
}

// drawPorts are the ports from first to last, beginning with one by chance.
func drawPorts(first, last int) iter.Seq[uint16] {
	return func(yield func(uint16) bool) {
		n := last - first + 1
		start := rand.IntN(n)
		for i := range n {
			if !yield(uint16(first + (start+i)%n)) {
				return
			}
		}
	}
}

// connect reserves memory for a connection's buffers, and dials.
func (h *Host) connect(ctx context.Context, local, remote tcpip.FullAddress, proto tcpip.NetworkProtocolNumber, patient bool) (*stream, error) {
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

// open opens a connection, and waits until it is established or ctx ends. If patient is set it first waits a little, if it has
// to, for an earlier connection on the same addresses and ports to end.
func (h *Host) open(ctx context.Context, local, remote tcpip.FullAddress, proto tcpip.NetworkProtocolNumber, patient bool) (tcpip.Endpoint, *waiter.Queue, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if err := h.tcp.closings.makeWay(ctx, gstack.TransportEndpointID{
		LocalAddress: local.Addr, LocalPort: local.Port, RemoteAddress: remote.Addr, RemotePort: remote.Port,
	}, patient); err != nil {
		return nil, nil, err
	}
	wq := new(waiter.Queue)
	ep, terr := h.stack.NewEndpoint(tcp.ProtocolNumber, proto, wq)
	if terr != nil {
		return nil, nil, streamError(terr)
	}
	ep.SocketOptions().SetReuseAddress(true) // connections to other peers may be on the port
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
		return false, fmt.Errorf("netstack: a piece of a stream of %d bytes: it has 1 to %d", n, stack.MaxPiece)
	}
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	s.piece = piece{n: n, fill: fill}
	s.unheard.Add(1) // before the answer to it can have come
	sent, err := s.enqueue()
	if !sent && err == nil && s.buffers.growSend() {
		sent, err = s.enqueue()
	}
	s.piece.fill = nil
	if sent {
		s.buffers.sent.Add(uint64(n))
	} else {
		s.unheard.Add(-1)
	}
	return sent, err
}

// enqueue appends piece to the send buffer; false if there is no room.
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

// Write implements net.Conn. Each small write is sent at once, as a segment of its own, unless many have been sent
// since anything came from the peer: then they are gathered, by Nagle's algorithm, until something comes. Thousands of
// small segments would overflow the queues on the way, and the peer's receive buffer, which counts hundreds of bytes
// for each, while the window counts only the payload. Of the segments that are lost then, gVisor's sender recovers only
// two in each retransmission timeout.
func (s *stream) Write(b []byte) (n int, err error) {
	if len(b) < s.mss && s.unheard.Add(1) > nagleFrom {
		if o := s.ep.SocketOptions(); !o.GetDelayOption() {
			o.SetDelayOption(true)
		}
	}
	if s.buffers.turned() && !s.buffers.hasRoom() {
		s.buffers.growSend()
	}
	// Not more at once than the send buffer takes, so that it can grow in between.
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
	s.buffers.took(n)
	return n, withErrno(err)
}

// endNagle ends Nagle's algorithm, and sends what was gathered.
func (s *stream) endNagle() {
	s.ending.Store(false)
	s.ep.SocketOptions().SetDelayOption(false)
}

// Unanswered implements Stream.
func (s *stream) Unanswered() int { return int(max(s.unheard.Load(), 0)) }

// CallOnAnswer implements Stream.
func (s *stream) CallOnAnswer() {
	s.awaiting.Store(true)
	if s.unheard.Load() <= 0 { // the answer came between the caller's question and this
		s.answer()
	}
}

// answer has the function given to OnRoom called, if CallOnAnswer has asked for that.
func (s *stream) answer() {
	if s.awaiting.Load() && s.awaiting.Swap(false) {
		s.NotifyEvent(waiter.WritableEvents)
	}
}

// heard is called when a segment has come. Ending Nagle's algorithm takes the endpoint's lock, which a writer may hold.
func (s *stream) heard() {
	if s.ep.SocketOptions().GetDelayOption() && !s.ending.Swap(true) {
		go s.endNagle()
	}
	if s.unheard.Load() <= 0 {
		return
	}
	s.unheard.Store(0)
	s.answer()
}

// piece is the payload of one Send. gVisor reads it, all at once, into the buffer that it will send from.
type piece struct {
	n      int
	fill   stack.PieceWriter
	short  bool // gVisor's buffer is
	failed bool // fill has
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

// OnRoom implements Stream. gVisor notifies with the endpoint locked, so that f has to run elsewhere: on a goroutine that is
// there only meanwhile, as most streams have nothing to send.
func (s *stream) OnRoom(f func()) {
	s.onRoom = f
	s.room.Init(s, waiter.WritableEvents|waiter.EventErr|waiter.EventHUp)
	s.wq.EventRegister(&s.room)
}

// tellRoom calls onRoom until there are no more news.
func (s *stream) tellRoom() {
	for !s.isClosed() {
		if s.onRoom(); s.roomNews.CompareAndSwap(newsTold, noNews) {
			return
		}
		s.roomNews.Store(newsTold)
	}
}

// What NotifyEvent has said of room, in roomNews.
const (
	noNews   = iota
	newsTold // tellRoom runs
	newsCame // it runs, and has to look once more
)

// NotifyEvent implements waiter.EventListener.
func (s *stream) NotifyEvent(waiter.EventMask) {
	for {
		switch news := s.roomNews.Load(); {
		case news == newsCame:
			return
		case s.roomNews.CompareAndSwap(news, news+1):
			if news == noNews {
				if s.tell == nil {
					s.tell = s.tellRoom // so that go allocates nothing
				}
				go s.tell()
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

// SetTOS implements Stream. gVisor has one value for both families, and never refuses one.
func (s *stream) SetTOS(tos uint8) { _ = s.ep.SetSockOptInt(tcpip.IPv4TOSOption, int(tos)) }

// SetReadBuffer implements stack.Stream.
func (s *stream) SetReadBuffer(n int) { s.buffers.setRead(int64(n)) }

// Close implements net.Conn. What is in the send buffer still goes out, as far as the peer takes it in the linger time.
func (s *stream) Close() error {
	if renewal, first := s.finish(); first {
		s.host.tcp.closings.close(s.ep, s.wq, s.buffers.close())
		s.renew(renewal)
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
	s.renew(renewal)
}

// finish ends what goes on beside gVisor; first is false if that was done already.
func (s *stream) finish() (renewal *gstack.PacketBuffer, first bool) {
	s.finishMu.Lock()
	defer s.finishMu.Unlock()
	if s.finished {
		return nil, false
	}
	s.finished = true
	renewal, s.renewal = s.renewal, nil
	close(s.closed)
	s.host.tcp.streams.Delete(s.ep)
	s.deadline.set(time.Time{}, nil)
	s.arrivals.wake()
	// A connection in TIME-WAIT keeps its queue, which must not keep the stream.
	s.wq.EventUnregister(&s.data)
	if s.onRoom != nil {
		s.wq.EventUnregister(&s.room)
	}
	return renewal, true
}

// awaitClose keeps a SYN, to be received again when the stream is closed; false if it is closed already.
func (s *stream) awaitClose(pkt *gstack.PacketBuffer) bool {
	s.finishMu.Lock()
	defer s.finishMu.Unlock()
	if s.finished {
		return false
	}
	if s.renewal != nil {
		s.renewal.DecRef()
	}
	s.renewal = pkt.Clone()
	return true
}

// renew has the SYN that was kept received again.
func (s *stream) renew(pkt *gstack.PacketBuffer) {
	if pkt != nil {
		s.host.tcp.QueuePacket(s.ep.(gstack.TransportEndpoint), idOf(s.ep), pkt)
		pkt.DecRef()
	}
}
