package perf

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/completion"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/output"
)

// Operations, metrics and protocols of a measurement.
const (
	opSend, opWrite, opRead, opAtomic = "send", "write", "read", "atomic"
	opConnect                         = "connect"
	metricBW, metricLat, metricRate   = "bw", "lat", "rate"

	overTCP    = "TCP" // of the node's stack
	overKernel = "kernel TCP"

	overSockets, overIWARPSockets = "rsockets, RoCEv2", "rsockets, iWARP"

	// overNothing labels results of the direct path, without a wire protocol.
	OverNothing = "in process, direct"
)

var OverRoCE, OverIWARP = verbs.RoCEv2.String(), verbs.IWARP.String()

// operations are the operations' work requests and their names in perftest's headings.
var operations = map[string]struct {
	opcode verbs.WROpcode
	title  string
}{
	opSend:   {verbs.Send, "Send"},
	opWrite:  {verbs.RDMAWrite, "RDMA_Write"},
	opRead:   {verbs.RDMARead, "RDMA_Read"},
	opAtomic: {verbs.AtomicFetchAndAdd, "Atomic FETCH_AND_ADD"},
}

// maxTime bounds a measurement.
const maxTime = 24 * time.Hour

// plan is one measurement, as the client sends it to the server.
type plan struct {
	Op, Metric, Over string
	Direct           bool // messages use the direct path; Over is the transport of the QPs
	Size, Depth      int
	QPs, Threads     int
	CQMod, PostList  int
	Bidirectional    bool
	Verify           bool
	Buffer           int  // bytes of slots of each kind, at least one slot
	Mapped           bool // the memory is registered with MRInitAttr.Mapped
	Wait             completion.Waiting
	Iters            int64         // for each QP; 0: for Duration
	Duration, Warmup time.Duration // nanoseconds
	Kernel           netip.Addr    // the server's listening address if Over is the kernel's TCP
}

// check checks a plan that a peer has sent.
func (p *plan) check() error {
	for _, f := range []struct {
		name           string
		v, least, most int64
	}{
		{"Size", int64(p.Size), 1, maxSize}, {"Depth", int64(p.Depth), 1, maxDepth},
		{"QPs", int64(p.QPs), 1, maxQPs}, {"Threads", int64(p.Threads), 1, int64(p.QPs)},
		{"CQMod", int64(p.CQMod), 1, int64(p.Depth)}, {"PostList", int64(p.PostList), 1, int64(p.Depth)},
		{"Buffer", int64(p.Buffer), 0, maxSize}, {"Iters", p.Iters, 0, 1 << 40}, {"Duration", int64(p.Duration), 0, int64(maxTime)},
		{"Warmup", int64(p.Warmup), 0, int64(maxTime)},
	} {
		if p.Op == opConnect && f.name == "Size" {
			f.least, f.most = 0, 0
		}
		if f.v < f.least || f.v > f.most {
			return fmt.Errorf("%s %d: want %d to %d", f.name, f.v, f.least, f.most)
		}
	}
	_, known := operations[p.Op]
	connects := p.Op == opConnect && p.Metric == metricRate && !p.stream()
	metrics := []string{metricBW, metricLat, metricRate}
	overs := []string{OverRoCE, OverIWARP, overTCP, overKernel, overSockets, overIWARPSockets}
	switch {
	case !known && !connects, !slices.Contains(metrics, p.Metric), !slices.Contains(overs, p.Over):
		return fmt.Errorf("no such measurement: %q %q over %q", p.Op, p.Metric, p.Over)
	case p.Wait != completion.Poll && p.Wait != completion.Event && p.Wait != completion.Adaptive:
		return fmt.Errorf("no such way to wait: %q", p.Wait)
	case p.Direct && p.stream():
		return fmt.Errorf("%s is never direct", p.Over)
	case p.Metric == metricLat && (p.QPs != 1 || p.Depth != 1 || p.Bidirectional):
		return errors.New("lat is of one message on one QP")
	case p.Over == overKernel && !p.Kernel.IsValid():
		return errors.New("kernel TCP, and no address")
	case p.Op == opAtomic && p.Size != 8:
		return fmt.Errorf("atomics of %d bytes: they are of 8", p.Size)
	case p.Iters == 0 && p.Duration == 0:
		return errors.New("neither Iters nor Duration")
	case p.QPs*p.Depth > maxWRs:
		return fmt.Errorf("%d QPs of depth %d: together at most %d messages are outstanding", p.QPs, p.Depth, maxWRs)
	case p.memory() > maxMemory:
		return fmt.Errorf("%d QPs with messages of %s need %d bytes of memory, more than %d: take fewer or smaller",
			p.QPs, output.Size(p.Size), p.memory(), maxMemory)
	}
	return nil
}

// over returns the label of a result.
func (p *plan) over() string {
	if p.Direct {
		return OverNothing
	}
	return p.Over
}

// String describes the measurement.
func (p *plan) String() string {
	s := fmt.Sprintf("%s %s over %s", p.Op, p.Metric, p.over())
	switch {
	case p.Direct:
		s = fmt.Sprintf("%s %s %s", p.Op, p.Metric, p.over())
	case p.Op == opConnect:
		return s
	}
	return s + ", " + output.Size(p.Size)
}

func (p *plan) transport() verbs.Transport {
	if p.Over == OverIWARP || p.Over == overIWARPSockets {
		return verbs.IWARP
	}
	return verbs.RoCEv2
}

// stream reports whether messages are bytes of a stream, of TCP or rsockets.
func (p *plan) stream() bool { return isStream(p.Over) }

func isStream(over string) bool { return over == overTCP || over == overKernel || isSocket(over) }

