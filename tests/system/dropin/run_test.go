//go:build linux && amd64

package dropin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// command returns the file of the command softrnic, which is beside the libraries.
func command(t *testing.T) string {
	t.Helper()
	return filepath.Join(build(t), "softrnic")
}

// runner returns softrnic run with arguments, as nobody.
func runner(ctx context.Context, t *testing.T, dir, args string, program ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, command(t), append(append([]string{"run"}, strings.Fields(args)...),
		append([]string{"--"}, program...)...)...)
	cmd.Env, cmd.Dir = []string{"PATH=/usr/bin:/bin", "XDG_RUNTIME_DIR=" + dir, "TMPDIR=" + dir}, "/"
	cmd.WaitDelay = time.Second
	if syscall.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	return cmd
}

// TestRunFullDisk: softrnic run fails if a process of the program could not write its trace or its
// counters, and not otherwise.
func TestRunFullDisk(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_rc_pingpong", "ibverbs-utils")
	dir := shared(t)
	trace := filepath.Join(dir, "trace")
	for _, c := range []struct {
		args, env, program string
		status             int
	}{
		{"--trace " + trace, "", "true", 0},
		{"--sysfs off --trace /dev/full", "", "true", 1},
		{"--trace /dev/full", "", "true", 1},
		{"--sysfs preload", "SOFTRNIC_TRACE=/dev/full", "true", 1},
		{"", "SOFTRNIC_COUNTERS=/dev/full", "true", 1},
		{"--trace /dev/full", "", "exit 3", 3},
	} {
		// There is no server: the client's QP goes to INIT, and the client fails.
		cmd := runner(t.Context(), t, dir, "--link pipe --addr 10.9.0.1/24 "+c.args, "sh", "-c",
			"ibv_rc_pingpong -p 1 127.0.0.1; "+c.program)
		cmd.Env = append(cmd.Env, c.env)
		out, _ := cmd.CombinedOutput()
		if status := cmd.ProcessState.ExitCode(); status != c.status ||
			strings.Contains(string(out), "no space left on device") != (c.status != 0) {
			t.Errorf("%s %s, and %s: exit status %d, want %d\n%s", c.args, c.env, c.program, status, c.status, out)
		}
	}
	if b, err := os.ReadFile(trace); err != nil || !strings.Contains(string(b), "INIT") {
		t.Errorf("trace: %v\n%s", err, b)
	}
}

// TestRun: a program sees the devices in the kernel's places, has no more privileges than before,
// and its exit status is that of softrnic run.
func TestRun(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_devinfo", "ibverbs-utils")
	dir := shared(t)
	if out, err := runner(t.Context(), t, dir, "--link pipe --addr 10.9.0.1/24 --sysfs on", "true").CombinedOutput(); err != nil {
		t.Skipf("no mount namespace for a user without privileges: %s", out)
	}
	out, err := runner(t.Context(), t, dir, "--link pipe --addr 10.9.0.1/24 --device mlx5_0,siw0 --speed 100", "sh", "-c", `
		cd /sys/class/infiniband
		cat mlx5_0/ports/1/rate
		echo $(ibv_devinfo -v -d siw0 | grep active_)
		echo $(ls) $(cat mlx5_0/node_type siw0/node_type mlx5_0/ports/1/gids/1 mlx5_0/ports/1/gid_attrs/types/1 mlx5_0/ports/1/state)
		test -c /dev/infiniband/uverbs0 && test -e /dev/urandom && test -d /sys/class/net && echo the rest is there
		grep CapEff /proc/self/status
		kill -TERM $$`).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 128+int(syscall.SIGTERM) {
		t.Errorf("%v, want exit status 143", err)
	}
	for _, want := range []string{
		"100 Gb/sec (4X EDR)", "active_width: 4X (2) active_speed: 25.0 Gbps (32)",
		"mlx5_0 siw0 1: CA 4: RNIC 0000:0000:0000:0000:0000:ffff:0a09:0001 RoCE v2 4: ACTIVE", "the rest is there", "0000000000000000",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the program does not see %q:\n%s", want, out)
		}
	}
	out, err = runner(t.Context(), t, dir, "--link pipe --speed 100 --width 12", "true").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "12 lanes do not make 100 Gbit/s") {
		t.Errorf("a rate that no port has: %v\n%s", err, out)
	}
	out, err = runner(t.Context(), t, dir, "--link pipe", "no-such-program").CombinedOutput()
	if !errors.As(err, &exit) || exit.ExitCode() != 127 {
		t.Errorf("a program that is not there: %v, want exit status 127\n%s", err, out)
	}
}

