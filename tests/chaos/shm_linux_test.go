package chaos

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/shm"
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

// line is the next that the process prints.
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

// rings is how many rings are in the memory of a process.
func (p *process) rings() int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	return bytes.Count(b, []byte("memfd:softrnic-ring"))
}

// TestShm: processes on a segment in shared memory are killed at random moments, while they connect to, and send to, others
// that are under load. The data of every other pair is right, and comes once and in order; no file and no memory is left.
// SOFTRNIC_LONG: 1,000 are killed, with 16 others; else 10, with 6.
func TestShm(t *testing.T) {
	pairs, kills := 3, 10
	if os.Getenv("SOFTRNIC_LONG") != "" {
		pairs, kills = 8, 1000
	}
	dir, err := os.MkdirTemp("", "c") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var servers, clients []*process
	server := func(i int) string { return fmt.Sprintf("10.1.%d.1", i) }
	for i := range pairs {
		s := start(t, "server", dir, server(i))
		if l := s.line(); l != "up" {
			t.Fatal(l)
		}
		c := start(t, "client", dir, fmt.Sprintf("10.1.%d.2", i), server(i))
		if l := c.line(); l != "up" {
			t.Fatal(l)
		}
		servers, clients = append(servers, s), append(clients, c)
	}
	all := append(servers[:pairs:pairs], clients...)
	r := rand.New(rand.NewPCG(11, 12))
	for k := range kills {
		i := r.IntN(pairs)
		v := start(t, "victim", dir, "10.1.100.1", server(i))
		if r.IntN(4) > 0 { // else while it joins
			if l := v.line(); l != "up" {
				t.Fatal(l)
			}
		}
		time.Sleep(time.Duration(r.IntN(30_000)) * time.Microsecond)
		v.kill() // its address is free at once
		if k%100 == 99 {
			t.Logf("%d killed", k+1)
		}
	}
	for _, p := range all {
		want := 2 * (len(all) - 1)
		for deadline := time.Now().Add(20 * time.Second); p.rings() != want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				for _, q := range all {
					if t.Errorf("%s has %d rings, want %d", q.task, q.rings(), want); q.rings() == 0 {
						t.Error(q.line())
					}
				}
				t.FailNow()
			}
		}
	}
	for i, c := range clients {
		if err := c.stdin.Close(); err != nil {
			t.Fatal(err)
		}
		sent, received := c.line(), servers[i].line()
		n := 0
		if _, err := fmt.Sscanf(sent, "sent %d", &n); err != nil || n == 0 || received != fmt.Sprintf("received %d", n) {
			t.Errorf("pair %d: %q, %q", i, sent, received)
		}
	}
	for _, p := range all {
		for p.lines.Scan() {
			t.Errorf("%s: %s", p.task, p.lines.Text())
		}
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("%s: %v", p.task, err)
		}
	}
	l, err := shm.Open(segmentName, shm.Directory(dir)) // whoever joins cleans up
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "shm-"+segmentName)); len(left) > 0 || err != nil {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}
