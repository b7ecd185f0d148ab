// Package hostile runs the servers of the command line as a machine does, and hostile clients of
// many kinds against them, while good clients must go on at their speed.
package hostile

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
	hubAddr   = "127.83.0.7" // of the hub of the machine
	agentAddr = "127.83.0.8" // of a server under softrnic run --sockets
	goodAgent = "127.83.0.9" // and of its client
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
	log     journal
	most    use
}

// journal is the log of a server: its end, and how many lines it has.
type journal struct {
	mu    sync.Mutex
	end   []byte
	lines int
}

// Write implements io.Writer.
func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines += bytes.Count(b, []byte("\n"))
	j.end = tail(append(j.end, b...))
	return len(b), nil
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return string(j.end)
}

func (j *journal) count() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lines
}

// use is what a process uses.
type use struct{ rss, threads, descriptors int } // rss in MiB

// bounds are those of each server's process. The limits of SECURITY.md allow less.
var bounds = use{rss: 2048, threads: 700, descriptors: 9000}

// mostLines is the most that a server may log in a second, on average.
const mostLines = 50

// start starts a server with a node. Flags of the node follow its arguments.
func start(t *testing.T, program, name, addr, args string) *server {
	t.Helper()
	return startServer(t, name, addr, exec.Command(program, append(strings.Fields(args), "--link", "kernel:lo", "--addr", addr)...))
}

// startServer starts a server that serves metrics at an address.
func startServer(t *testing.T, name, addr string, cmd *exec.Cmd) *server {
	t.Helper()
	s := &server{name: name, metrics: addr + ":9101", cmd: cmd}
	at := slices.Index(cmd.Args, "--") // of softrnic run
	if at < 0 {
		at = len(cmd.Args)
	}
	cmd.Args = slices.Insert(cmd.Args, at, "--metrics", s.metrics)
	if cmd.Env == nil {
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+runtimeDirectory(t, os.Geteuid()), "SOFTRNIC_CONFORM_TOKEN="+token)
	}
	cmd.Stderr = &s.log
	ok(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		select {
		case err := <-ended:
			t.Errorf("%s has ended by itself: %v\n%s", name, err, &s.log)
			return
		default:
		}
		_ = cmd.Process.Signal(os.Interrupt)
		if err := <-ended; err != nil && !slices.Contains(cmd.Args, "--") { // a program ends by the signal
			t.Errorf("%s: %v\n%s", name, err, &s.log)
		}
	})
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("tcp", s.metrics); err == nil {
			_ = c.Close()
			return s
		}
		if time.Now().After(until) {
			t.Fatalf("%s does not serve:\n%s", name, &s.log)
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

// processors returns how many seconds of processors the server's process has used.
func (s *server) processors() float64 {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid), "stat"))
	_, after, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(after)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return float64(user+system) / 100 // USER_HZ
}

// pace is the time between two operations of a good client, and slowPace of one that only asks for
// metrics, while it is not its turn. A client that has no answer within patience has failed.
const (
	pace     = 20 * time.Millisecond
	slowPace = 200 * time.Millisecond
	patience = 5 * time.Second
)

// good is a well-behaved client.
type good struct {
	name string
	do   func(context.Context) error
	slow bool
	all  atomic.Int64          // operations
	err  atomic.Pointer[error] // the last
}

// run does one operation at each tick until ctx ends, or one after the other without a tick. The
// ticks that it misses are lost. It returns how many it has done.
func (g *good) run(ctx context.Context, tick <-chan time.Time) (done int) {
	for ctx.Err() == nil {
		if tick != nil {
			select {
			case <-tick:
			case <-ctx.Done():
				return done
			}
		}
		doing, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		err := g.do(doing)
		cancel()
		if err != nil {
			g.err.Store(&err)
		} else if g.all.Add(1); ctx.Err() == nil {
			done++
		}
	}
	return done
}

// speeds are the operations a second of good clients, and how many processors the servers have kept
// busy while the clients were at their pace.
type speeds struct{ paced, unpaced, busy map[string]float64 }

