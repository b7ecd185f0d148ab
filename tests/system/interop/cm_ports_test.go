//go:build linux

package interop

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

//go:embed testdata/cmports.py
var cmPorts string

// cmPlaces are the local addresses that IDs are bound to, with their options.
var cmPlaces = func() (all []string) {
	for _, addr := range []string{"4any", "4own", "6any", "6own"} {
		for _, options := range []string{"", ",afonly=1", ",afonly=0", ",reuse=1"} {
			all = append(all, addr+options)
		}
	}
	return all
}()

// TestPortsOfLinux: two IDs at one port, at all addresses or one, of IPv4 or IPv6, with the options
// for a family and for reuse: Bind and Listen answer with Linux's errno.
func TestPortsOfLinux(t *testing.T) {
	gate.Long(t)
	p := cmPeer(t, 2, verbs.RoCEv2)
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	defer cancel()
	if err := p.Put(ctx, "/tmp/cmports.py", []byte(cmPorts)); err != nil {
		t.Fatal(err)
	}
	out := p.Run(t, fmt.Sprintf("python3 /tmp/cmports.py %v %v %s", p.Addr4(), p.Addr6(), strings.Join(cmPlaces, " ")))
	lan, err := pipe.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	host, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{p.Addr4().String() + "/24", p.Addr6().String() + "/64"}})
	if err != nil {
		t.Fatal(err)
	}
	closing(t, host.Close)
	dev, err := rdmatransport.Open(host, nil)
	if err != nil {
		t.Fatal(err)
	}
	closing(t, dev.Close)
	ours := twoBound(t, dev, map[string]netip.Addr{"4any": netip.IPv4Unspecified(), "4own": p.Addr4(), "6any": netip.IPv6Unspecified(),
		"6own": p.Addr6()})
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != len(ours) {
		t.Fatalf("Linux has %d lines, we have %d:\n%s", len(lines), len(ours), out)
	}
	for i, linux := range lines {
		t.Log(linux)
		if linux != ours[i] {
			t.Errorf("Linux: %s\nours:  %s", linux, ours[i])
		}
	}
}

// twoBound binds two IDs at each pair of places, and listens with both.
func twoBound(t *testing.T, dev *verbs.Device, addrs map[string]netip.Addr) (lines []string) {
	ch, err := rdmacm.CreateEventChannel(dev)
	if err != nil {
		t.Fatal(err)
	}
	closing(t, ch.Close)
	port := uint16(20000)
	bind := func(place string) (*rdmacm.ID, error) {
		id, err := ch.CreateID(rdmacm.TCP, nil)
		if err != nil {
			t.Fatal(err)
		}
		addr, option, _ := strings.Cut(place, ",")
		switch option {
		case "afonly=0", "afonly=1":
			err = id.SetAFOnly(option == "afonly=1")
		case "reuse=1":
			err = id.SetReuseAddr(true)
		}
		if err != nil {
			t.Fatal(err)
		}
		return id, id.Bind(netip.AddrPortFrom(addrs[addr], port))
	}
	name := func(err error) string {
		switch {
		case err == nil:
			return "ok"
		case errors.Is(err, syscall.EADDRINUSE):
			return "EADDRINUSE"
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			return "EADDRNOTAVAIL"
		}
		return err.Error()
	}
	for _, first := range cmPlaces {
		for _, second := range cmPlaces {
			port++
			a, err := bind(first)
			if err != nil {
				t.Fatal(err)
			}
			b, err := bind(second)
			line := fmt.Sprintf("%s %s: bind %s", first, second, name(err))
			if err == nil {
				line += fmt.Sprintf(", listen %s %s", name(a.Listen(1)), name(b.Listen(1)))
			}
			lines = append(lines, line)
			if err := errors.Join(a.Close(), b.Close()); err != nil {
				t.Error(err)
			}
		}
	}
	return lines
}
