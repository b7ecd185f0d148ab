package hostile

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// held are connections that a hostile client keeps: at most most, the oldest of which then end.
type held[C interface{ Close() error }] struct {
	most  int
	conns []C
}

func (h *held[C]) add(c C) {
	h.conns = append(h.conns, c)
	for len(h.conns) > h.most {
		_ = h.conns[0].Close()
		h.conns = h.conns[1:]
	}
}

func (h *held[C]) close() {
	for _, c := range h.conns {
		_ = c.Close()
	}
}

// hold is how many connections a hostile client keeps to each port, and interval the time between
// two.
const (
	hold     = 300
	interval = 200 * time.Millisecond
)

// tcpKind is what a hostile client does with a connection that it has made to a TCP port. If keep
// is true it keeps the connection.
type tcpKind struct {
	name string
	do   func(c *net.TCPConn, to string) (keep bool)
}

// first returns the beginning of a valid conversation with a port.
func first(from, to string) []byte {
	_, port, _ := net.SplitHostPort(to)
	switch port {
	case "20048":
		return record(null(1, programMount))
	case "18515":
		return pingpongDest(from)
	case "18516":
		return []byte(`{"op":"hello","token":"a guess"}` + "\n")
	case "9101":
		return []byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	return []byte("MPA ID Req Frame\x00\x01\x00\x00") // of iWARP; for the proxy it is data like all other
}

func local(c *net.TCPConn) string { return c.LocalAddr().(*net.TCPAddr).IP.String() }

var tcpKinds = []tcpKind{
	{"silent", func(*net.TCPConn, string) bool { return true }},
	{"slow: a part of a request", func(c *net.TCPConn, to string) bool {
		b := first(local(c), to)
		_, _ = c.Write(b[:len(b)/2])
		go func() { // the rest, a byte a second
			for i := len(b) / 2; i < len(b)-1; i++ {
				time.Sleep(time.Second)
				if _, err := c.Write(b[i : i+1]); err != nil {
					return
				}
			}
		}()
		return true
	}},
	{"half-open: closed for writing", func(c *net.TCPConn, _ string) bool { return c.CloseWrite() == nil }},
	{"flood of connects", func(*net.TCPConn, string) bool { return false }},
	{"resets", func(c *net.TCPConn, to string) bool {
		_, _ = c.Write(first(local(c), to))
		_ = c.SetLinger(0)
		return false
	}},
	{"garbage", func(c *net.TCPConn, _ string) bool {
		b := make([]byte, 1+rand.IntN(2000))
		for i := range b {
			b[i] = byte(rand.Uint32())
		}
		_, _ = c.Write(b)
		return true
	}},
	{"endless messages", func(c *net.TCPConn, _ string) bool {
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		b := make([]byte, 64<<10)
		for i := range b {
			b[i] = 'x'
		}
		binary.BigEndian.PutUint32(b, 0x7fffffff)
		for range 40 {
			if _, err := c.Write(b); err != nil {
				break
			}
		}
		return true
	}},
	{"many requests, no reply read", func(c *net.TCPConn, to string) bool {
		_ = c.SetReadBuffer(1)
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		b := first(local(c), to)
		for range 200 {
			if _, err := c.Write(b); err != nil {
				break
			}
		}
		return true
	}},
	{"a valid request, and then silence", func(c *net.TCPConn, to string) bool {
		_, _ = c.Write(first(local(c), to))
		return true
	}},
}

// counters are how often the hostile clients of each kind have done something.
type counters map[string]*atomic.Int64

func (c counters) add(name string) *atomic.Int64 {
	c[name] = new(atomic.Int64)
	return c[name]
}

// attack starts the hostile clients of the network.
func attack(t *testing.T, ctx context.Context, all *sync.WaitGroup) counters {
	counts := counters{}
	ports := []string{nvmeAddr + ":4420", nfsAddr + ":20049", nfsAddr + ":20048", serveAddr + ":7174", serveAddr + ":18515",
		serveAddr + ":18516", proxyAddr + ":7471", nvmeAddr + ":9101", nfsAddr + ":9101", serveAddr + ":9101", proxyAddr + ":9101",
		hubAddr + ":9101", agentAddr + ":9101"}
	for i, k := range tcpKinds {
		n, from := counts.add("TCP, "+k.name), hostileAddr(i)
		for _, to := range ports {
			all.Go(func() {
				conns := held[*net.TCPConn]{most: hold}
				defer conns.close()
				for repeat(ctx) {
					c, err := dialFrom(ctx, from, to)
					if err != nil {
						continue
					}
					n.Add(1)
					if k.do(c, to) {
						conns.add(c)
					} else {
						_ = c.Close()
					}
				}
			})
		}
	}
	for i, k := range rdmaKinds {
		n, dev := counts.add("RDMA, "+k.name), open(t, hostileAddr(len(tcpKinds)+i))
		all.Go(func() {
			conns := held[interface{ Close() error }]{most: hold}
			defer conns.close()
			for repeat(ctx) {
				doing, cancel := context.WithTimeout(ctx, patience)
				c, err := k.do(doing, dev)
				cancel()
				if c != nil {
					conns.add(c)
				}
				if err == nil {
					n.Add(1)
				}
			}
		})
	}
	n := counts.add("UDP, garbage")
	all.Go(func() {
		from, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(hostileAddr(100))})
		if err != nil {
			return
		}
		defer from.Close()
		b := make([]byte, 300)
		for repeat(ctx) {
			for _, to := range []string{nvmeAddr, nfsAddr, serveAddr, backAddr, hubAddr, agentAddr} {
				for i := range b {
					b[i] = byte(rand.Uint32())
				}
				if _, err := from.WriteToUDPAddrPort(b[:rand.IntN(len(b))], netip.AddrPortFrom(netip.MustParseAddr(to), 4791)); err == nil {
					n.Add(1)
				}
			}
		}
	})
	return counts
}

