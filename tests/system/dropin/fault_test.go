//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
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
	for _, c := range []struct{ rule, program, want string }{
		{"open_device=ENODEV", "ibv_rc_pingpong -g 1", "Couldn't get context"},
		{"alloc_pd=ENOMEM", "ibv_rc_pingpong -g 1", "Couldn't allocate PD"},
		{"reg_mr=ENOMEM", "ibv_rc_pingpong -g 1", "Couldn't register MR"},
		{"create_cq=ENOMEM", "ibv_rc_pingpong -g 1", "Couldn't create CQ"},
		{"create_qp=ENOSPC", "ibv_rc_pingpong -g 1", "Couldn't create QP"},
		{"modify_qp:init=EINVAL", "ibv_rc_pingpong -g 1", "Failed to modify QP to INIT"},
		{"post_recv=ENOMEM", "ibv_rc_pingpong -g 1", "Couldn't post receive"},
		{"rdma_create_event_channel=ENODEV", "rping -s", "rdma_create_event_channel"},
		{"rdma_create_id=ENOMEM", "rping -s", "rdma_create_id"},
		{"rdma_bind_addr=EADDRINUSE", "rping -s", "rdma_bind_addr"},
		{"cm=ADDR_ERROR", "rping -c -a 10.9.0.2", "RDMA_CM_EVENT_ADDR_ERROR"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			dir := shared(t)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			out, err := runner(ctx, t, dir, "--link shm:faults --addr 10.9.0.1/24 --fault "+c.rule, strings.Fields(c.program)...).CombinedOutput()
			if err == nil || ctx.Err() != nil || !strings.Contains(string(out), c.want) {
				t.Errorf("%v: %s", err, out)
			}
		})
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
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	freePort++
	port := fmt.Sprint(freePort)
	server := runner(ctx, t, dir, "--link shm:failover --addr 10.9.0.1/24", program, port, "2000", "10.9.0.1")
	client := runner(ctx, t, dir, "--link shm:failover --addr 10.9.0.2/24 --fault none", program, port, "2000", "10.9.0.2", "127.0.0.1")
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
		t.Fatalf("%v: %s\n%s", err, out, said[1].String())
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Errorf("%v\n%s\n%s", err, said[0].String(), said[1].String())
		}
	}
	for _, want := range []string{"connected with GID index 1", "transport retry counter exceeded", "port error", "GID table change",
		"port active",
		"connected with GID index 2", "2000 messages, 1 failovers"} {
		if !strings.Contains(said[1].String(), want) {
			t.Errorf("the client did not say %q:\n%s", want, said[1].String())
		}
	}
}

// TestSweep: a sweep finds the calls of a program, and how it ends without each.
func TestSweep(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_rc_pingpong", "ibverbs-utils")
	dir := shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := runner(ctx, t, dir, "")
	cmd.Args = []string{cmd.Path, "fault", "--sweep", "--only", "create", "--timeout", "5s", "--settle", "500ms",
		"--server", command(t) + " run -- ibv_rc_pingpong -g 1 -n 5", "--", "ibv_rc_pingpong", "-g", "1", "-n", "5", "127.0.0.1"}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "clean        create_qp=ENOMEM:1") ||
		!strings.Contains(string(out), "0 crashed, 0 hung, 0 not reached") {
		t.Errorf("%v: %s", err, out)
	}
}
