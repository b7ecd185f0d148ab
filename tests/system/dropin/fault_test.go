//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// TestFaults: unmodified programs meet a fault, and end with an error of their own.
func TestFaults(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_rc_pingpong", "ibverbs-utils")
	needs(t, "/usr/bin/rping", "rdmacm-utils")
	dir := shared(t)
	for _, c := range []struct{ rule, program, want string }{
		{"reg_mr=ENOMEM", "ibv_rc_pingpong -g 1", "Couldn't register MR"},
		{"create_qp=ENOSPC", "ibv_rc_pingpong -g 1", "Couldn't create QP"},
		{"rdma_bind_addr=EADDRINUSE", "rping -s", "rdma_bind_addr"},
		{"cm=ADDR_ERROR", "rping -c -a 10.9.0.2", "RDMA_CM_EVENT_ADDR_ERROR"},
		{"alloc_pd=ENOMEM", "rping -c -a 10.9.0.1", "RDMA_CM_EVENT_ADDR_ERROR"}, // the library's own PD
		{"rdma_create_qp=ENOMEM", "rping -c -a 10.9.0.1", "setup_qp failed"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience())
		out, err := runner(ctx, t, dir, "--link shm:faults --addr 10.9.0.1/24 --fault "+c.rule, strings.Fields(c.program)...).CombinedOutput()
		if err == nil || ctx.Err() != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v: %s", c.rule, err, out)
		}
		cancel()
	}
}

// TestFaultOfCompletion: a completion of an unmodified program fails, and the trace says why.
func TestFaultOfCompletion(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_rc_pingpong", "ibverbs-utils")
	dir := shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	freePort++
	port := fmt.Sprint(freePort)
	server := runner(ctx, t, dir, "--link shm:faults --addr 10.9.0.1/24", "ibv_rc_pingpong", "-g", "1", "-p", port)
	var said proc.Output
	server.Stdout, server.Stderr = &said, &said
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	if err := listens(freePort, ended); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	trace := filepath.Join(dir, "trace")
	out, err := runner(ctx, t, dir, "--link shm:faults --addr 10.9.0.2/24 --trace "+trace+" --fault wc:opcode=send,nth=10=RETRY_EXC_ERR",
		"ibv_rc_pingpong", "-g", "1", "-p", port, "127.0.0.1").CombinedOutput()
	if err == nil || ctx.Err() != nil || !strings.Contains(string(out), "Failed status transport retry counter exceeded (12)") {
		t.Errorf("%v: %s", err, out)
	}
	if events, err := os.ReadFile(trace); err != nil || !strings.Contains(string(events), "fault injected") {
		t.Errorf("%v: the trace has no fault: %s", err, events)
	}
	cancel() // The server waits for the client's next message.
	<-ended
}

// TestFaultOfSockets: a program over sockets, run by softrnic run --sockets, sees the reset of its
// connection.
func TestFaultOfSockets(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/python3", "python3")
	dir := shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	out, err := runner(ctx, t, dir, "--sockets --link shm:faults --addr 10.9.0.1/24 --fault wc=RETRY_EXC_ERR", "/usr/bin/python3", "-c", `
import socket
s = socket.create_server(("10.9.0.1", 7790))
c = socket.create_connection(("10.9.0.1", 7790))
a, _ = s.accept()
try:
	c.sendall(b"x")
	print(a.recv(1), c.recv(1))
except OSError as e:
	print(type(e).__name__)
`).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "ConnectionResetError" {
		t.Errorf("%v: %s", err, out)
	}
}

// TestFailover: the port of a program that fails over as NCCL does goes down under traffic and
// comes up again, while the index of its GID has moved.
func TestFailover(t *testing.T) {
	gate.System(t)
	program := filepath.Join(build(t), "failover")
	if out, err := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/failover.c",
		"-libverbs").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	dir := shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	freePort++
	port := fmt.Sprint(freePort)
	server := runner(ctx, t, dir, "--link shm:failover --addr 10.9.0.1/24", program, port, "100", "10.9.0.1")
	client := runner(ctx, t, dir, "--link shm:failover --addr 10.9.0.2/24 --fault none", program, port, "100", "10.9.0.2", "127.0.0.1")
	var said [2]proc.Output
	ended := make(chan error, 2)
	for i, p := range []*exec.Cmd{server, client} {
		p.Stdout, p.Stderr = &said[i], &said[i]
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		one := make(chan error, 1)
		go func() {
			err := p.Wait()
			one <- err
			ended <- err
		}()
		if i == 0 {
			if err := listens(freePort, one); err != nil {
				t.Fatalf("%v\n%s", err, said[0].String())
			}
		}
	}
	for !strings.Contains(said[1].String(), "connected") && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	cmd := runner(ctx, t, dir, "")
	cmd.Args = []string{cmd.Path, "fault", strconv.Itoa(client.Process.Pid), "port=down", "addr=-10.9.0.2", "addr=+10.9.0.3/24",
		"addr=+10.9.0.2/24", "port:after=1s=up"}
	if out, err := cmd.CombinedOutput(); err != nil {
		cancel()
		t.Errorf("%v: %s\n%s", err, out, said[1].String())
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Errorf("%v\n%s\n%s", err, said[0].String(), said[1].String())
		}
	}
	for _, want := range []string{"connected with GID index 1", "transport retry counter exceeded", "port error", "GID table change",
		"port active", "connected with GID index 2", "messages, 1 failovers"} {
		if !strings.Contains(said[1].String(), want) {
			t.Errorf("the client did not say %q:\n%s", want, said[1].String())
		}
	}
}

// TestSweep: a sweep finds the calls of a program, and how it ends without each. --max ends it
// early, and --junit has the runs as test cases.
func TestSweep(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_devices", "ibverbs-utils")
	needs(t, "/usr/bin/ibv_devinfo", "ibverbs-utils")
	dir := shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	file := filepath.Join(dir, "junit.xml")
	for _, flags := range [][]string{{"--only", "open_device", "--junit", file}, {"--max", "1"}} {
		cmd := runner(ctx, t, dir, "")
		cmd.Env = append(cmd.Env, "SOFTRNIC_LINK=shm:sweep", "SOFTRNIC_ADDR=10.9.0.1/24")
		cmd.Args = slices.Concat([]string{cmd.Path, "fault", "--sweep"}, flags, []string{"--", "ibv_devinfo", "-d", "softrnic0"})
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "\n1 runs: ") || flags[0] == "--only" &&
			(!strings.Contains(string(out), "clean        open_device=ENOMEM:1") ||
				!strings.Contains(string(out), "1 clean, 0 exited 0, 0 crashed, 0 hung, 0 not reached")) {
			t.Errorf("%v: %v: %s", flags, err, out)
		}
	}
	xml, err := os.ReadFile(file)
	if text := string(xml); err != nil || !strings.Contains(text, `tests="1"`) || !strings.Contains(text, `failures="0"`) ||
		!strings.Contains(text, `name="open_device=ENOMEM:1"`) || !strings.Contains(text, `classname="ibv_devinfo"`) {
		t.Errorf("%v: %s", err, text)
	}
}
