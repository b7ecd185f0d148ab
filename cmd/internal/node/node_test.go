package node

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"

	"github.com/softrnic/softrnic/cmd/internal/cli"
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

// TestNodeShutdown: a node that is closed disconnects a connection that a command has left open.
func TestNodeShutdown(t *testing.T) {
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

// TestNodeTrace: with --trace, two nodes append the events of their QPs to one file.
func TestNodeTrace(t *testing.T) {
	lan, file := new(pipe.Switch), filepath.Join(t.TempDir(), "trace")
	for _, addr := range []string{"10.0.0.1/24", "10.0.0.2/24"} {
		f := Flags{Addr: []CIDR{{netip.MustParsePrefix(addr)}}, Trace: file}
		n, err := f.Open(&cli.Env{Stderr: io.Discard, LAN: lan})
		if err != nil {
			t.Fatal(err)
		}
		pd, err := n.Dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := n.Dev.CreateCQ(1, nil)
		if err != nil {
			t.Fatal(err)
		}
		qp, err := pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq})
		if err != nil {
			t.Fatal(err)
		}
		err = qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1},
			verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags)
		if err = errors.Join(err, qp.Close(), cq.Close(), pd.Close(), n.Close()); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		var e struct{ Msg, Node, From, To string }
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Msg != "QP state" || e.From != "RESET" || e.To != "INIT" {
			t.Errorf("line %q: %v", line, err)
		}
		nodes[e.Node] = true
	}
	if len(nodes) != 2 {
		t.Errorf("events of nodes %v, want two", nodes)
	}
	f := Flags{Trace: t.TempDir()}
	if _, err := f.Open(&cli.Env{Stderr: io.Discard, LAN: lan}); err == nil || !strings.Contains(err.Error(), "--trace") {
		t.Errorf("--trace of a directory: %v", err)
	}
}
