package netstack_test

import (
	"errors"
	"io"
	"net/netip"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
)

// departingLink is a link that reports departures on the test's request.
type departingLink struct {
	link.Link
	left func(mac [6]byte)
}

func (f *departingLink) WatchDepartures(left func(mac [6]byte)) { f.left = left }

// TestDeparture checks that connections to a departed host time out, whether they wait for data or
// for an acknowledgement. Received data can still be read, and the end of a stream if it has
// arrived.
func TestDeparture(t *testing.T) {
	t.Parallel()
	lan := new(pipe.Switch)
	local, far := &departingLink{Link: lan.Port()}, lan.Port()
	var hosts [2]*netstack.Host
	for i, l := range []link.Link{local, far} {
		h, err := netstack.New(l, &netstack.Config{Addrs: []string{[]string{"10.0.0.1/24", "10.0.0.2/24"}[i]}})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		hosts[i] = h
	}
	addr := netip.MustParseAddrPort("10.0.0.2:7")
	l, err := hosts[1].ListenStream(addr)
	if err != nil {
		t.Fatal(err)
	}
	// connect makes a connection of which one of three bytes has been read.
	connect := func() (local, far stack.Stream) {
		t.Helper()
		local, err := hosts[0].DialStream(t.Context(), netip.AddrPort{}, addr)
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { local.Abort() })
		far = c.(stack.Stream)
		if _, err := far.Write([]byte("END")); err != nil {
			t.Fatal(err)
		}
		if _, err := local.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return local, far
	}
	ended, peer := connect()
	if err := peer.Close(); err != nil {
		t.Fatal(err)
	}
	idle, _ := connect()
	unacknowledged, _ := connect()

	far.SetCarrier(false)
	if _, err := unacknowledged.Write([]byte("anybody there?")); err != nil {
		t.Fatal(err)
	}
	local.left([6]byte(far.MAC()))
	for _, test := range []struct {
		name string
		conn stack.Stream
		want error
	}{
		{"idle", idle, syscall.ETIMEDOUT},
		{"unacknowledged", unacknowledged, syscall.ETIMEDOUT},
		{"ended", ended, nil}, // after the others have timed out
	} {
		if got, err := io.ReadAll(test.conn); string(got) != "ND" || !errors.Is(err, test.want) {
			t.Errorf("%s: read %q and %v, want %q and %v", test.name, got, err, "ND", test.want)
		}
	}
}