// TestRunPreload: if a user may create no mount namespace, a preloaded library shows the devices.
func TestRunPreload(t *testing.T) {
	gate.System(t)
	dir := shared(t)
	out, err := runner(t.Context(), t, dir, "--link pipe --addr 10.9.0.1/24 --sysfs preload --device mlx5_0,siw0", "sh", "-c", `
		cd /
		echo $(ls /sys/class/infiniband) $(cat /sys/class/infiniband/*/node_type /sys/class/infiniband/mlx5_0/ports/1/gids/1)
		test -c /dev/infiniband/uverbs0 && test -e /dev/urandom && test -d /sys/class/net && echo the rest is there
		python3 -c 'import os; print(os.listdir("/sys/class/infiniband_verbs/uverbs1"), open("/sys/class/infiniband/mlx5_0/ports/1/state").read())'
		stat --format=%F /sys/class/infiniband/siw0
		echo $SOFTRNIC_SYSFS
		kill -TERM $$`).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 128+int(syscall.SIGTERM) {
		t.Errorf("%v, want exit status 143", err)
	}
	for _, want := range []string{
		"mlx5_0 siw0 1: CA 4: RNIC 0000:0000:0000:0000:0000:ffff:0a09:0001", "the rest is there", "ibdev", "4: ACTIVE", "symbolic link",
		"/softrnic-run",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the program does not see %q:\n%s", want, out)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "softrnic-run*")); err != nil || len(left) > 0 {
		t.Errorf("%v is left (%v)", left, err)
	}
}

// TestRunPreloadFortified: calls of realpath compiled with _FORTIFY_SOURCE see the devices, too.
func TestRunPreloadFortified(t *testing.T) {
	gate.System(t)
	dir := shared(t)
	program := filepath.Join(build(t), "fortified")
	source := exec.Command("gcc", "-x", "c", "-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-o", program, "-")
	source.Stdin = strings.NewReader(`#include <limits.h>
		#include <stdlib.h>
		#include <stdio.h>
		int main(void) { char to[PATH_MAX]; return !realpath("/sys/class/infiniband/softrnic0", to) || puts(to) < 0; }`)
	if out, err := source.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	if symbols, err := exec.Command("nm", "-D", program).CombinedOutput(); err != nil ||
		!strings.Contains(string(symbols), "__realpath_chk") {
		t.Skipf("this C library has no __realpath_chk: %v\n%s", err, symbols)
	}
	out, err := runner(t.Context(), t, dir, "--link pipe --sysfs preload", program).CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "softrnic0\n") {
		t.Errorf("realpath: %v\n%s", err, out)
	}
}

// TestRunScript: a script without a line with #! is run by a shell, as env does, whether softrnic
// run becomes the program or waits for it.
func TestRunScript(t *testing.T) {
	gate.System(t)
	dir := shared(t)
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("echo $# $1\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, sysfs := range []string{"off", "auto", "preload"} {
		cmd := runner(t.Context(), t, dir, "--link pipe --addr 10.9.0.1/24 --sysfs "+sysfs, script, "an argument")
		if out, _ := cmd.CombinedOutput(); string(out) != "1 an argument\n" || cmd.ProcessState.ExitCode() != 3 {
			t.Errorf("--sysfs %s: exit status %d\n%s", sysfs, cmd.ProcessState.ExitCode(), out)
		}
	}
}

// TestEnvironment runs testdata/title.c, which describes its checks: devices have the settings that
// the environment has when the program opens them.
func TestEnvironment(t *testing.T) {
	gate.System(t)
	n := &node{env: []string{"SOFTRNIC_LINK=pipe", "XDG_RUNTIME_DIR=" + shared(t)}}
	if out, err := n.program(t.Context(), t, compile(t, "title"), "10.9.0.7/24").CombinedOutput(); err != nil {
		t.Errorf("no device has the address: %v\n%s", err, out)
	}
}

// A program built for musl is refused, with the reason.
func TestRunRefusesMusl(t *testing.T) {
	gate.System(t)
	dir := shared(t)
	program := filepath.Join(dir, "musl")
	source := exec.Command("gcc", "-x", "c", "-o", program, "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1", "-")
	source.Stdin = strings.NewReader("int main(void) { return 0; }")
	build(t) // skips the test without gcc
	if out, err := source.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	out, err := runner(t.Context(), t, dir, "--link pipe", program).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 126 || !strings.Contains(string(out),
		"musl is built for musl (/lib/ld-musl-x86_64.so.1): the drop-in libraries need glibc "+oldestGlibc+" or later") {
		t.Errorf("%v, want exit status 126 and the reason\n%s", err, out)
	}
}

// TestRunSignals: SIGINT and SIGQUIT reach the program, sent to softrnic run alone or by a terminal
// to both.
func TestRunSignals(t *testing.T) {
	gate.System(t)
	dir := shared(t)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := runner(ctx, t, dir, "--link pipe --sysfs preload", "sh", "-c", "ulimit -c 0; echo here; exec sleep 50")
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.Setsid = true
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 5)); err != nil {
			t.Error(err)
		}
		if err := cmd.Process.Signal(s); err != nil {
			t.Error(err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 128+int(s) {
			t.Errorf("%v: %v, want exit status %d", s, err, 128+int(s))
		}
	}
}

