//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// cmtime does what cmtime of librdmacm does, with package rdmacm: it takes many connections through
// each step together, and measures the time.
type cmtime struct {
	cmProgram
	transport verbs.Transport
	ids       []*rdmacm.ID
	took      map[string]time.Duration // by step, all connections
}

// cmtimePort is cmtime's default port.
const cmtimePort = 7471

func newCMTime(t *testing.T, l cmLab) *cmtime {
	t.Helper()
	return &cmtime{newCMProgram(t, l.dev), l.transport, nil, make(map[string]time.Duration)}
}

// step begins a step on every connection, and waits until each has the event, if the step has one.
func (c *cmtime) step(ctx context.Context, name string, begin func(*rdmacm.ID) error, event ...rdmacm.EventType) error {
	started := time.Now()
	began := make(chan error, 1)
	go func() {
		for i, id := range c.ids {
			if err := begin(id); err != nil {
				began <- fmt.Errorf("connection %d: %w", i, err)
				return
			}
		}
		began <- nil
	}()
	if len(event) > 0 {
		left := len(c.ids)
		if err := c.events(ctx, func(e *rdmacm.Event) (bool, error) {
			switch e.Type {
			case event[0]:
				left--
			case rdmacm.TimewaitExit:
			default:
				return false, fmt.Errorf("%v, want %v: %w", e.Type, event[0], e.Err())
			}
			return left == 0, nil
		}); err != nil {
			return fmt.Errorf("%s: %d of %d to come: %w", name, left, len(c.ids), err)
		}
	}
	err := <-began
	c.took[name] = time.Since(started)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// minimal are the QPs that cmtime connects and does not use.
var minimal = verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}

// connect is the client.
func (c *cmtime) connect(ctx context.Context, server netip.AddrPort, connections int) (err error) {
	defer func() {
		if e := c.step(ctx, "destroy", (*rdmacm.ID).Close); e != nil {
			err = errors.Join(err, e)
		}
	}()
	for range connections {
		id, err := c.createID(rdmacm.TCP, c.transport, nil)
		if err != nil {
			return err
		}
		c.ids = append(c.ids, id)
	}
	if err := c.step(ctx, "resolve addr", func(id *rdmacm.ID) error {
		return id.ResolveAddr(netip.AddrPort{}, server, 2*time.Second)
	}, rdmacm.AddrResolved); err != nil {
		return err
	}
	if err := c.step(ctx, "resolve route", (*rdmacm.ID).ResolveRoute, rdmacm.RouteResolved); err != nil {
		return err
	}
	if err := c.step(ctx, "create qp", func(id *rdmacm.ID) error { return id.CreateQP(nil, &minimal) }); err != nil {
		return err
	}
	if err := c.step(ctx, "connect", func(id *rdmacm.ID) error {
		return id.Connect(&rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 2})
	}, rdmacm.Established); err != nil {
		return err
	}
	return c.step(ctx, "disconnect", (*rdmacm.ID).Disconnect, rdmacm.Disconnected)
}

// serve is the server; it listens already. It ends when all connections have been made and closed.
func (c *cmtime) serve(ctx context.Context, connections int) (err error) {
	defer func() {
		if e := c.step(ctx, "destroy", (*rdmacm.ID).Close); e != nil {
			err = errors.Join(err, e)
		}
	}()
	gone := 0
	if err := c.events(ctx, func(e *rdmacm.Event) (bool, error) {
		switch e.Type {
		case rdmacm.ConnectRequest:
			if err := e.ID.CreateQP(nil, &minimal); err != nil {
				return false, err
			}
			c.ids = append(c.ids, e.ID)
			return false, e.ID.Accept(nil)
		case rdmacm.Disconnected:
			gone++
			return gone == connections, e.ID.Disconnect()
		case rdmacm.Established, rdmacm.TimewaitExit:
			return false, nil
		}
		return false, fmt.Errorf("%v: %w", e.Type, e.Err())
	}); err != nil {
		return fmt.Errorf("%d of %d connections came, %d went: %w", len(c.ids), connections, gone, err)
	}
	return nil
}

// cmtimePerConnection is the time of a step for each connection, as cmtime prints it.
func cmtimePerConnection(t *testing.T, output, step string) time.Duration {
	t.Helper()
	for line := range strings.Lines(output) {
		name, figures, _ := strings.Cut(line, ":")
		if f := strings.Fields(figures); strings.TrimSpace(name) == step && len(f) == 4 {
			if us, err := strconv.ParseFloat(f[3], 64); err == nil {
				return time.Duration(us * float64(time.Microsecond))
			}
		}
	}
	t.Errorf("cmtime does not print the time of %q:\n%s", step, output)
	return 0
}

func TestCMTime(t *testing.T) {
	gate.Long(t)
	connections := stacktest.Size(300, 300, 1000)
	amongKernels := stacktest.Size(100, 100, 1000)
	linux := cmPeer(t, 2, verbs.RoCEv2)
	// Not captured: a capture takes time.
	lab := cmLab{linux, openSoftRNIC(t, openTAP(t, linux.Netns), nil).(softrnic).dev, verbs.RoCEv2}
	lab.eachFamily(t, func(t *testing.T, p cmPair) {
		t.Run("client", func(t *testing.T) {
			c := newCMTime(t, p.cmLab)
			p.endlessKernelServes(t, fmt.Sprintf("cmtime -b %v", p.there), func(ctx context.Context) error {
				return c.connect(ctx, netip.AddrPortFrom(p.there, cmtimePort), connections)
			})
			t.Logf("connect: %v a connection", c.took["connect"]/time.Duration(connections))
		})
		t.Run("the kernel with itself", func(t *testing.T) { // for comparison
			ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
			defer cancel()
			serving := p.startServer(t, fmt.Sprintf("cmtime -b %v", p.there))
			out, code, err := p.peer.Exec(ctx, fmt.Sprintf("cmtime -s %v -c %d", p.there, amongKernels))
			if err != nil || code != 0 {
				t.Fatalf("exit status %d, %v\n%s", code, err, out)
			}
			t.Logf("connect: %v a connection", cmtimePerConnection(t, out, "connect"))
			if err := serving.Kill(); err != nil {
				t.Error(err)
			}
			_, _ = serving.Wait(ctx) // it was killed
		})
		t.Run("server", func(t *testing.T) {
			c := newCMTime(t, p.cmLab)
			c.listen(t, rdmacm.TCP, p.transport, netip.AddrPortFrom(p.here, cmtimePort))
			out := p.kernelConnects(t, fmt.Sprintf("cmtime -s %v -c %d", p.here, connections), func(ctx context.Context) error {
				return c.serve(ctx, connections)
			})
			t.Logf("connect: %v a connection", cmtimePerConnection(t, out, "connect"))
		})
	})
}
