package hostile

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// limit is how many connections a server has.
type limit struct {
	server *server
	name   string // in its metrics
	places int
	to     string
	rdma   func(ctx context.Context, dev *verbs.Device, to string) (io.Closer, error) // nil: TCP
	good   string                                                                     // the good client
}

// openers is how many connections a peer opens at once, and openPause its pause after that: the
// peers and the good client share the processors.
const (
	openers   = 32
	openPause = 100 * time.Millisecond
)

// TestLimits: peers open as many connections to each server as SECURITY.md allows, and more: each
// as many as it gets, until none are left. The server has no more than it may, and a good client
// keeps 0.8 of its speed.
func TestLimits(t *testing.T) {
	gate.Long(t)
	dir := publicDirectory(t)
	program := filepath.Join(dir, "softrnic")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/softrnic/softrnic/cmd/softrnic").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	echo(t, echoAddr+":7")
	nvme := start(t, program, "nvme serve", nvmeAddr, "nvme serve --namespace memory,size=64M --nqn "+nqn)
	nfs := start(t, program, "nfs serve", nfsAddr, "nfs serve --memory 67108864")
	serve := start(t, program, "serve --conform", serveAddr, "serve --conform --conform-addr "+serveAddr+":18516")
	behind := start(t, program, "proxy behind", backAddr, "proxy rocev2:7472 tcp:"+echoAddr+":7")
	proxy := start(t, program, "proxy", proxyAddr, "proxy tcp:"+proxyAddr+":7471 rocev2:"+backAddr+":7472")
	dev := open(t, goodAddr)
	goods := map[string]*good{}
	for _, g := range append(goodClients(t, dev, []*server{serve}), portmapper(t), rsocketClient(t, dev)) {
		goods[g.name] = g
	}
	var peers []*verbs.Device
	for i := range 14 {
		peers = append(peers, open(t, hostileAddr(i)))
	}
	with := func(private []byte) func(context.Context, *verbs.Device, string) (io.Closer, error) {
		return func(ctx context.Context, dev *verbs.Device, to string) (io.Closer, error) {
			return connection(ctx, dev, to, private)
		}
	}
	for _, l := range []limit{
		{nvme, "nvme", 256, nvmeAddr + ":4420", with(nvmePrivate), "nvme serve, RoCEv2"},
		{nfs, "nfs", 256, nfsAddr + ":20049", with(nil), "nfs serve, RoCEv2"},
		{nfs, "mount", 64, nfsAddr + ":20048", nil, "nfs serve, MOUNT"},
		{nfs, "portmap", 64, nfsAddr + ":111", nil, "nfs serve, portmap"},
		{serve, "pingpong", 128, serveAddr + ":18515", nil, "serve, pingpong"},
		{serve, "conform", 16, serveAddr + ":18516", nil, "serve --conform"},
		{serve, "metrics", 64, serveAddr + ":9101", nil, "serve --conform, metrics"},
		{serve, "rping", 4096, serveAddr + ":7174", with(nil), "serve, rping"},
		{proxy, "proxy", 1024, proxyAddr + ":7471", nil, "proxy"},
		{behind, "proxy", 4096, backAddr + ":7472", dialRsocket, "proxy behind"},
	} {
		t.Run(fmt.Sprint(l.server.name, " ", l.name), func(t *testing.T) { l.exceed(t, goods[l.good], peers) })
	}
	for _, s := range []*server{nvme, nfs, serve, behind, proxy} {
		t.Logf("result: %s: at most %d MiB, %d threads, %d descriptors", s.name, s.most.rss, s.most.threads, s.most.descriptors)
	}
}

