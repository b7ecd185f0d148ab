//go:build linux && amd64

package dropin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// compile compiles a program of testdata, and returns its file. Functions of libc that the program has itself are the libraries' too.
func compile(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(build(t), name)
	if out, err := exec.Command("gcc", "-O2", "-fexceptions", "-rdynamic", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/"+name+".c", "-lrdmacm", "-libverbs", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return program
}

// onLinks calls f with a command of a program's, within a process and over shared memory.
func onLinks(t *testing.T, program string, f func(link string, command func(args ...string) *exec.Cmd)) {
	t.Helper()
	for _, link := range []string{"pipe", "shm:" + filepath.Base(program)} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		n, _ := pair(t, 0)
		n.env = append(n.env, "SOFTRNIC_LINK="+link)
		f(link, func(args ...string) *exec.Cmd { return n.program(ctx, t, program, args...) })
		cancel()
	}
}

// TestSignals runs testdata/signals.c, which says what it tests; and a program that ends by its own fault ends as any other.
func TestSignals(t *testing.T) {
	gate.System(t)
	onLinks(t, compile(t, "signals"), func(link string, command func(args ...string) *exec.Cmd) {
		out, err := command().CombinedOutput()
		t.Logf("%s: %s", link, out)
		if err != nil {
			t.Error(err)
		}
		out, err = command("die").CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSEGV {
			t.Errorf("%s: a program with a fault of its own: %v, want SIGSEGV\n%s", link, err, out)
		}
	})
}

// TestTwoCQs runs testdata/twocqs.c, which says what it tests.
func TestTwoCQs(t *testing.T) {
	gate.System(t)
	onLinks(t, compile(t, "twocqs"), func(link string, command func(args ...string) *exec.Cmd) {
		if out, err := command().CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", link, err, out)
		}
	})
}

// TestClumsy runs testdata/clumsy.c, which says what it tests.
func TestClumsy(t *testing.T) {
	gate.System(t)
	program := compile(t, "clumsy")
	for _, link := range []string{"pipe", "shm:clumsy"} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		n, _ := pair(t, 0)
		n.env = append(n.env, "SOFTRNIC_LINK="+link)
		if out, err := n.program(ctx, t, program).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", link, err, out)
		}
	}
}

// TestKilled: programs that are killed in the middle of a transfer leave nothing behind that harms the next with their addresses, and
// no file when that has ended; nor does the hub, if they are its, keep anything of theirs. With SOFTRNIC_LONG a hundred are killed.
func TestKilled(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ib_write_bw", "perftest")
	t.Run("shm", func(t *testing.T) { killed(t, links[0], 5) })
	t.Run("hub", func(t *testing.T) {
		killed(t, endpoints{link: "kernel:lo", server: "127.14.10.1", client: "127.14.10.2", env: []string{"SOFTRNIC_SHARED=1"}}, 3)
	})
}

func killed(t *testing.T, link endpoints, kills int) {
	if os.Getenv("SOFTRNIC_LONG") != "" {
		kills = 100
	}
	softrnic := command(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(60+10*kills)*time.Second)
	defer cancel()
	server, client := link.pair(t)
	dir := filepath.Dir(server.counters)
	bandwidth := func(flags ...string) (s, c *exec.Cmd) {
		freePort++
		args := append([]string{"-d", "softrnic0", "-x", "1", "-F", "-p", fmt.Sprint(freePort)}, flags...)
		return server.program(ctx, t, "ib_write_bw", args...), client.program(ctx, t, "ib_write_bw", append(args, "127.0.0.1")...)
	}
	whole := func() {
		s, c := bandwidth("-n", "500")
		run(t, s, c, freePort)
		for _, n := range []*node{server, client} {
			if err := os.Remove(n.counters); err != nil {
				t.Error(err)
			}
		}
	}
	var hub *exec.Cmd
	if link.env != nil {
		hub = server.program(ctx, t, softrnic, "hub")
		if err := hub.Start(); err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			if sockets, _ := filepath.Glob(filepath.Join(dir, "softrnic/hub-*/socket")); len(sockets) == 1 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	whole()
	var files map[string]bool // the hub's
	if hub != nil {
		files = filesIn(t, dir)
	}
	descriptors := openBy(t, hub)
	for i := range kills {
		s, c := bandwidth("-D", "30")
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- s.Wait() }()
		if err := listens(freePort, ended); err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(100+50*(i%10)) * time.Millisecond) // it begins, or is under way
		for _, p := range []*os.Process{c.Process, s.Process} {     // the server ends when its client has
			if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Error(err)
			}
		}
		_ = c.Wait()
		<-ended
	}
	whole()
	for range 100 { // the hub is told of the end of its clients by their sockets
		if openBy(t, hub) <= descriptors {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if now := openBy(t, hub); now > descriptors {
		t.Errorf("the hub has %d descriptors open after %d programs were killed, and had %d before", now, 2*kills, descriptors)
	}
	for file := range filesIn(t, dir) {
		if !files[file] {
			t.Errorf("%s is left", file)
		}
	}
	if hub != nil {
		if err := errors.Join(hub.Process.Signal(syscall.SIGTERM), hub.Wait()); err != nil {
			t.Errorf("the hub: %v", err)
		}
	}
}

// filesIn are the files in a directory, and below.
func filesIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files := map[string]bool{}
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files[file] = true
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return files
}

// openBy is how many descriptors a process has open; 0 of nil.
func openBy(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	if cmd == nil {
		return 0
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid))
	if err != nil {
		t.Error(err)
	}
	return len(fds)
}
