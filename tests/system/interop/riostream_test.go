//go:build linux

package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// riostream is one run of riostream of rdmacm-utils, and its requirements for the other side. Each
// side has a buffer mapped at offset 0. After 16 bytes each way by the stream, the sides write in
// turn to the other's buffer, count times. The last write has bytes that count up from 0 (-T v),
// and a last byte that counts the turns, for which the other side waits.
type riostream struct {
	opts        string
	size, count int
}

const rioTurns = 2 // of each side

func (r riostream) args() string {
	return fmt.Sprintf("-p 7471 -I %d -C %d -S %d -T v %s", rioTurns, r.count, r.size, r.opts)
}

// run is the other side.
func (r riostream) run(ctx context.Context, c *rsocket.Conn, server bool) error {
	buf := make([]byte, r.size)
	last := (*uint32)(unsafe.Pointer(&buf[r.size-4]))
	marker := func() byte { // the peer writes it during this check
		word := atomic.LoadUint32(last)
		return (*[4]byte)(unsafe.Pointer(&word))[3]
	}
	buf[r.size-1] = 0xff
	if _, err := c.Map(buf, 0); err != nil {
		return err
	}
	sixteen := make([]byte, 16)
	write := func() error { _, err := c.Write(sixteen); return err }
	read := func() error { _, err := io.ReadFull(c, sixteen); return err }
	steps := []func() error{write, read}
	if server {
		steps = []func() error{read, write}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	var in, out, turn byte
	counted := func(from *byte) []byte {
		b := make([]byte, r.size-1)
		for i := range b {
			b[i] = *from
			*from++
		}
		return b
	}
	for i := range 2 * rioTurns {
		if server == (i%2 == 0) {
			for marker() != turn {
				select {
				case <-ctx.Done():
					return fmt.Errorf("turn %d has not arrived: %w", turn, ctx.Err())
				case <-time.After(time.Millisecond): // the data before the last byte is complete by then
				}
			}
			if want := counted(&in); !bytes.Equal(buf[:r.size-1], want) {
				return fmt.Errorf("other bytes in turn %d", turn)
			}
		} else {
			data := make([]byte, r.size)
			data[r.size-1] = turn - 1 // not this turn yet
			for t := range r.count {
				if t == r.count-1 {
					data = append(counted(&out), turn)
				}
				if n, err := c.WriteAt(data, 0); err != nil || n != r.size {
					return fmt.Errorf("%d bytes of %d: %w", n, r.size, err)
				}
			}
		}
		turn++
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return fmt.Errorf("after the last turn: %d, %w", n, err)
	}
	return c.Close()
}

func TestRiostream(t *testing.T) {
	gate.System(t)
	testRiostream(t, verbs.RoCEv2)
}
func TestIWARPRiostream(t *testing.T) {
	gate.System(t)
	testRiostream(t, verbs.IWARP)
}

func testRiostream(t *testing.T, transport verbs.Transport) {
	lab := openCM(t, transport)
	p := cmPair{lab, softrnicAddr4, lab.peer.Addr4()}
	cfg := &rsocket.Config{Transport: transport, Iomaps: 1}
	for _, r := range []riostream{{"", 64, 20}, {"-T b", 300_000, 3}} {
		t.Run(fmt.Sprintf("server/size=%d%s", r.size, r.opts), func(t *testing.T) {
			l, err := rsocket.Listen(p.dev, ":7471", cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			p.kernelConnects(t, fmt.Sprintf("riostream -s %v %s", p.here, r.args()), func(ctx context.Context) error {
				c, err := l.AcceptContext(ctx)
				if err != nil {
					return err
				}
				defer context.AfterFunc(ctx, func() { c.Close() })()
				return r.run(ctx, c, true)
			})
		})
		t.Run(fmt.Sprintf("client/size=%d%s", r.size, r.opts), func(t *testing.T) {
			p.kernelServes(t, "riostream "+r.args(), func(ctx context.Context) error {
				c, err := rsocket.Dial(ctx, p.dev, fmt.Sprintf("%v:7471", p.there), cfg)
				if err != nil {
					return err
				}
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				if err := r.run(ctx, c, false); err != nil && !errors.Is(err, net.ErrClosed) {
					return err
				}
				return nil
			})
		})
	}
}

// Linux's own datagram sockets do not work over rxe: the address handle that rconnect creates has
// no GRH, which the kernel refuses. If this test fails, udpong can be tested against Linux.
func TestUdpongOfLinux(t *testing.T) {
	gate.System(t)
	p := cmPeer(t, 2, verbs.RoCEv2)
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	defer cancel()
	out, code, err := p.Exec(ctx, "udpong -s 10.77.0.1 -S 64 -C 1 -T e") // this machine
	if err != nil || code == 0 || !strings.Contains(out, "rconnect: ") {
		t.Errorf("exit status %d, %v: %s", code, err, out)
	}
}