// dialRsocket connects with small buffers.
func dialRsocket(ctx context.Context, dev *verbs.Device, to string) (io.Closer, error) {
	c, err := rsocket.Dial(ctx, dev, to, &rsocket.Config{SQSize: 16, RQSize: 16, SendBuffer: 4096, RecvBuffer: 4096, Linger: time.Millisecond})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// portmapper is a good client of portmap.
func portmapper(t *testing.T) *good {
	call := null(1, 100000)
	call[19] = 2 // its version
	return stream(t, "nfs serve, portmap", nfsAddr+":111", exchange(record(call), 28))
}

// rsocketClient is a good client of the proxy that listens over RDMA.
func rsocketClient(t *testing.T, dev *verbs.Device) *good {
	return client(t, "proxy behind", func(ctx context.Context) (*rsocket.Conn, error) {
		return rsocket.Dial(ctx, dev, backAddr+":7472", nil)
	}, func(ctx context.Context, c *rsocket.Conn) error {
		deadline, _ := ctx.Deadline()
		_ = c.SetDeadline(deadline)
		return exchange(make([]byte, 1000), 1000)(c)
	})
}

// value returns a metric of the limit.
func (l *limit) value(t *testing.T, metric string) int {
	t.Helper()
	for line := range strings.Lines(scrape(t, l.server)) {
		if v, is := strings.CutPrefix(line, fmt.Sprintf("softrnic_%s{server=%q} ", metric, l.name)); is {
			n, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			ok(t, err)
			return int(n)
		}
	}
	t.Fatalf("%s has no softrnic_%s of %s", l.server.name, metric, l.name)
	return 0
}

// turnedAway returns how many connections the server has refused, or ended for others.
func (l *limit) turnedAway(t *testing.T) int {
	return l.value(t, "refused_connections_total") + l.value(t, "displaced_connections_total")
}

func (l *limit) exceed(t *testing.T, g *good, peers []*verbs.Device) {
	if n := l.value(t, "connection_places"); n != l.places {
		t.Fatalf("it has %d places, not the %d of SECURITY.md", n, l.places)
	}
	before := float64(g.runFor(t, 5*time.Second)) / 5
	ctx, stop := context.WithCancel(t.Context())
	var going sync.WaitGroup
	began, done := time.Now(), 0
	going.Go(func() {
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		done = g.run(ctx, ticker.C)
	})
	var mu sync.Mutex
	var all []io.Closer
	first, most := l.turnedAway(t), 0
	for i, dev := range peers {
		from := l.turnedAway(t)
		for opened := 0; l.turnedAway(t) < from+openers/2 && opened < 2*l.places+openers; opened += openers {
			var opening sync.WaitGroup
			for range openers {
				opening.Go(func() {
					doing, cancel := context.WithTimeout(ctx, patience)
					defer cancel()
					c, err := l.open(doing, hostileAddr(i), dev)
					if err == nil {
						mu.Lock()
						defer mu.Unlock()
						all = append(all, c)
					}
				})
			}
			opening.Wait()
			time.Sleep(openPause)
			l.server.measure()
			most = max(most, l.value(t, "held_connection_places"))
		}
	}
	for time.Since(began) < 5*time.Second {
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	going.Wait()
	during := float64(done) / time.Since(began).Seconds()
	opened := len(all)
	for _, c := range all {
		_ = c.Close()
	}
	after := float64(g.runFor(t, 5*time.Second)) / 5
	alone := (before + after) / 2
	t.Logf("result: %s, %s: %d places, %d connections opened, %d refused or ended for others, at most %d held; good client: %.1f/s alone, "+
		"%.1f/s meanwhile (%.2f)", l.server.name, l.name, l.places, opened, l.turnedAway(t)-first, most, alone, during, during/alone)
	if !(during >= 0.8*alone) {
		var last error
		if err := g.err.Load(); err != nil {
			last = *err
		}
		t.Errorf("the good client has %.2f of its speed; its last error is %v", during/alone, last)
	}
	if l.turnedAway(t) == first || most < l.places*9/10 {
		t.Error("the limit was not reached")
	}
	if most > l.places*3/2 {
		t.Error("it has more than the limit, and half of it while displaced connections end")
	}
}

// runFor runs a good client for a time, and returns what it has done.
func (g *good) runFor(t *testing.T, d time.Duration) int {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	return g.run(ctx, ticker.C)
}

// open opens a connection of a peer.
func (l *limit) open(ctx context.Context, from string, dev *verbs.Device) (io.Closer, error) {
	if l.rdma != nil {
		return l.rdma(ctx, dev, l.to)
	}
	var c net.Conn
	c, err := dialFrom(ctx, from, l.to)
	if err != nil {
		return nil, err
	}
	return c, nil
}
