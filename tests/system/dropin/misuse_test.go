//go:build linux && amd64

package dropin

import (
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// compile compiles a program of testdata, and returns its file. Functions of libc that the program
// defines replace those of the libraries.
func compile(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(build(t), name)
	if out, err := exec.Command("gcc", "-O2", "-fexceptions", "-rdynamic", "-Wall", "-Wextra", "-Werror", "-o", program,
		"testdata/"+name+".c", "-lrdmacm", "-libverbs", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return program
}

// onLinks calls f with a function that creates commands of a program, within a process and over
// shared memory.
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

// TestSignals runs testdata/signals.c, which describes its checks. A program that crashes ends with
// its signal, as without the libraries.
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

// TestPolls runs testdata/polls.c, which describes its checks.
func TestPolls(t *testing.T) {
	gate.System(t)
	onLinks(t, compile(t, "polls"), func(link string, command func(args ...string) *exec.Cmd) {
		out, err := command(count(3, 30)).CombinedOutput()
		t.Logf("%s: %s", link, out)
		if err != nil {
			t.Errorf("%s: %v", link, err)
		}
	})
}

// TestTwoCQs runs testdata/twocqs.c, which describes its checks.
func TestTwoCQs(t *testing.T) {
	gate.System(t)
	onLinks(t, compile(t, "twocqs"), func(link string, command func(args ...string) *exec.Cmd) {
		if out, err := command().CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", link, err, out)
		}
	})
}

// TestMisuse runs testdata/misuse.c, which describes its checks.
func TestMisuse(t *testing.T) {
	gate.System(t)
	program := compile(t, "misuse")
	for _, link := range []string{"pipe", "shm:misuse"} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		n, _ := pair(t, 0)
		n.env = append(n.env, "SOFTRNIC_LINK="+link)
		if out, err := n.program(ctx, t, program).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", link, err, out)
		}
	}
}

// filesIn returns the files in a directory and below.
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
