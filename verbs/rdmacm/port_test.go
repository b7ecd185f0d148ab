package rdmacm_test

import (
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// holder is a device that shares its address with other processes.
type holder struct {
	*device
	released func() // called as a port is given up
}

func (h *holder) HoldPort(rdmacm.PortSpace, netip.AddrPort, bool) (io.Closer, error) {
	return held{h}, nil
}

type held struct{ by *holder }

func (p held) Close() error {
	p.by.released()
	return nil
}

// TestPortGivenUp: while a provider gives up a port, which may take long, others can be bound.
func TestPortGivenUp(t *testing.T) {
	h := &holder{device: &device{lan: newLAN(), name: "holder", addrs: []netip.Addr{netip.MustParseAddr(v4A)}}}
	dev, err := verbs.Open(h)
	must(t, err)
	ch, err := rdmacm.CreateEventChannel(dev)
	must(t, err)
	bind := func(port uint16) (*rdmacm.ID, error) {
		id, err := ch.CreateID(rdmacm.TCP, nil)
		return id, errors.Join(err, id.Bind(netip.AddrPortFrom(netip.MustParseAddr(v4A), port)))
	}
	for _, c := range []struct {
		name string
		do   func() (io.Closer, error)
	}{
		{"SetReuseAddr", func() (io.Closer, error) {
			id, err := bind(100)
			return id, errors.Join(err, id.SetReuseAddr(true))
		}},
		{"Listen at another port", func() (io.Closer, error) {
			h.busy = 1
			return rdmacm.Listen(dev, v4A+":0", nil)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			releases := 0
			h.released = func() {
				releases++
				h.released = func() {}
				done := make(chan error, 1)
				go func() {
					id, err := bind(101)
					done <- errors.Join(err, id.Close())
				}()
				select {
				case err := <-done:
					must(t, err)
				case <-time.After(10 * time.Second):
					t.Error("no other port can be bound")
				}
			}
			of, err := c.do()
			must(t, err)
			if releases != 1 {
				t.Errorf("the port was given up %d times, want once", releases)
			}
			must(t, of.Close())
		})
	}
	must(t, ch.Close())
	must(t, dev.Close())
}