func isSocket(over string) bool { return over == overSockets || over == overIWARPSockets }

// A side's memory has, for each QP, slots to send from and then slots to receive into, one message
// each. Both sides have the same layout. Without verification there are only as many slots as fit
// Buffer, by default a page as in perftest, and many messages share a slot.
const (
	verifyBuffer = 64 << 20
	plainBuffer  = 4 << 10
)

// stride returns the distance between slots in bytes. Slots share no cache line.
func (p *plan) stride() int { return (max(p.Size, 1) + 63) &^ 63 }

// txSlots returns the number of slots to send from. If data is verified, it is coprime to rxSlots,
// so that a slot always receives new data.
func (p *plan) txSlots() int {
	if p.Verify && !p.onePlace() {
		return p.rxSlots() + 1
	}
	return p.rxSlots()
}

// rxSlots returns the number of slots to receive into.
func (p *plan) rxSlots() int {
	switch {
	case p.onePlace():
		return 1
	case p.Verify:
		return p.receives()
	}
	return max(1, p.Buffer/p.stride())
}

// onePlace reports whether the receiver polls one place in its memory for a change.
func (p *plan) onePlace() bool { return p.Metric == metricLat && p.Op == opWrite }

// receives returns the number of posted receives: twice the sender's outstanding messages, plus
// those for credits. A ping-pong has no credits. It posts receives in batches, so that not every
// answer waits for a post.
func (p *plan) receives() int {
	if p.Metric == metricLat {
		return 32
	}
	return 2*p.Depth + creditsInFlight
}

// creditsInFlight is an upper bound of the credits in flight.
const creditsInFlight = 4

// block returns the size of the memory of one QP.
func (p *plan) block() int { return (p.txSlots() + p.rxSlots()) * p.stride() }

func (p *plan) memory() int64 { return int64(p.QPs) * int64(p.block()) }

// The messages of the control connection, over TCP on the nodes' own stacks. Each is a line of
// JSON:
//
//	client                                           server
//	  Plan ─────────────────────────────────────────►
//	  ◄────────────────────── Offer (where to connect)
//	  connects all QPs
//	  Offer ────────────────────────────────────────►
//	  ◄───────────────────────────────────────── Ready
//	twice, for the warm-up and the measurement:
//	  Sent, when all is sent  ◄────────────────► Sent
//	  Done, when all has come ◄────────────────► Done
//	and then:
//	  Result ◄────────────────────────────────► Result
//	and again, until the client closes the connection. Either may send an Error, and close it.
type message struct {
	Plan   *plan   `json:",omitempty"`
	Offer  *offer  `json:",omitempty"`
	Ready  bool    `json:",omitempty"`
	Sent   []int64 `json:",omitempty"` // messages on each QP since it was created
	Done   bool    `json:",omitempty"`
	Result *result `json:",omitempty"`
	Error  string  `json:",omitempty"`
}

// offer has the address of a side: a server's port, and the memory.
type offer struct {
	Port uint16
	Addr uint64
	RKey uint32
	Seed uint64 // seed of the data that the side sends
}

// maxLine is the longest line in bytes: Sent of maxQPs.
const maxLine = 1 << 20

// control is the control connection of a measurement. One goroutine may receive, any may send.
type control struct {
	conn net.Conn
	in   *bufio.Scanner
	mu   sync.Mutex
	out  *json.Encoder
}

func newControl(conn net.Conn) *control {
	in := bufio.NewScanner(conn)
	in.Buffer(nil, maxLine)
	return &control{conn: conn, in: in, out: json.NewEncoder(conn)}
}

// closeWait is how long a side that ends waits for the peer to close its side, as its node may be
// closed right after.
const closeWait = time.Second

// interrupt makes receive return when ctx ends, until stop is called.
func (c *control) interrupt(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.conn.SetReadDeadline(time.Unix(1, 0)) })
}

// report sends err to the peer, unless it is nil, and makes receive return soon.
func (c *control) report(err error) error {
	if err == nil {
		return nil
	}
	says := err.Error()
	if errors.Is(err, context.Canceled) {
		says = "interrupted"
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(closeWait))
	_ = c.send(&message{Error: says})
	c.finish()
	return err
}

func (c *control) finish() {
	if half, ok := c.conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(closeWait))
}

// Close waits a little for the peer to close its side.
func (c *control) Close() error {
	c.finish()
	_, _ = io.Copy(io.Discard, c.conn)
	return c.conn.Close()
}

func (c *control) send(m *message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.out.Encode(m); err != nil {
		return fmt.Errorf("tell the peer: %w", err)
	}
	return nil
}

// receive waits for a message. The error is io.EOF if the peer has closed the connection, or the
// peer's Error.
func (c *control) receive() (*message, error) {
	if !c.in.Scan() {
		if err := c.in.Err(); err != nil {
			return nil, fmt.Errorf("receive from the peer: %w", err)
		}
		return nil, io.EOF
	}
	var m message
	if err := json.Unmarshal(c.in.Bytes(), &m); err != nil {
		return nil, fmt.Errorf("the peer sent %.40q: %w (is it a softrnic perf?)", c.in.Bytes(), err)
	}
	if m.Error != "" {
		return nil, fmt.Errorf("the peer says: %.1000s", m.Error)
	}
	return &m, nil
}

// expect receives a message, which ok must accept.
func (c *control) expect(what string, ok func(*message) bool) (*message, error) {
	m, err := c.receive()
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("the peer has gone, before its %s", what)
	case err == nil && !ok(m):
		return nil, fmt.Errorf("the peer sent something else than its %s (is it the same version?)", what)
	}
	return m, err
}