// TestRunKilled: a program does not outlive softrnic run. The description of its devices is gone:
// at once in a mount namespace, otherwise when the next softrnic run begins.
func TestRunKilled(t *testing.T) {
	gate.System(t)
	dir := shared(t)
	trees := func() []string {
		left, err := filepath.Glob(filepath.Join(dir, "softrnic-*"))
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	for _, sysfs := range []string{"auto", "preload"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := runner(ctx, t, dir, "--link pipe --sysfs "+sysfs, "sh", "-c", "echo ${SOFTRNIC_SYSFS:-namespace}; exec sleep 50")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := bufio.NewReader(out)
		how, err := said.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if _, err := said.ReadByte(); err != io.EOF { // as nobody has the other end any more
			t.Errorf("%s: %v from a program whose softrnic run was killed", sysfs, err)
		}
		if after := time.Since(began); after > 20*time.Second {
			t.Errorf("%s: the program has ended %v after softrnic run, by itself", sysfs, after)
		}
		_ = cmd.Wait()
		if left := trees(); how == "namespace\n" && len(left) > 0 {
			t.Errorf("%v is left", left)
		} else if how != "namespace\n" && len(left) != 1 {
			t.Errorf("%v is left where a program may still need it; want one directory", left)
		}
	}
	// One run keeps the files of another, and removes those of a killed one.
	program := `cat /sys/class/infiniband/softrnic0/ports/1/state; test -n "$1" && exec "$@"`
	command := command(t)
	out, err := runner(t.Context(), t, dir, "--link pipe --sysfs preload", "sh", "-c", program+"; ls "+dir, "sh",
		command, "run", "--link", "pipe", "--sysfs", "preload", "--", "sh", "-c", program+"; ls "+dir).CombinedOutput()
	if err != nil || strings.Count(string(out), "4: ACTIVE") != 2 || strings.Count(string(out), "softrnic-run") != 2 {
		t.Errorf("one in another: %v, want two directories\n%s", err, out)
	}
	if left := trees(); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// TestRunLog: a flag sets the log level of the libraries, or else the environment does.
func TestRunLog(t *testing.T) {
	gate.System(t)
	dir := shared(t)
	for flags, want := range map[string]string{"--sysfs off": "info", "--sysfs off --log-level error": "error"} {
		cmd := runner(t.Context(), t, dir, flags+" --link pipe", "sh", "-c", "echo $SOFTRNIC_LOG")
		cmd.Env = append(cmd.Env, "SOFTRNIC_LOG=info")
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != want+"\n" {
			t.Errorf("%s: SOFTRNIC_LOG is %q, want %q (%v)", flags, out, want, err)
		}
	}
}

// TestRunSelectiveRepeat: a program with --selective-repeat repeats only lost packets. The peer is
// the command's own rping, with the same flag, on a link that loses packets. It is not ping-pong:
// its sides end without notice, and a side whose last acknowledgement is lost has no peer left.
func TestRunSelectiveRepeat(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/rping", "rdmacm-utils")
	for _, flag := range []string{"--selective-repeat", ""} {
		dir := shared(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		counters := filepath.Join(dir, "counters")
		s := runner(ctx, t, dir, "--link kernel:lo --addr 127.18.4.1 "+flag, strings.Fields("rping -s -a 127.18.4.1 -C 50 -S 65000")...)
		s.Env = append(s.Env, "SOFTRNIC_COUNTERS="+counters, "SOFTRNIC_LOG=debug")
		said, ended := proc.Start(t, s)
		if err := said.WaitFor("rdma_cm listens", ended); err != nil {
			t.Fatalf("%v\n%s", err, said.String())
		}
		c := runner(ctx, t, dir, "", "") // for its environment, and its user
		c.Args = slices.Concat([]string{c.Path},
			strings.Fields("rping -c -a 127.18.4.1 -V -C 50 -S 65000 --link kernel:lo --addr 127.18.4.2 --impair loss=5%,seed=7 "+flag))
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s\n%s", c.Args, err, out, said.String())
		}
		if err := <-ended; err != nil {
			t.Fatalf("%v: %v\n%s", s.Args, err, said.String())
		}
		counted, err := programs.Counted(counters)
		if err != nil {
			t.Fatal(err)
		}
		if n := counted["selective_repeats"]; n > 0 != (flag != "") {
			t.Errorf("with %q the program has repeated %d packets alone: %v\n%s", flag, n, counted, said.String())
		}
	}
}

// TestRunShared: two programs share one address, also of a named interface, through the hub, which
// the first of them starts.
func TestRunShared(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_rc_pingpong", "ibverbs-utils")
	dir := shared(t)
	for _, sysfs := range []string{"auto", "preload", "off"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		flags := "--link kernel:lo --addr 127.14.7.1 --sysfs " + sysfs
		freePort++
		program := []string{"ibv_rc_pingpong", "-n", "200", "-g", "1", "-p", fmt.Sprint(freePort)}
		run(t, runner(ctx, t, dir, flags, program...), runner(ctx, t, dir, flags, append(program, "127.0.0.1")...), freePort)
	}
}
