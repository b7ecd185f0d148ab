package iwarptransport_test

import (
	"errors"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// A listener's port is free again after it is closed, in rdma_cm and in TCP. So is that of a
// listener that failed.
func TestListenerPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
		for range 3 {
			l, err := rdmacm.Listen(d.dev, nodePort, d.config())
			must(t, err)
			if _, err := rdmacm.Listen(d.dev, nodePort, d.config()); !errors.Is(err, syscall.EADDRNOTAVAIL) {
				t.Errorf("second listener: %v", err)
			}
			must(t, l.Close())
			plain, err := d.host.ListenStream(netip.MustParseAddrPort(nodeAddr + nodePort))
			must(t, err)
			if _, err := rdmacm.Listen(d.dev, nodePort, d.config()); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("listener on a port that TCP has in use: %v", err)
			}
			must(t, plain.Close())
		}
	})
	// An ID whose Listen failed shares its port like one that has not called it.
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
		share := func() *rdmacm.SyncID {
			id, err := rdmacm.CreateSyncID(rdmacm.UDP, d.dev)
			must(t, err)
			must(t, id.SetTransports(verbs.IWARP))
			must(t, id.SetReuseAddr(true))
			must(t, id.Bind(netip.MustParseAddrPort(nodeAddr+nodePort)))
			return id
		}
		id := share()
		if err := id.Listen(0); !errors.Is(err, verbs.ErrNotSupported) {
			t.Errorf("listen: %v", err)
		}
		must(t, share().Close())
		must(t, id.Close())
	})
}

// Closing a device closes its listeners, and ends calls that wait for a request.
func TestDeviceClosedWhileListening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
		id, err := rdmacm.CreateSyncID(rdmacm.TCP, d.dev)
		must(t, err)
		must(t, id.SetTransports(verbs.IWARP))
		must(t, id.Bind(netip.MustParseAddrPort(nodeAddr+nodePort)))
		must(t, id.Listen(0))
		asking, silent := dialNode(t, d.net, request()), rawDial(t, d.net)
		synctest.Wait()
		start := time.Now()
		d.dev.Provider().Close()
		if !asking.frame().Rejected {
			t.Error("not rejected")
		}
		if err := silent.closed(); err == io.EOF || time.Since(start) != 0 {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		_ = id.Close()
	})
}
