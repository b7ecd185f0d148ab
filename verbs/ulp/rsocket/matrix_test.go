package rsocket_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// tally counts the outcomes of the matrix's connections, to show that the matrix tests each of
// them.
var tally struct{ unconnected, survived, failed, bytes atomic.Uint64 }

// On each kind of impaired network, RoCE delivers each byte once and in order, in both directions
// at the same time. Impairments and short outages do not end connections. An outage longer than the
// QP's retries ends both sides with an error, in time. The data before the error is a prefix of the
// data sent. Time is virtual.
func TestMatrix(t *testing.T) {
	n := uint64(stacktest.Seeds(t, stacktest.Size(24, 48, 48), runSeed))
	t.Logf("result: %d seeds, %d bytes: %d were not connected, %d survived an outage, %d failed by one", n, tally.bytes.Load(),
		tally.unconnected.Load(), tally.survived.Load(), tally.failed.Load())
	if un := tally.unconnected.Load(); un*50 > n {
		t.Errorf("%d of %d were not connected: the retries of rdma_cm are too few", un, n)
	}
	if n >= 24 && (tally.failed.Load() < n/10 || tally.survived.Load() < n/10) {
		t.Error("too few outages")
	}
}

// impairment returns the impairment of one direction of the network.
func impairment(seed uint64, r *rand.Rand) (w impair.Direction) {
	switch seed % 6 {
	case 0:
		w.Loss = []float64{0.001, 0.01, 0.05}[r.IntN(3)]
	case 1:
		w.Duplicate = 0.2
	case 2:
		w.Reorder, w.Hold = 0.05, time.Millisecond
	case 3:
		w.Corrupt = 0.01
	case 4:
		w.Delay, w.Jitter = 3*time.Millisecond, 2*time.Millisecond
	case 5:
		w.Loss, w.Duplicate, w.Corrupt = 0.01, 0.05, 0.005
	}
	return w
}

// The QPs of rdma_cm retry for longer than shortOutage, and for at most retries.
const (
	shortOutage = time.Second
	retries     = time.Minute
	dialTime    = 30 * time.Second // of connect
)

// outage is a time without a carrier; if lasts is 0, there is none.
type outage struct {
	after int // bytes that one side has written
	lasts time.Duration
	began atomic.Pointer[time.Time]
}

func (o *outage) long() bool { return o.lasts > shortOutage }

// start removes the carrier once enough bytes are written.
func (o *outage) start(written int, port *pipe.Port) {
	if o.lasts == 0 || written < o.after {
		return
	}
	if now := time.Now(); o.began.CompareAndSwap(nil, &now) {
		port.SetCarrier(false)
		time.AfterFunc(o.lasts, func() { port.SetCarrier(true) })
	}
}

// runSeed runs the matrix for one seed.
func runSeed(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	lan := new(pipe.Switch)
	device := func(l link.Link, addr string, i uint64) (*verbs.Device, func()) {
		l, err := impair.New(l, &impair.Config{Seed: seed<<1 | i, Out: impairment(seed, r)})
		ok(t, err)
		host, err := netstack.New(l, &netstack.Config{Addrs: []string{addr}})
		ok(t, err)
		dev, err := rdmatransport.Open(host, nil)
		ok(t, err)
		return dev, func() {
			dev.Close()
			host.Close()
		}
	}
	ports := []*pipe.Port{lan.Port(), lan.Port()}
	to, end := device(ports[0], server, 0)
	defer end()
	from, end := device(ports[1], client, 1)
	defer end()
	cfg := &rsocket.Config{SQSize: 16 + r.IntN(100), RQSize: 16 + r.IntN(100),
		SendBuffer: 4096 << r.IntN(6), RecvBuffer: 4096 << r.IntN(6), Inline: r.IntN(200) - 1, KeepAlive: time.Second}
	data := random(200_000 + r.IntN(300_000))
	out := outage{after: r.IntN(len(data) / 2)}
	switch seed / 6 % 4 {
	case 1:
		out.lasts = time.Millisecond + time.Duration(r.Int64N(int64(shortOutage-time.Millisecond)))
	case 2:
		out.lasts = 2 * time.Hour
	}
	pulled := ports[r.IntN(2)]
	began := time.Now()
	a, b, err := connect(from, to, serverAt, cfg)
	if err != nil {
		tally.unconnected.Add(1)
		if took := time.Since(began); took > dialTime+time.Second || !timedOut(err) {
			t.Errorf("not connected after %v: %v", took, err)
		}
		return
	}
	type outcome struct {
		got         []byte
		read, write error
	}
	outcomes := make(chan outcome, 2)
	for _, c := range []*rsocket.Conn{a, b} {
		ok(t, c.SetDeadline(time.Now().Add(time.Hour)))
		sizes := rand.New(rand.NewPCG(seed, 2))
		written := make(chan error, 1)
		go func() {
			rest := data
			var err error
			for len(rest) > 0 && err == nil {
				n := min(len(rest), 1+sizes.IntN(1<<sizes.IntN(17)))
				_, err = c.Write(rest[:n])
				rest = rest[n:]
				if c == a {
					out.start(len(data)-len(rest), pulled)
				}
			}
			written <- errors.Join(err, c.CloseWrite())
		}()
		go func() {
			got, err := io.ReadAll(c)
			outcomes <- outcome{got, err, <-written}
		}()
	}
	for range 2 {
		o := <-outcomes
		tally.bytes.Add(uint64(len(o.got)))
		err := errors.Join(o.read, o.write)
		switch {
		case !bytes.HasPrefix(data, o.got):
			t.Errorf("different bytes arrived, before %v", err)
		case o.read == nil && len(o.got) < len(data):
			t.Errorf("the stream ended after %d bytes of %d", len(o.got), len(data))
		case err != nil && !out.long():
			t.Errorf("seed %d: %d of %d bytes, then %v", seed, len(o.got), len(data), err)
		case err != nil && !errors.Is(err, syscall.ETIMEDOUT) && !errors.Is(err, syscall.ECONNRESET):
			t.Errorf("after an outage: %v", err)
		}
	}
	switch at := out.began.Load(); {
	case at == nil:
	case !out.long():
		tally.survived.Add(1)
	default:
		tally.failed.Add(1)
		if took := time.Since(*at); took > retries {
			t.Errorf("the connection failed on both sides only after %v", took)
		}
		for _, c := range []*rsocket.Conn{a, b} {
			if c.Err() == nil {
				t.Error("the connection has not failed on one side")
			}
		}
	}
	for _, c := range []*rsocket.Conn{a, b} {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

// timedOut reports whether a connection could not be established in time.
func timedOut(err error) bool {
	return errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, syscall.EHOSTUNREACH) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}
