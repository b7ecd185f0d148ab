//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// rstream is one run of rstream of rdmacm-utils, and its requirements for the other side: 16 bytes
// each way, and then count times size bytes each way, which count up from 0 (-T v).
type rstream struct {
	opts        string
	size, count int
}

func (r rstream) args() string {
	return fmt.Sprintf("-p 7471 -I 2 -C %d -S %d -T v %s", r.count, r.size, r.opts)
}

// run is the other side.
func (r rstream) run(c net.Conn, server bool) error {
	var in, out byte
	send := func(n int) error {
		b := make([]byte, n)
		for i := range b {
			b[i] = out
			out++
		}
		_, err := c.Write(b)
		return err
	}
	receive := func(n int) error {
		b := make([]byte, n)
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		for i := range b {
			if b[i] != in {
				return fmt.Errorf("byte %d of %d is %d, not %d", i, n, b[i], in)
			}
			in++
		}
		return nil
	}
	steps := [2]func(int) error{send, receive}
	if server {
		steps = [2]func(int) error{receive, send}
	}
	for _, step := range steps {
		if err := step(16); err != nil {
			return err
		}
	}
	for range 2 {
		for _, step := range steps {
			for range r.count {
				if err := step(r.size); err != nil {
					return err
				}
			}
		}
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return fmt.Errorf("after the last byte: %d, %w", n, err)
	}
	return c.Close()
}

func TestRstream(t *testing.T) {
	gate.System(t)
	testRstream(t, verbs.RoCEv2)
}
func TestIWARPRstream(t *testing.T) {
	gate.System(t)
	testRstream(t, verbs.IWARP)
}

func testRstream(t *testing.T, transport verbs.Transport) {
	lab := openCM(t, transport)
	p := cmPair{lab, softrnicAddr4, lab.peer.Addr4()}
	cfg := &rsocket.Config{Transport: transport}
	for _, r := range []rstream{{"", 64, 100}, {"-T b", 65536, 10}, {"-T n", 1 << 20, 2}, {"-T a", 4096, 50}, {"-T r", 1000, 50}} {
		t.Run(fmt.Sprintf("server/size=%d%s", r.size, r.opts), func(t *testing.T) {
			l, err := rsocket.Listen(p.dev, ":7471", cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			p.kernelConnects(t, fmt.Sprintf("rstream -s %v %s", p.here, r.args()), func(ctx context.Context) error {
				c, err := l.AcceptContext(ctx)
				if err != nil {
					return err
				}
				defer context.AfterFunc(ctx, func() { c.Close() })()
				return r.run(c, true)
			})
		})
		t.Run(fmt.Sprintf("client/size=%d%s", r.size, r.opts), func(t *testing.T) {
			p.kernelServes(t, "rstream "+r.args(), func(ctx context.Context) error {
				c, err := rsocket.Dial(ctx, p.dev, fmt.Sprintf("%v:7471", p.there), cfg)
				if err != nil {
					return err
				}
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				if err := r.run(c, false); err != nil && !errors.Is(err, net.ErrClosed) {
					return err
				}
				return nil
			})
		})
	}
}