// measure runs the good clients for a time. In the first half of it all are at their pace. In the
// second each in turn works as fast as it can, while the others go on at their pace.
func measure(t *testing.T, clients []*good, servers []*server, d time.Duration) speeds {
	sampling, stop := context.WithCancel(t.Context())
	var sampler sync.WaitGroup
	defer sampler.Wait()
	defer stop()
	sampler.Go(func() {
		for tick := time.NewTicker(200 * time.Millisecond); sampling.Err() == nil; <-tick.C {
			for _, s := range servers {
				s.measure()
			}
		}
	})
	s := speeds{map[string]float64{}, map[string]float64{}, map[string]float64{}}
	for _, server := range servers {
		s.busy[server.name] = -server.processors()
	}
	s.turn(t.Context(), clients, nil, d/2)
	for _, server := range servers {
		s.busy[server.name] = (s.busy[server.name] + server.processors()) / (d / 2).Seconds()
	}
	for _, g := range clients {
		s.turn(t.Context(), clients, g, d/2/time.Duration(len(clients)))
	}
	return s
}

// turn runs the good clients for a time. Only fast has no pace; if it is nil, the speeds of all are
// noted.
func (s *speeds) turn(ctx context.Context, clients []*good, fast *good, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, g := range clients {
		all.Go(func() {
			var tick <-chan time.Time
			if g != fast {
				ticker := time.NewTicker(map[bool]time.Duration{false: pace, true: slowPace}[g.slow])
				defer ticker.Stop()
				tick = ticker.C
			}
			speed := float64(g.run(ctx, tick)) / d.Seconds()
			mu.Lock()
			defer mu.Unlock()
			switch fast {
			case nil:
				s.paced[g.name] = speed
			case g:
				s.unpaced[g.name] = speed
			}
		})
	}
	all.Wait()
}

// TestHostile: while hostile clients of all kinds work against each server, a good client of each
// keeps 0.8 of its speed, and each server's memory, threads, descriptors and log are bounded.
//
// A good client's speed is measured twice: at a pace of fifty operations a second, as all good
// clients together would otherwise compete for the processors, and as fast as it can while the
// others keep their pace. The hostile clients are on this machine too. They run when nothing else
// does, since in reality they use processors of their own; what servers do for them counts, and is
// what a client without a pace loses. How much that is depends on the processors: the numbers are
// in the results, and only the pace has to be kept.
func TestHostile(t *testing.T) {
	gate.Long(t)
	if os.Geteuid() != 0 {
		t.Skip("the servers have clients of several users: it needs root")
	}
	dir := publicDirectory(t)
	if out, err := exec.Command("go", "run", "github.com/softrnic/softrnic/cmd/dropin/build", "-prefix", dir).CombinedOutput(); err != nil {
		t.Fatalf("the drop-in libraries: %v\n%s", err, out)
	}
	program := filepath.Join(dir, "bin", "softrnic")
	echo(t, echoAddr+":7")
	dev := open(t, goodAddr)
	servers := []*server{
		start(t, program, "nvme serve", nvmeAddr, "nvme serve --namespace memory,size=64M --nqn "+nqn),
		start(t, program, "nfs serve", nfsAddr, "nfs serve --memory 67108864 --no-portmap"),
		start(t, program, "serve --conform", serveAddr, "serve --conform --conform-addr "+serveAddr+":18516"),
		start(t, program, "proxy behind", backAddr, "proxy rocev2:7472 tcp:"+echoAddr+":7"),
		start(t, program, "proxy", proxyAddr, "proxy tcp:"+proxyAddr+":7471 rocev2:"+backAddr+":7472"),
	}
	local, member := startHub(t, program)
	agents, bouncing := startAgents(t, dev, dir)
	servers = slices.Concat(servers, local, agents)
	clients := append(goodClients(t, dev, servers), member, bouncing)
	warm := speeds{paced: map[string]float64{}}
	warm.turn(t.Context(), clients, nil, time.Second) // they connect
	alone := *duration / 8
	before := measure(t, clients, servers, alone)
	for _, g := range clients {
		if err := g.err.Swap(nil); err != nil {
			t.Logf("%s, alone: %v", g.name, *err)
		}
	}
	quiet := map[string]int{}
	for _, s := range servers {
		quiet[s.name] = s.log.count()
	}
	attacked := underAttack(t, func() speeds { return measure(t, clients, servers, *duration) })
	errs := map[string]error{}
	for _, g := range clients {
		if err := g.err.Load(); err != nil {
			errs[g.name] = *err
		}
	}
	for _, s := range servers {
		n := s.log.count() - quiet[s.name]
		t.Logf("result: %s: %d lines of log", s.name, n)
		if n > int(mostLines*duration.Seconds()) {
			t.Errorf("%s: its log has %d lines; it ends with\n%s", s.name, n, &s.log)
		}
	}
	warm.turn(t.Context(), clients, nil, 10*time.Second) // what hostile clients have left ends
	after := measure(t, clients, servers, alone)

	for _, g := range clients {
		// Before and after, since the machine may also have other work.
		ratio := func(how string, before, after, attacked map[string]float64) (ratio float64) {
			alone := (before[g.name] + after[g.name]) / 2
			r := attacked[g.name] / alone
			t.Logf("result: good client of %s, %s: %.1f/s alone, %.1f/s under attack (%.2f)", g.name, how, alone, attacked[g.name], r)
			return r
		}
		if r := ratio("at its pace", before.paced, after.paced, attacked.paced); !(r >= 0.8) {
			t.Errorf("%s: the good client has %.2f of its speed; its last error is %v", g.name, r, errs[g.name])
		}
		ratio("as fast as it can", before.unpaced, after.unpaced, attacked.unpaced)
	}
	carried(t, agents, bouncing)
	for _, s := range servers {
		t.Logf("result: %s: at most %d MiB, %d threads, %d descriptors; %.2f processors alone, %.2f under attack", s.name, s.most.rss,
			s.most.threads, s.most.descriptors, before.busy[s.name], attacked.busy[s.name])
		if s.most.rss > bounds.rss || s.most.threads > bounds.threads || s.most.descriptors > bounds.descriptors {
			t.Errorf("%s uses more than %+v", s.name, bounds)
		}
		for line := range strings.Lines(scrape(t, s)) {
			for _, counter := range []string{"softrnic_refused_connections_total", "softrnic_displaced_connections_total",
				"softrnic_limit_reached_total", "softrnic_hub_refused_total", "softrnic_hub_dropped_datagrams_total"} {
				if strings.HasPrefix(line, counter) {
					t.Logf("result: %s: %s", s.name, strings.TrimSpace(line))
				}
			}
		}
	}
}

