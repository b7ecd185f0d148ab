//go:build linux && amd64

package dropin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/interfaces"
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

// TestGPUScript runs gpu.sh as far as that goes without a GPU: on libcuda.c, without NCCL. Where
// there is no GPU, it does nothing.
func TestGPUScript(t *testing.T) {
	gate.System(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "gpu.tar.gz")
	libcuda := filepath.Dir(gpuProgram(t))
	if out, err := exec.Command("./gpu.sh", "build", file, build(t)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if info, err := os.Stat(file); err != nil || info.Size() > 60<<20 {
		t.Errorf("the file has %d bytes (%v)", info.Size(), err)
	}
	out := filepath.Join(dir, "out")
	program := func(name, text string) error {
		return os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755)
	}
	// Also where PyTorch is installed there is none: NCCL cannot use the stand-in.
	if err := errors.Join(os.Mkdir(out, 0o755), program("nvidia-smi", "echo GPU 0: stand-in"), program("python3", "exit 1")); err != nil {
		t.Fatal(err)
	}
	script := func(path string) string {
		cmd := exec.CommandContext(t.Context(), "./gpu.sh", file, "move", "nccl", "freed")
		cmd.Env = append(os.Environ(), "PATH="+path+"/usr/bin:/bin:/usr/sbin:/sbin", "LD_LIBRARY_PATH="+libcuda, "OUT="+out)
		said, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, said)
		}
		return string(said)
	}
	said := script(dir + ":")
	if passed := strings.Count(said, "passed: "); passed != 9 || !strings.Contains(said, "NCCL is skipped") {
		t.Errorf("%d checks of 9 have passed:\n%s", passed, said)
	}
	if logs, err := filepath.Glob(out + "/*.log"); err != nil || len(logs) != 9 {
		t.Errorf("logs %v (%v)", logs, err)
	}
	if _, err := exec.LookPath("nvidia-smi"); err == nil {
		return
	}
	if said := script(""); !strings.Contains(said, "gpu.sh: skipped, because this machine has no GPU") || strings.Contains(said, "passed") {
		t.Errorf("without a GPU it says:\n%s", said)
	}
}

// TestGPUPage pastes the commands of GPU.md that start programs. Those before them are README.md's,
// which TestPages pastes.
func TestGPUPage(t *testing.T) {
	gate.System(t)
	page, err := os.ReadFile("../../../cmd/softrnic/GPU.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "```\n")
	block, _, _ = strings.Cut(block, "```\n")
	lines := strings.Split(strings.TrimSuffix(block, "\n"), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d commands, want 4:\n%s", len(lines), block)
	}
	dir, program, port := shared(t), gpuProgram(t), nextPort()
	for name, script := range map[string]string{
		"server": fmt.Sprintf("%s server 10.9.0.1 %d move", program, port),
		"client": fmt.Sprintf("until grep -q listens %s/said; do sleep 0.1; done\n%s client $1 %d move", dir, program, port),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := runner(ctx, t, dir, "")
	paste := strings.ReplaceAll(strings.Join(lines[2:], "\n"), "~/.local/bin/softrnic", command(t))
	ends := "\nstatus=$?; [ $status = 0 ] || kill $!; wait $!; exit $status"
	cmd.Path, cmd.Args, cmd.Dir = "/bin/sh", []string{"sh", "-c", "exec >said 2>&1\n" + paste + ends}, dir
	cmd.SysProcAttr.Setpgid = true // the programs too end with the test
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err = cmd.Run()
	said, _ := os.ReadFile(filepath.Join(dir, "said"))
	if err != nil || !strings.Contains(string(said), "moved") || !strings.Contains(string(said), "disconnected") {
		t.Errorf("%v\n%s\n%s", err, paste, said)
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

// TestGPUTransfers moves data between the memories of GPUs and processors of two processes: also
// while a kernel runs, and over links that lose and reorder. It destroys a context, frees memory,
// or has a copy fail, meanwhile.
func TestGPUTransfers(t *testing.T) {
	gate.System(t)
	program := gpuProgram(t)
	of := func(l endpoints, env ...string) endpoints {
		l.env = append(slices.Clone(l.env), env...)
		return l
	}
	const lossy = "SOFTRNIC_IMPAIR=loss=0.5%,reorder=1%,hold=1ms"
	tap := endpoints{server: "10.9.0.1/24", client: "10.9.0.2/24", links: [2]string{"tap:rnic0,bridge=br0", "tap:rnic1,bridge=br0"}}
	hub := of(links[1], "SOFTRNIC_SHARED=1", "SOFTRNIC_COMMAND="+command(t))
	moves := []string{"move", "busy"}
	ends := []string{"destroy", "destroyed", "free", "freed", "fail"}
	says := func(how, transport string) string {
		switch {
		case slices.Contains(moves, how):
			return "moved"
		case how == "destroy" || how == "free":
			return "a write failed: local protection error"
		case transport == "roce":
			return "a write failed: remote operation error"
		}
		return "a write failed"
	}
	for _, c := range []struct {
		name string
		link endpoints
		hows []string
	}{
		{"shm", links[0], slices.Concat(moves, ends)},
		{"kernel", links[1], slices.Concat(moves, ends)},
		{"hub", hub, moves[:1]},
		{"tap", tap, moves[:1]},
		{"lossy shm", of(links[0], lossy), moves[:1]},
		{"lossy kernel", of(links[1], lossy), moves[:1]},
		{"lossy tap", of(tap, lossy), moves[:1]},
	} {
		for _, transport := range []string{"roce", "iwarp"} {
			for _, how := range c.hows {
				t.Run(c.name+" "+transport+" "+how, func(t *testing.T) {
					if c.link.links[0] != "" {
						interfaces.Namespace(t)
						interfaces.TUN(t)
						interfaces.Bridge(t, "br0", 0)
					}
					server, client := moveGPU(t, program, c.link, transport, how, says(how, transport))
					if slices.Contains(c.link.env, lossy) && transport == "roce" && !t.Failed() {
						repeated := uint64(0)
						for _, n := range []*node{server, client} {
							for _, counter := range []string{"out_of_seq_request", "duplicate_request", "completer_retry_err"} {
								repeated += n.counted(t)[counter]
							}
						}
						if repeated == 0 {
							t.Error("the link has lost nothing")
						}
					}
				})
			}
		}
	}
}

// moveGPU runs both sides. The client says something, and the server is notified of the end.
func moveGPU(t *testing.T, program string, link endpoints, transport, how, says string) (server, client *node) {
	// A lost answer to the client's DREQ is not repeated by a server that has ended: the client then
	// asks for more than a minute.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	server, client = link.pair(t)
	addr, _, _ := strings.Cut(link.server, "/")
	port := fmt.Sprint(nextPort())
	command := func(i int, n *node, side string) *exec.Cmd {
		n.env = append(n.env, "SOFTRNIC_TRANSPORT="+transport)
		if link.links[i] != "" {
			n.env = append(n.env, "SOFTRNIC_LINK="+link.links[i])
		}
		cmd := n.program(ctx, t, program, side, addr, port, how)
		if link.links[i] != "" { // interfaces need privileges
			cmd.SysProcAttr = nil
		}
		return cmd
	}
	s, c := command(0, server, "server"), command(1, client, "client")
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
	return server, client
}
