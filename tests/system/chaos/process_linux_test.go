package chaos

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// process is a worker.
type process struct {
	t     *testing.T
	task  string
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Scanner
}

func start(t *testing.T, task ...string) *process {
	t.Helper()
	p := &process{t: t, task: strings.Join(task, " "), cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), workerEnv+"="+p.task)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(out)
	t.Cleanup(p.kill)
	return p
}

// line returns the next line that the process prints.
func (p *process) line() string {
	p.t.Helper()
	if !p.lines.Scan() {
		p.t.Fatalf("%s: it has ended", p.task)
	}
	return p.lines.Text()
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// rings returns the number of rings in the memory of a process.
func (p *process) rings() int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	return bytes.Count(b, []byte("memfd:softrnic-ring"))
}

// long returns n, or many in the long run.
func long(n, many int) int {
	if os.Getenv("SOFTRNIC_LONG") != "" {
		return many
	}
	return n
}

// await waits until ok returns true.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after 30 s: %s", what)
		}
	}
}

// directory creates a directory for sockets, with a short path, until the end of the test.
func directory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "c")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// setting describes how processes reach each other.
type setting struct {
	medium, dir string
	// Addresses of the servers and clients of the pairs, and of the processes that are killed.
	server, client func(i int) string
	victim         string
	// The pairs use these transports in turn. A killed process uses that of its server.
	transports []verbs.Transport
	// The last pairs, this many, have no rings with each other: their data passes through the hub.
	without int
	// The clients of the first pairs, this many, have addresses of their own, and no hub.
	outside int
}

// load is a set of processes that send to others.
type load struct {
	setting
	t                *testing.T
	servers, clients []*process
	random           *rand.Rand
}

// start starts pairs of processes.
func (s setting) start(t *testing.T, pairs int) *load {
	t.Helper()
	l := &load{setting: s, t: t, random: rand.New(rand.NewPCG(11, 12))}
	for i := range pairs {
		medium := s.medium
		if i >= pairs-s.without {
			medium = withoutRings
		}
		server := start(t, "server", medium, s.dir, l.transport(i), l.at(i))
		if l := server.line(); l != "up" {
			t.Fatal(l)
		}
		from := s.client(i)
		if i < s.outside {
			medium, from = unshared, fmt.Sprintf("%s%d", s.client(i)[:strings.LastIndexByte(s.client(i), '.')+1], 255-i)
		}
		client := start(t, "client", medium, s.dir, l.transport(i), from, l.at(i))
		if l := client.line(); l != "up" {
			t.Fatal(l)
		}
		l.servers, l.clients = append(l.servers, server), append(l.clients, client)
	}
	return l
}

// transport returns the transport of a pair.
func (l *load) transport(i int) string { return l.transports[i%len(l.transports)].String() }

// at returns the address and port of a server.
func (l *load) at(i int) string { return fmt.Sprintf("%s:%d", l.server(i), service+i) }

// killSome kills n processes. It calls after, if not nil, after each of them, with numbers from 1.
func (l *load) killSome(n int, after func(k int)) {
	l.t.Helper()
	for k := 1; k <= n; k++ {
		l.killOne()
		if after != nil {
			after(k)
		}
		if k%100 == 0 {
			l.t.Logf("%d killed", k)
		}
	}
}

// ringsEach waits until each process has the wanted number of rings in its memory. A process of a
// pair without rings has one, the hub's, and a process with an address of its own has none.
func (l *load) ringsEach(want int) {
	l.t.Helper()
	await(l.t, fmt.Sprintf("each process has %d rings", want), func() bool {
		done := true
		for i, p := range l.all() {
			n, pair := p.rings(), i%len(l.servers)
			switch {
			case pair < l.outside && i >= len(l.servers):
				done = done && n == 0
			case n == 0:
				l.t.Fatalf("%s: %s", p.task, p.line()) // it has ended
			case pair < l.outside || pair >= len(l.servers)-l.without:
				done = done && n == 1
			default:
				done = done && n == want
			}
		}
		return done
	})
}

// clientsOfHub returns the number of processes that share an address.
func (l *load) clientsOfHub() int { return len(l.all()) - l.outside }

// all returns the processes.
func (l *load) all() []*process {
	return append(l.servers[:len(l.servers):len(l.servers)], l.clients...)
}

// killOne starts a process that sends to one of the servers, and kills it at a random moment.
func (l *load) killOne() {
	l.t.Helper()
	to := l.random.IntN(len(l.servers))
	v := start(l.t, "victim", l.medium, l.dir, l.transport(to), l.victim, l.at(to))
	if l.random.IntN(4) > 0 { // otherwise it is killed while it joins
		if line := v.line(); line != "up" {
			l.t.Fatal(line)
		}
	}
	time.Sleep(time.Duration(l.random.IntN(30_000)) * time.Microsecond)
	v.kill()
}

// end ends the load, and checks that each message came once, in order and unchanged.
func (l *load) end() {
	l.t.Helper()
	for i, c := range l.clients {
		if err := c.stdin.Close(); err != nil {
			l.t.Fatal(err)
		}
		sent, received := c.line(), l.servers[i].line()
		n := 0
		if _, err := fmt.Sscanf(sent, "sent %d", &n); err != nil || n == 0 || received != fmt.Sprintf("received %d", n) {
			l.t.Errorf("pair %d: %q, %q", i, sent, received)
		}
	}
	for _, p := range l.all() {
		for p.lines.Scan() {
			l.t.Errorf("%s: %s", p.task, p.lines.Text())
		}
		if err := p.cmd.Wait(); err != nil {
			l.t.Errorf("%s: %v", p.task, err)
		}
	}
}
