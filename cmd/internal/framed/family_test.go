//go:build linux

package framed_test

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/cmd/internal/framed"
	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestListenFamilies: as without framed, two iWARP listeners may have one port, each for all
// addresses of one IP version.
func TestListenFamilies(t *testing.T) {
	stacktest.IPv6Loopback(t)
	sockets, err := kernel.New(&kernel.Config{Interface: "lo", Addrs: []string{"127.0.0.3", "::1"}})
	if errors.Is(err, syscall.EADDRNOTAVAIL) && os.Getenv("CI") == "" {
		t.Skip("lo has no ::1")
	}
	host := must(framed.New(must(sockets, err)(t), func(l link.Link) (link.Link, error) { return l, nil }))(t)
	dev := must(rdmatransport.Open(host, nil))(t)
	cfg := &rdmacm.Config{Transport: verbs.IWARP, AFOnly: true}
	six := must(rdmacm.Listen(dev, "[::]:0", cfg))(t)
	four := must(rdmacm.Listen(dev, fmt.Sprintf("0.0.0.0:%d", six.Addr().Port()), cfg))(t)
	if err := errors.Join(four.Close(), six.Close(), dev.Close(), host.Close()); err != nil {
		t.Error(err)
	}
}
