package iwarptransport_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// TestSocketMatrix runs an rsocket, with bytes in both directions, over every kind of stream of
// TestMatrix. Each byte arrives once and in order. If the stream was harmed, there may be an error
// instead, but never an orderly end. Time is virtual. gVisor's TCP does not work in virtual time,
// so the test is here and not in package rsocket.
func TestSocketMatrix(t *testing.T) {
	badStreams(t, 60, 300, func(t *testing.T, n *badNetwork) (bytes int, failed bool) {
		m := &socketMatrix{t: t, net: n}
		m.run()
		return int(m.bytes.Load()), m.failed.Load()
	})
}

type socketMatrix struct {
	t      *testing.T
	net    *badNetwork
	failed atomic.Bool
	bytes  atomic.Int64
}

func (m *socketMatrix) run() {
	t, r := m.t, m.net.r
	m.net.mayHarm(2000) // not before the setup
	var devs []*verbs.Device
	for _, addr := range []string{nodeAddr, peerAddr} {
		dev, err := rdmatransport.Open(m.net.host(addr), &rdmatransport.Config{IWARP: m.net.config()})
		must(t, err)
		defer func() { must(t, dev.Close()) }()
		devs = append(devs, dev)
	}
	config := func() *rsocket.Config {
		return &rsocket.Config{Transport: verbs.IWARP, SQSize: 16 + r.IntN(100), RQSize: 16 + r.IntN(100), Inline: r.IntN(200) - 1,
			SendBuffer: 4096 << r.IntN(6), RecvBuffer: 4096 << r.IntN(6), KeepAlive: []time.Duration{0, 50 * time.Millisecond}[r.IntN(2)]}
	}
	a, b := connectSockets(t, devs[1], devs[0], config(), config())
	var work sync.WaitGroup
	data := [2][]byte{pattern(r.IntN(256), 1+r.IntN(300_000)), pattern(r.IntN(256), 1+r.IntN(300_000))}
	for i, c := range []*rsocket.Conn{a, b} {
		must(t, c.SetDeadline(time.Now().Add(time.Hour)))
		sizes := rand.New(rand.NewPCG(m.net.seed, uint64(i)))
		work.Go(func() { m.failing("Write", m.write(c, data[i], sizes)) })
		work.Go(func() {
			got, err := io.ReadAll(c)
			m.bytes.Add(int64(len(got)))
			m.failing("Read", err)
			if want := data[1-i]; !bytes.HasPrefix(want, got) || err == nil && len(got) != len(want) {
				t.Errorf("%d bytes of %d, or other ones, before %v", len(got), len(want), err)
			}
		})
	}
	work.Wait()
	for _, c := range []*rsocket.Conn{a, b} {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

// write writes in pieces, and ends its half.
func (m *socketMatrix) write(c *rsocket.Conn, data []byte, sizes *rand.Rand) error {
	for len(data) > 0 {
		n := min(len(data), 1+sizes.IntN(1<<sizes.IntN(17)))
		if _, err := c.Write(data[:n]); err != nil {
			return err
		}
		data = data[n:]
		if sizes.IntN(100) == 0 {
			time.Sleep(time.Duration(sizes.IntN(200)) * time.Millisecond)
		}
	}
	return c.CloseWrite()
}

// failing checks a result: only a harmed stream may fail, and not silently.
func (m *socketMatrix) failing(what string, err error) {
	switch {
	case err == nil:
	case !m.net.harmed.Load() || errors.Is(err, os.ErrDeadlineExceeded):
		m.t.Errorf("%s: %v", what, err)
	default:
		m.failed.Store(true)
	}
}

// connectSockets connects one device to the other.
func connectSockets(t *testing.T, from, to *verbs.Device, near, far *rsocket.Config) (a, b *rsocket.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	l, err := rsocket.Listen(to, nodeAddr+nodePort, far)
	must(t, err)
	dialled := make(chan error, 1)
	go func() {
		var err error
		a, err = rsocket.Dial(ctx, from, nodeAddr+nodePort, near)
		dialled <- err
	}()
	b, err = l.AcceptContext(ctx)
	must(t, err)
	must(t, <-dialled)
	must(t, l.Close())
	return a, b
}
