// Package hostile runs the servers of the command line as a machine does, and hostile clients of
// many kinds against them, while good clients must go on at their speed.
package hostile

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

var duration = flag.Duration("duration", 10*time.Minute, "how long hostile clients work")

// The servers' addresses. Peers of a server are told apart by their addresses, and so each kind of
// hostile client has one of its own, and the good clients have another.
const (
	nvmeAddr  = "127.83.0.1"
	nfsAddr   = "127.83.0.2"
	serveAddr = "127.83.0.3"
	proxyAddr = "127.83.0.4"
	backAddr  = "127.83.0.5" // of the proxy behind the proxy
	echoAddr  = "127.83.0.6" // and behind that
	goodAddr  = "127.83.2.1"
	nqn       = "nqn.2014-08.org.example:disk"
	token     = "of-the-test"
)

func hostileAddr(kind int) string { return fmt.Sprintf("127.83.1.%d", kind+1) }

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens a device at an address of the loopback interface.
func open(t testing.TB, addr string) *verbs.Device {
	t.Helper()
	host, err := kernel.New(&kernel.Config{Interface: "lo", Addrs: []string{addr}})
	ok(t, err)
	dev, err := rdmatransport.Open(host, nil)
	ok(t, err)
	t.Cleanup(func() {
		_ = dev.Close()
		_ = host.Close()
	})
	return dev
}

// server is a command that serves.
type server struct {
	name    string
	cmd     *exec.Cmd
	metrics string
	log     bytes.Buffer
	most    use
}

// use is what a process uses.
type use struct{ rss, threads, descriptors int } // rss in MiB

// bounds are those of each server's process. The limits of SECURITY.md allow less.
var bounds = use{rss: 2048, threads: 700, descriptors: 9000}

func start(t *testing.T, program, name, addr, args string) *server {
	t.Helper()
	s := &server{name: name, metrics: addr + ":9101"}
	s.cmd = exec.Command(program, append(strings.Fields(args), "--link", "kernel:lo", "--addr", addr, "--metrics", s.metrics)...)
	s.cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+filepath.Dir(program), "SOFTRNIC_CONFORM_TOKEN="+token)
	s.cmd.Stderr = &s.log
	ok(t, s.cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- s.cmd.Wait() }()
	t.Cleanup(func() {
		select {
		case err := <-ended:
			t.Errorf("%s has ended by itself: %v\n%s", name, err, tail(s.log.Bytes()))
			return
		default:
		}
		_ = s.cmd.Process.Signal(os.Interrupt)
		if err := <-ended; err != nil {
			t.Errorf("%s: %v\n%s", name, err, tail(s.log.Bytes()))
		}
	})
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("tcp", s.metrics); err == nil {
			_ = c.Close()
			return s
		}
		if time.Now().After(until) {
			t.Fatalf("%s does not serve", name)
		}
	}
}

func tail(b []byte) []byte { return b[max(0, len(b)-2000):] }

// measure notes what the server's process uses.
func (s *server) measure() use {
	var u use
	dir := filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid))
	b, _ := os.ReadFile(filepath.Join(dir, "status"))
	for line := range strings.Lines(string(b)) {
		switch f := strings.Fields(line); {
		case len(f) < 2:
		case f[0] == "VmRSS:":
			u.rss, _ = strconv.Atoi(f[1])
			u.rss /= 1024
		case f[0] == "Threads:":
			u.threads, _ = strconv.Atoi(f[1])
		}
	}
	fds, _ := os.ReadDir(filepath.Join(dir, "fd"))
	u.descriptors = len(fds)
	s.most = use{max(s.most.rss, u.rss), max(s.most.threads, u.threads), max(s.most.descriptors, u.descriptors)}
	return u
}

// pace is the time of a good client's operation, and the most that it may take. A client that has
// no answer within patience has failed.
const (
	pace     = 100 * time.Millisecond
	patience = 5 * time.Second
)

// good is a well-behaved client.
type good struct {
	name string
	do   func(context.Context) error
	done atomic.Int64
	err  atomic.Pointer[error] // the last
}

// run does one operation at each tick until ctx ends. The ticks that it misses are lost.
func (g *good) run(ctx context.Context) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		doing, cancel := context.WithTimeout(ctx, patience)
		err := g.do(doing)
		cancel()
		if err == nil {
			g.done.Add(1)
		} else if ctx.Err() == nil {
			g.err.Store(&err)
		}
	}
}

// speeds runs the good clients for a time, and returns how many operations a second each does.
func speeds(ctx context.Context, clients []*good, servers []*server, d time.Duration) map[string]float64 {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var all sync.WaitGroup
	for _, g := range clients {
		g.done.Store(0)
		all.Go(func() { g.run(ctx) })
	}
	for tick := time.NewTicker(200 * time.Millisecond); ctx.Err() == nil; <-tick.C {
		for _, s := range servers {
			s.measure()
		}
	}
	all.Wait()
	result := map[string]float64{}
	for _, g := range clients {
		result[g.name] = float64(g.done.Load()) / d.Seconds()
	}
	return result
}

