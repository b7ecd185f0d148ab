//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestHeldRequests: a listener checks with a DREQ that the kernel's connection manager exists,
// which answers it. So the kernel can have more pending connections than the backlog for unverified
// requesters.
func TestHeldRequests(t *testing.T) {
	gate.System(t)
	const connections = 8
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	tracePort(t, p)
	dev := openSoftRNIC(t, openTAP(t, p.Netns), nil).(softrnic).dev
	addr := netip.AddrPortFrom(softrnicAddr4, 7471)
	l, err := rdmacm.Listen(dev, addr.String(), &rdmacm.Config{Backlog: 1})
	if err != nil {
		t.Fatal(err)
	}
	closing(t, l.Close)
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		var conns []*rdmacm.Conn
		for n := range connections {
			c, err := l.Accept(ctx)
			if err != nil {
				failed <- fmt.Errorf("after %d: %w", n, err)
				return
			}
			conns = append(conns, c)
		}
		var err error
		for _, c := range conns { // the client waits for it
			err = errors.Join(err, c.Close())
		}
		failed <- err
	}()
	p.Run(t, fmt.Sprintf("ucmatose -s %v -p %d -c %d -C 0", addr.Addr(), addr.Port(), connections))
	if err := <-failed; err != nil {
		t.Error(err)
	}
	if held := hwCounters(t, dev)["cm_rx_held"]; held == 0 {
		t.Error("no request was held")
	} else {
		t.Logf("%d requests were held", held)
	}
}