// underAttack calls f while hostile clients work. These are processes of their own, of the
// lowest priority: one over the network, and some of a user of this machine.
func underAttack(t *testing.T, f func() speeds) speeds {
	t.Helper()
	var all []*exec.Cmd
	var outs []*bytes.Buffer
	var ends []io.Closer
	for i := range 1 + hostileProcesses {
		cmd := exec.Command("/proc/self/exe", "-test.run", "^TestClients$", "-test.v", "-test.timeout", "0")
		cmd.Env = append(os.Environ(), asClients+"=network")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if i > 0 {
			cmd.Env, cmd.Dir = append(os.Environ(), asClients+"=user"), "/"
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: bob, Gid: bob}
		}
		in, err := cmd.StdinPipe()
		ok(t, err)
		out := new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = out, out
		ok(t, startIdle(cmd))
		all, outs, ends = append(all, cmd), append(outs, out), append(ends, in)
	}
	result := f()
	for _, in := range ends {
		_ = in.Close()
	}
	counts := map[string]int{}
	for i, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Errorf("the hostile clients: %v\n%s", err, tail(outs[i].Bytes()))
		}
		for line := range strings.Lines(outs[i].String()) {
			if _, said, is := strings.Cut(line, "hostile clients, "); is {
				at := strings.LastIndex(said, ": ")
				n, _ := strconv.Atoi(strings.TrimSpace(said[at+2:]))
				counts[said[:at]] += n
			}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("result: hostile clients, %s: %d", kind, counts[kind])
		if counts[kind] == 0 {
			t.Errorf("hostile clients, %s: they did nothing", kind)
		}
	}
	return result
}

// startIdle starts a program all of whose threads run when no others want to. A thread inherits
// this from the one that makes it, and so the first one has it from ours.
func startIdle(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return err
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); err != nil {
		return err
	}
	return errors.Join(cmd.Start(), unix.SchedSetAttr(0, attr, 0))
}

// asClients is the environment variable that makes TestClients be the hostile clients.
const asClients = "SOFTRNIC_HOSTILE_CLIENTS"

// TestClients is hostile clients of TestHostile, until stdin ends.
func TestClients(t *testing.T) {
	as := os.Getenv(asClients)
	if as == "" {
		t.Skip("this is a process of hostile clients of TestHostile")
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var counts counters
	if as == "user" {
		counts = attackLocally(ctx, &all)
	} else {
		counts = attack(t, ctx, &all)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop()
	all.Wait()
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("hostile clients, %s: %d", kind, counts[kind].Load())
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
