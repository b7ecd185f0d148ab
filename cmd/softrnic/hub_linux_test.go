package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/tests/stacktest"
)

// TestMain runs softrnic hub if a node has started this program as a hub.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "hub" {
		main()
	}
	clitest.Main(m)
}

// runtimeDirectory sets a directory of the test for hubs, with a short path.
func runtimeDirectory(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "h")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Cleanup(func() { // end the hub now, before it is idle for long
		if pid := hubProcess(); pid != 0 && hub.Running(hub.Directory()) {
			for give := time.Now().Add(20 * time.Second); syscall.Kill(pid, syscall.SIGTERM) == nil && time.Now().Before(give); {
				time.Sleep(time.Millisecond)
			}
		}
		_ = os.RemoveAll(dir)
	})
}

// TestShared runs commands between nodes that share an address through a hub, which the first node
// starts.
func TestShared(t *testing.T) {
	runtimeDirectory(t)
	const addr = "127.15.1.1"
	const node = " --link kernel:lo --addr " + addr
	for _, c := range []struct{ server, says, client, prints string }{
		{"pingpong rc -c -s 100000 -n 50", "local address", "pingpong rc -c -s 100000 -n 50 " + addr, "50 iters"},
		{"pingpong uc -c -n 50", "local address", "pingpong uc -c -n 50 " + addr, "50 iters"},
		{"pingpong ud -c -s 2000 -n 50", "local address", "pingpong ud -c -s 2000 -n 50 " + addr, "50 iters"},
		{"pingpong srq -c -n 50", "local address", "pingpong srq -c -n 50 " + addr, "50 iters"},
		{"pingpong xsrq -n 50", "waiting for 1", "pingpong xsrq -n 50 " + addr, ""},
		{"rping -s -d", "listening", "rping -c -a " + addr + " -C 50 -S 5000 -V -v", "ping data: rdma-ping-49"},
		{"perf write bw", "Waiting", "perf write bw -D 20ms --warmup 1ms --transport rocev2 " + addr, "65536"},
		{"mckey -m 239.15.0.2 -C 50", "joined", "mckey -m 239.15.0.2 -C 50 -s", "50 messages of 100 bytes sent"},
		{"rping -s -d --strict-icrc", "listening", "rping -c -a " + addr + " -C 50 -V -v --strict-icrc --capture /dev/null",
			"ping data: rdma-ping-49"},
	} {
		s := serving(t, c.server+node+" --shared --counters", c.says)
		code, stdout, stderr := runCommand(t, c.client+node) // finds the hub by itself
		if code != 0 || !strings.Contains(stdout, c.prints) {
			t.Errorf("%s: exit code %d, stdout without %q:\n%s%s", c.client, code, c.prints, stdout, stderr)
		}
		s.ends()
		for _, bad := range []string{"icrc_", "malformed", "no carrier"} {
			if strings.Contains(s.said(), bad) {
				t.Errorf("%s: with %s it says %s:\n%s", c.server, c.client, bad, s.said())
			}
		}
	}
	stacktest.IPv6Loopback(t)
	const six = " --link kernel:lo --addr ::1" // a single address: two processes need a hub
	for _, c := range []struct{ server, says, client string }{
		{"pingpong rc -c -n 50", "local address", "pingpong rc -c -n 50 ::1"},
		{"pingpong ud -c -n 50", "local address", "pingpong ud -c -n 50 ::1"},
		{"rping -s -d", "listening", "rping -c -a ::1 -C 50 -V -v"},
		{"perf write bw", "Waiting", "perf write bw -D 20ms --warmup 1ms --transport rocev2 ::1"},
	} {
		s := serving(t, c.server+six+" --shared", c.says)
		if code, stdout, stderr := runCommand(t, c.client+six); code != 0 {
			t.Errorf("%s: exit code %d:\n%s%s", c.client, code, stdout, stderr)
		}
		s.ends()
	}
	if code, _, stderr := runCommand(t, "devinfo --link pipe --shared"); code != 2 || !strings.Contains(stderr, "--shared") {
		t.Errorf("--shared on a pipe: exit code %d, %s", code, stderr)
	}
	if code, _, stderr := runCommand(t, "hub"); code != 1 || !strings.Contains(stderr, "a hub is running already") {
		t.Errorf("a second hub: exit code %d, %s", code, stderr)
	}
}

// TestHub: the command serves the given addresses and ends when it is idle.
func TestHub(t *testing.T) {
	runtimeDirectory(t)
	began := time.Now()
	s := serving(t, "hub --addr 127.15.1.2 --idle 2s", "the hub is up")
	if !hub.Running(hub.Directory()) {
		t.Error("no hub is found")
	}
	if code, _, stderr := runCommand(t, "devinfo --link kernel:lo --addr 127.15.1.2"); code != 0 {
		t.Errorf("a node at an address of the hub's: exit code %d, %s", code, stderr)
	}
	s.ends()
	if d := time.Since(began); d < 2*time.Second {
		t.Errorf("it was idle for 2s after %v", d)
	}
	if hub.Running(hub.Directory()) {
		t.Error("there is a hub still")
	}
}

// hubProcess returns the process of the hub, or 0.
func hubProcess() int {
	pid, err := os.ReadFile(filepath.Join(hub.Directory(), "lock"))
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(pid)))
	return n
}
