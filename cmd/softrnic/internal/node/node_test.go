package node

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/cli"
)

// openNode opens a node on a pipe.
func openNode(t *testing.T, lan *pipe.Switch, addr string) *Node {
	t.Helper()
	f := Flags{Addr: []CIDR{{netip.MustParsePrefix(addr)}}}
	n, err := f.Open(&cli.Env{Stderr: io.Discard, LAN: lan})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestNodeSaysGoodbye: the peer of a connection that a command has left open knows of its end when the node is gone.
func TestNodeSaysGoodbye(t *testing.T) {
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		lan := new(pipe.Switch)
		a, b := openNode(t, lan, "10.0.0.1/24"), openNode(t, lan, "10.0.0.2/24")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cfg := &rdmacm.Config{Transport: transport}
		l, err := rdmacm.Listen(a.Dev, ":7471", cfg)
		if err != nil {
			t.Fatal(err)
		}
		dialled := make(chan *rdmacm.Conn, 1)
		go func() {
			c, err := rdmacm.Dial(ctx, b.Dev, "10.0.0.1:7471", cfg)
			if err != nil {
				t.Error(err)
			}
			dialled <- c
		}()
		if _, err := l.Accept(ctx); err != nil {
			t.Fatal(err)
		}
		c := <-dialled
		if err := a.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("%v: a node with a QP on it: %v", transport, err)
		}
		select {
		case <-c.Done():
		case <-ctx.Done():
			t.Fatalf("%v: the peer does not know of the end", transport)
		}
		if err := errors.Join(c.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	}
}