// aloneTime is how long the good clients' own speed is measured.
const aloneTime = 10 * time.Second

// TestHostile: while hostile clients of all kinds work against each server, a good client of each
// keeps 0.8 of its speed, and each server's memory, threads and descriptors are bounded.
func TestHostile(t *testing.T) {
	gate.Long(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "softrnic")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/softrnic/softrnic/cmd/softrnic").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	echo(t, echoAddr+":7")
	servers := []*server{
		start(t, program, "nvme serve", nvmeAddr, "nvme serve --namespace memory,size=64M --nqn "+nqn),
		start(t, program, "nfs serve", nfsAddr, "nfs serve --memory 67108864 --no-portmap"),
		start(t, program, "serve --conform", serveAddr, "serve --conform --conform-addr "+serveAddr+":18516"),
		start(t, program, "proxy behind", backAddr, "proxy rocev2:7472 tcp:"+echoAddr+":7"),
		start(t, program, "proxy", proxyAddr, "proxy tcp:"+proxyAddr+":7471 rocev2:"+backAddr+":7472"),
	}
	clients := goodClients(t, open(t, goodAddr), servers)
	speeds(t.Context(), clients, servers, time.Second) // they connect
	alone := speeds(t.Context(), clients, servers, aloneTime)
	for _, g := range clients {
		if err := g.err.Swap(nil); err != nil {
			t.Logf("%s, alone: %v", g.name, *err)
		}
	}
	attacked := underAttack(t, func() map[string]float64 { return speeds(t.Context(), clients, servers, *duration) })
	errs := map[string]error{}
	for _, g := range clients {
		if err := g.err.Load(); err != nil {
			errs[g.name] = *err
		}
	}
	speeds(t.Context(), clients, servers, aloneTime) // what hostile clients have left ends
	after := speeds(t.Context(), clients, servers, aloneTime)

	for _, g := range clients {
		// Before and after, since the machine may also have other work.
		want := (alone[g.name] + after[g.name]) / 2
		ratio := attacked[g.name] / want
		t.Logf("result: good client of %s: %.1f/s alone, %.1f/s under attack (%.2f)", g.name, want, attacked[g.name], ratio)
		if !(ratio >= 0.8) {
			t.Errorf("%s: the good client has %.2f of its speed; its last error is %v", g.name, ratio, errs[g.name])
		}
	}
	for _, s := range servers {
		t.Logf("result: %s: at most %d MiB, %d threads, %d descriptors", s.name, s.most.rss, s.most.threads, s.most.descriptors)
		if s.most.rss > bounds.rss || s.most.threads > bounds.threads || s.most.descriptors > bounds.descriptors {
			t.Errorf("%s uses more than %+v", s.name, bounds)
		}
		for line := range strings.Lines(scrape(t, s)) {
			if strings.HasPrefix(line, "softrnic_refused_connections_total") || strings.HasPrefix(line, "softrnic_displaced_connections_total") {
				t.Logf("result: %s: %s", s.name, strings.TrimSpace(line))
			}
		}
	}
}

// underAttack calls f while hostile clients work. These are a process of their own, of low
// priority: in reality they use the processors of other machines.
func underAttack(t *testing.T, f func() map[string]float64) map[string]float64 {
	t.Helper()
	cmd := exec.Command("nice", "-n", "19", os.Args[0], "-test.run", "^TestClients$", "-test.v", "-test.timeout", "0")
	cmd.Env = append(os.Environ(), asClients+"=1")
	in, err := cmd.StdinPipe()
	ok(t, err)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	ok(t, cmd.Start())
	result := f()
	_ = in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the hostile clients: %v\n%s", err, tail(out.Bytes()))
	}
	for line := range strings.Lines(out.String()) {
		if _, said, is := strings.Cut(line, "result: "); is {
			t.Log("result: " + strings.TrimSpace(said))
		}
	}
	return result
}

// asClients is the environment variable that makes TestClients be the hostile clients.
const asClients = "SOFTRNIC_HOSTILE_CLIENTS"

// TestClients is the hostile clients of TestHostile, until stdin ends.
func TestClients(t *testing.T) {
	if os.Getenv(asClients) == "" {
		t.Skip("this is the process of hostile clients of TestHostile")
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	counts := attack(t, ctx, &all)
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop()
	all.Wait()
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("result: hostile clients, %s: %d", kind, counts[kind].Load())
	}
}

// dialFrom connects over TCP from an address.
func dialFrom(ctx context.Context, from, to string) (*net.TCPConn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// echo serves TCP connections, each of which gets back what it sends.
func echo(t *testing.T, addr string) {
	l, err := net.Listen("tcp", addr)
	ok(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 4096)
				for {
					n, err := c.Read(b)
					if err != nil {
						return
					}
					if _, err := c.Write(b[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
}
