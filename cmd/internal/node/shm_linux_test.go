package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/shm"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// TestShm: connections of both protocols between nodes on a segment.
func TestShm(t *testing.T) {
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	t.Setenv("XDG_RUNTIME_DIR", dir)
	var nodes [2]*Node
	for i, addr := range []string{"10.0.0.1/24", "10.0.0.2/24"} {
		f := Flags{Addr: make([]CIDR, 1)}
		if err := errors.Join(f.Link.UnmarshalText([]byte("shm")), f.Addr[0].UnmarshalText([]byte(addr))); err != nil {
			t.Fatal(err)
		}
		if nodes[i], err = f.Open(&cli.Env{Stderr: io.Discard}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		cfg := &rdmacm.Config{Transport: transport}
		l, err := rdmacm.Listen(nodes[0].Dev, ":7471", cfg)
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan error, 1)
		go func() {
			c, err := l.Accept(ctx)
			if err == nil {
				<-c.Done()
				err = c.Close()
			}
			accepted <- err
		}()
		c, err := rdmacm.Dial(ctx, nodes[1].Dev, "10.0.0.1:7471", cfg)
		if err != nil {
			t.Fatalf("%v: %v", transport, err)
		}
		if err := errors.Join(c.Close(), <-accepted, l.Close()); err != nil {
			t.Errorf("%v: %v", transport, err)
		}
	}
	for _, n := range nodes {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestShmAddresses: nodes without --addr get different addresses and print them. A second node with
// an address that another was given or has chosen is refused.
func TestShmAddresses(t *testing.T) {
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	t.Setenv("XDG_RUNTIME_DIR", dir)
	open := func(addrs ...string) (*Node, string, error) {
		var f Flags
		if err := f.Link.UnmarshalText([]byte("shm")); err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			var c CIDR
			if err := c.UnmarshalText([]byte(a)); err != nil {
				t.Fatal(err)
			}
			f.Addr = append(f.Addr, c)
		}
		var stderr bytes.Buffer
		n, err := f.Open(&cli.Env{Stderr: &stderr})
		if err == nil {
			t.Cleanup(func() {
				if err := n.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		return n, stderr.String(), err
	}
	for _, want := range []string{"10.83.0.1", "10.83.0.2"} {
		n, said, err := open()
		if err != nil {
			t.Fatal(err)
		}
		if g, err := n.GID(1, netip.Addr{}); err != nil || g.GID.Addr().String() != want || !strings.Contains(said, want) {
			t.Errorf("a node has %v, and says %q; want %s: %v", g.GID, said, want, err)
		}
	}
	for _, taken := range [][]string{{"10.83.0.2/24"}, {"10.0.0.1/24", "10.83.0.1/24"}} {
		if _, _, err := open(taken...); !errors.Is(err, shm.ErrClaimed) {
			t.Errorf("%v: %v", taken, err)
		}
	}
	if _, _, err := open("10.83.0.3/24"); err != nil {
		t.Fatal(err)
	}
	if _, said, err := open(); err != nil || !strings.Contains(said, "10.83.0.4") {
		t.Errorf("the next says %q: %v", said, err)
	}
}
