//go:build linux && amd64

// Package dropin runs Debian's programs for libibverbs on the drop-in libraries, as a user without
// privileges.
package dropin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/system/internal/libraries"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

func TestMain(m *testing.M) {
	code := m.Run()
	libraries.Remove()
	if err := programs.Save("../internal/programs"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// turn reports whether program i runs over medium j of n. In the long run each program runs over
// all media, otherwise each over the next one.
func turn(i, j, n int) bool { return os.Getenv("SOFTRNIC_LONG") != "" || i%n == j }

// patience returns the time limit of a pair of programs. Before each of the 23 sizes of -a,
// perftest measures the frequency of the processor for a quarter of a second of CPU time, on both
// sides.
func patience() time.Duration {
	if os.Getenv("SOFTRNIC_LONG") != "" {
		return 4 * time.Minute
	}
	return time.Minute
}

// needs skips a test on a machine that lacks a file.
func needs(t *testing.T, file, pkg string) {
	t.Helper()
	if _, err := os.Stat(file); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("there is no %s: install %s", file, pkg)
		}
		t.Skipf("there is no %s: install %s", file, pkg)
	}
}

// build builds the libraries and returns their directory, which every user may read.
func build(t *testing.T) string {
	t.Helper()
	needs(t, "/usr/bin/gcc", "gcc")
	needs(t, "/usr/include/infiniband/verbs.h", "libibverbs-dev")
	needs(t, "/usr/include/rdma/rdma_cma.h", "librdmacm-dev")
	dir, err := libraries.Directory()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// nobody is the user of programs if the test has privileges to drop.
const nobody = 65534

// shared returns a directory that only nobody may write to, or the unprivileged user who runs the
// test.
func shared(t *testing.T) string {
	t.Helper()
	build(t) // before the test's time limits begin
	dir, err := os.MkdirTemp("", "dropin")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if os.Getuid() == 0 {
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// node is a process with its own device.
type node struct {
	env      []string
	counters string // the file
}

// program returns a command of the node.
func (n *node) program(ctx context.Context, t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append([]string{"LD_LIBRARY_PATH=" + build(t), "PATH=/usr/bin:/bin"}, n.env...)
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	return cmd
}

// counted returns the counters of the node's processes.
func (n *node) counted(t *testing.T) map[string]uint64 {
	t.Helper()
	sum, err := programs.Counted(n.counters)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// endpoints are a link between two processes, and the addresses of both.
type endpoints struct {
	link, server, client string
	links                [2]string // of server and client, if each has its own
	env                  []string  // additional environment
}

var links = []endpoints{
	{link: "shm:pair", server: "10.9.0.1/24", client: "10.9.0.2/24"},
	{link: "kernel:lo", server: "127.18.0.1", client: "127.18.0.2"},
}

// name returns the link's name in the table of programs.
func (l endpoints) name() string {
	if strings.HasPrefix(l.link, "shm") {
		return "shared memory"
	}
	return "sockets"
}

// pair returns two nodes on one of links.
func pair(t *testing.T, link int) (server, client *node) {
	t.Helper()
	return links[link].pair(t)
}

func (l endpoints) pair(t *testing.T) (server, client *node) {
	t.Helper()
	dir := shared(t)
	of := func(name, addr string) *node {
		n := &node{counters: filepath.Join(dir, name)}
		n.env = []string{"SOFTRNIC_LINK=" + l.link, "SOFTRNIC_ADDR=" + addr, "SOFTRNIC_COUNTERS=" + n.counters, "SOFTRNIC_SHARED=0",
			"XDG_RUNTIME_DIR=" + dir}
		n.env = append(n.env, l.env...)
		return n
	}
	return of("server", l.server), of("client", l.client)
}

// run runs a server and, when it listens on a TCP port of the machine, a client, and returns their
// output.
func run(t *testing.T, server, client *exec.Cmd, port int) (said string) {
	t.Helper()
	var out [2]bytes.Buffer
	server.Stdout, server.Stderr = &out[0], &out[0]
	client.Stdout, client.Stderr = &out[1], &out[1]
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	if err := listens(port, ended); err != nil {
		t.Fatalf("%v: %v\n%s", server.Args, err, out[0].String())
	}
	err := client.Run()
	if err != nil {
		_ = server.Process.Kill()
	}
	serverErr := <-ended
	said = fmt.Sprintf("%v\n%s%v\n%s", server.Args, out[0].String(), client.Args, out[1].String())
	if err != nil || serverErr != nil {
		t.Fatalf("server: %v, client: %v\n%s", serverErr, err, said)
	}
	return said
}

// listens waits until a socket listens on a TCP port, without connecting to it: a program may
// accept one connection only.
func listens(port int, ended <-chan error) error { return listensAt("self", port, ended) }

// listensAt is listens in the network namespace of a process.
func listensAt(pid string, port int, ended <-chan error) error {
	suffix := fmt.Sprintf(":%04X", port)
	for range 2000 {
		for _, file := range []string{"/proc/" + pid + "/net/tcp", "/proc/" + pid + "/net/tcp6"} {
			text, err := os.ReadFile(file)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], suffix) && f[3] == "0A" {
					return nil
				}
			}
		}
		select {
		case err := <-ended:
			return fmt.Errorf("it ended before it listened: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("no program listens on port %d", port)
}
