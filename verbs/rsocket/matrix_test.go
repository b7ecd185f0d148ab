package rsocket_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rsocket"
)

// Over RoCE, on every kind of bad network each byte arrives once and in order, both ways at once, on connections that none of it should end. Time is virtual.
func TestMatrix(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { bad(t, verbs.RoCEv2, seed) })
		})
	}
}

// badWay is one kind of trouble in a direction of the network.
func badWay(seed uint64, r *rand.Rand) (w impair.Direction) {
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

func bad(t *testing.T, transport verbs.Transport, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	lan := new(pipe.Switch)
	device := func(l link.Link, addr string, i uint64) (*verbs.Device, func()) {
		l, err := impair.New(l, impair.Config{Seed: seed<<1 | i, Out: badWay(seed, r)})
		ok(t, err)
		host, err := netstack.New(l, netstack.Addr(addr))
		ok(t, err)
		dev, err := rdmatransport.Open(host)
		ok(t, err)
		return dev, func() {
			dev.Close()
			host.Close()
		}
	}
	to, end := device(lan.Port(), server, 0)
	defer end()
	from, end := device(lan.Port(), client, 1)
	defer end()
	cfg := &rsocket.Config{Transport: transport, SQSize: 16 + r.IntN(100), RQSize: 16 + r.IntN(100),
		SendBuffer: 4096 << r.IntN(6), RecvBuffer: 4096 << r.IntN(6), Inline: r.IntN(200) - 1, KeepAlive: time.Second}
	a, b, err := connect(from, to, serverAt, cfg)
	if err != nil {
		t.Logf("not connected: %v", err)
		return
	}
	data := random(200_000 + r.IntN(300_000))
	type outcome struct {
		got []byte
		err error
	}
	outcomes := make(chan outcome, 2)
	for _, c := range []*rsocket.Conn{a, b} {
		ok(t, c.SetDeadline(time.Now().Add(10*time.Minute)))
		sizes := rand.New(rand.NewPCG(seed, 2))
		written := make(chan error, 1)
		go func() {
			rest := data
			var err error
			for len(rest) > 0 && err == nil {
				n := min(len(rest), 1+sizes.IntN(1<<sizes.IntN(17)))
				_, err = c.Write(rest[:n])
				rest = rest[n:]
			}
			written <- errors.Join(err, c.CloseWrite())
		}()
		go func() {
			got, err := io.ReadAll(c)
			outcomes <- outcome{got, errors.Join(err, <-written)}
		}()
	}
	for range 2 {
		o := <-outcomes
		switch {
		case o.err != nil && !bytes.HasPrefix(data, o.got):
			t.Errorf("other bytes arrived, before %v", o.err)
		case o.err != nil:
			t.Errorf("seed %d: %d of %d bytes, then %v", seed, len(o.got), len(data), o.err)
		case !bytes.Equal(o.got, data):
			t.Errorf("%d bytes of %d, or other ones", len(o.got), len(data))
		}
	}
	for _, c := range []*rsocket.Conn{a, b} {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}