// repeat waits until a hostile client acts again. It returns false when ctx has ended.
func repeat(ctx context.Context) bool {
	select {
	case <-time.After(interval/2 + time.Duration(rand.Int64N(int64(interval)))):
		return true
	case <-ctx.Done():
		return false
	}
}

// rdmaKind is a kind of client that uses RDMA. It keeps what do returns.
type rdmaKind struct {
	name string
	do   func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error)
}

// rsocketPrivate is the private data of an rsocket: its version, credits, and two buffers, each
// with an address, a key and a length.
func rsocketPrivate() []byte {
	b := binary.BigEndian.AppendUint32(nil, 1<<24|384)
	b = append(b, 0, 0, 0, 0)
	for range 2 {
		b = binary.BigEndian.AppendUint64(b, 0x1000)
		b = binary.BigEndian.AppendUint64(b, 64<<32|64)
	}
	return b
}

var nvmePrivate = (&nvme.ConnRequest{HRQSize: 128, HSQSize: 127}).Append(nil)

// connection connects by rdma_cm.
func connection(ctx context.Context, dev *verbs.Device, to string, private []byte) (interface{ Close() error }, error) {
	c, err := rdmacm.Dial(ctx, dev, to, &rdmacm.Config{PrivateData: private})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// halfOpen connects, and does not complete the connection.
func halfOpen(ctx context.Context, dev *verbs.Device, to string, private []byte) (interface{ Close() error }, error) {
	id, err := rdmacm.CreateSyncID(rdmacm.TCP, dev)
	if err != nil {
		return nil, err
	}
	if err = id.ResolveAddr(ctx, netip.AddrPort{}, netip.MustParseAddrPort(to)); err == nil {
		err = id.ResolveRoute(ctx)
	}
	if err == nil {
		err = id.Connect(ctx, &rdmacm.ConnParam{QPNum: 2 + rand.Uint32N(1<<20), PrivateData: private})
	}
	return id, err
}

var rdmaKinds = []rdmaKind{
	{"NVMe: no Connect command", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		return connection(ctx, dev, nvmeAddr+":4420", nvmePrivate)
	}},
	{"NVMe: half-open", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		return halfOpen(ctx, dev, nvmeAddr+":4420", nvmePrivate)
	}},
	{"NVMe: discovery without an end", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		c, err := host.Dial(ctx, dev, nvmeAddr+":4420", &host.Config{NQN: nvme.DiscoveryNQN})
		if err != nil {
			return nil, err
		}
		return c, nil
	}},
	{"NVMe: controllers with all queues", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		c, err := host.Dial(ctx, dev, nvmeAddr+":4420", &host.Config{NQN: nqn, IOQueues: 16})
		if err != nil {
			return nil, err
		}
		return c, nil
	}},
	{"RPC: silent", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		return connection(ctx, dev, nfsAddr+":20049", nil)
	}},
	{"RPC: half-open", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		return halfOpen(ctx, dev, nfsAddr+":20049", nil)
	}},
	{"RPC: garbage, no reply taken", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		c, err := rdmacm.Dial(ctx, dev, nfsAddr+":20049", &rdmacm.Config{})
		if err != nil {
			return nil, err
		}
		for i := range 20 {
			b := (&rpcrdma.Header{XID: uint32(i), Version: uint32(1 + i%2), Credits: 1}).Append(nil)
			_ = c.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendInline, InlineData: append(b, null(uint32(i), programNFS)...)})
		}
		return c, nil
	}},
	{"RPC: a call, and then silence", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		c, err := rpcrdma.Dial(ctx, dev, nfsAddr+":20049", nil)
		if err != nil {
			return nil, err
		}
		if _, err = c.Call(ctx, null(1, programNFS)); err != nil {
			err = fmt.Errorf("call: %w", err)
		}
		return c, err
	}},
	{"rping: silent", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		return connection(ctx, dev, serveAddr+":7174", nil)
	}},
	{"rping: half-open", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		return halfOpen(ctx, dev, serveAddr+":7174", nil)
	}},
	{"rsocket of the proxy: silent", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		c, err := rsocket.Dial(ctx, dev, backAddr+":7472", nil)
		if err != nil {
			return nil, err
		}
		return c, nil
	}},
	{"rping behind the hub: silent", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		return connection(ctx, dev, hubAddr+":7174", nil)
	}},
	{"rping behind the hub: half-open", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		return halfOpen(ctx, dev, hubAddr+":7174", nil)
	}},
	{"rsocket of run --sockets: silent", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		c, err := rsocket.Dial(ctx, dev, agentAddr+":"+bouncePort, nil)
		if err != nil {
			return nil, err
		}
		return c, nil
	}},
	{"rsocket of run --sockets: half-open", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		return halfOpen(ctx, dev, agentAddr+":"+bouncePort, rsocketPrivate())
	}},
	{"rsocket of run --sockets: much data, none taken", func(ctx context.Context, dev *verbs.Device) (interface{ Close() error }, error) {
		c, err := rsocket.Dial(ctx, dev, agentAddr+":"+bouncePort, nil)
		if err != nil {
			return nil, err
		}
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = c.Write(make([]byte, 4<<20))
		return c, nil
	}},
}
