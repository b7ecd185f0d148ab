//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// gpuProgram compiles testdata/gpu.c, and testdata/libcuda.c as libcuda.so.1 beside it. Its memory
// of the GPU cannot be accessed, so that every wrong path ends the program.
func gpuProgram(t *testing.T) (program string) {
	t.Helper()
	dir := build(t)
	libcuda := filepath.Join(dir, "gpu", "libcuda.so.1")
	if err := os.MkdirAll(filepath.Dir(libcuda), 0o755); err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "gpu", "gpu")
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", libcuda, "testdata/libcuda.c", "-lpthread"},
		{"-rdynamic", "-o", program, "testdata/gpu.c", libcuda, "-Wl,-rpath," + filepath.Dir(libcuda), "-lrdmacm", "-libverbs", "-lpthread"},
	} {
		if out, err := exec.Command("gcc", append([]string{"-O2", "-Wall", "-Wextra", "-Werror"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
	}
	return program
}

// TestGPUStaging runs the engine's part that is in C by itself: with AddressSanitizer, with
// ThreadSanitizer, and with neither.
func TestGPUStaging(t *testing.T) {
	gate.System(t)
	for _, sanitizer := range []string{"", "-fsanitize=address,undefined", "-fsanitize=thread"} {
		dir := t.TempDir()
		libcuda, program := filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "staging")
		for _, args := range [][]string{
			{"-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", libcuda, "testdata/libcuda.c", "-lpthread"},
			{"-rdynamic", "-o", program, "testdata/staging.c", "../../../cmd/dropin/libsoftrnic/cuda.c", "-lpthread", "-ldl"},
		} {
			args = append(args, "-O1", "-g", "-Wall", "-Wextra", "-Werror")
			if sanitizer != "" {
				args = append(args, sanitizer)
			}
			if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
				t.Fatalf("gcc: %v\n%s", err, out)
			}
		}
		run := exec.Command(program, libcuda)
		run.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0") // streams stay, and contexts of the stand-in
		if out, err := run.CombinedOutput(); err != nil || string(out) != "staged\n" {
			t.Errorf("%s: %v\n%s", sanitizer, err, out)
		}
	}
}

// TestGPUCallers makes the calls with which NCCL, UCX, perftest and NVSHMEM ask whether devices
// reach the memory of GPUs, and register it.
func TestGPUCallers(t *testing.T) {
	gate.System(t)
	program := gpuProgram(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n, _ := pair(t, 0)
	if out, err := n.program(ctx, t, program, "ask").CombinedOutput(); err != nil || !strings.Contains(string(out), "asked") {
		t.Errorf("%v\n%s", err, out)
	}
	const file = "/sys/module/nvidia_peermem/version"
	for _, sysfs := range []string{"on", "preload"} {
		for flag, want := range map[string]bool{"--peermem": true, "--no-peermem": false} {
			dir := shared(t)
			run := runner(ctx, t, dir, "--link pipe --addr 10.9.0.1/24 --sysfs "+sysfs+" "+flag, program, "ask", file)
			out, err := run.CombinedOutput()
			if got := err == nil && strings.Contains(string(out), "asked"); got != want {
				t.Errorf("--sysfs %s %s: %v\n%s", sysfs, flag, err, out)
			}
		}
	}
}

// TestGPUTransfers moves data between the memories of GPUs and processors of two processes, and
// destroys a context, or has a copy fail, meanwhile.
func TestGPUTransfers(t *testing.T) {
	gate.System(t)
	program := gpuProgram(t)
	lossy := func(l endpoints) endpoints {
		l.env = []string{"SOFTRNIC_IMPAIR=loss=0.5%,reorder=1%,hold=1ms"}
		return l
	}
	for _, c := range []struct {
		name string
		link endpoints
	}{{"shm", links[0]}, {"kernel", links[1]}, {"lossy", lossy(links[0])}} {
		for _, transport := range []string{"roce", "iwarp"} {
			hows := map[string]string{"move": "moved", "destroy": "a write failed: local protection error", "destroyed": "a write failed",
				"fail": "a write failed"}
			if transport == "roce" {
				hows["destroyed"] = "a write failed: remote operation error"
				hows["fail"] = hows["destroyed"]
			}
			for how, says := range hows {
				if how != "move" && c.name == "lossy" {
					continue
				}
				t.Run(c.name+" "+transport+" "+how, func(t *testing.T) { moveGPU(t, program, c.link, transport, how, says) })
			}
		}
	}
}

// moveGPU runs both sides. The client says something, and the server is notified of the end.
func moveGPU(t *testing.T, program string, link endpoints, transport, how, says string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server, client := link.pair(t)
	server.env, client.env = append(server.env, "SOFTRNIC_TRANSPORT="+transport), append(client.env, "SOFTRNIC_TRANSPORT="+transport)
	addr, _, _ := strings.Cut(link.server, "/")
	port := fmt.Sprint(nextPort())
	args := func(side string) []string { return []string{side, addr, port, how} }
	s, c := server.program(ctx, t, program, args("server")...), client.program(ctx, t, program, args("client")...)
	said, ended := proc.Start(t, s)
	if err := said.WaitFor("listens", ended); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), says) {
		_ = s.Process.Kill()
		t.Errorf("the client: %v, want %q", err, says)
	}
	if err := <-ended; err != nil || !strings.Contains(said.String(), "disconnected") {
		t.Errorf("the server: %v", err)
	}
	if t.Failed() {
		t.Logf("client:\n%s\nserver:\n%s", out, said.String())
	}
}
