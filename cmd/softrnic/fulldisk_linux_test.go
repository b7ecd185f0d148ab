package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
)

// TestFilesOnFullDisk: a command fails with the reason if it cannot write a requested file or its
// output.
func TestFilesOnFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := func(name string) string {
		name = filepath.Join(dir, name)
		if err := os.Symlink("/dev/full", name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	const lossy = "internal/trace/testdata/lossy.pcapng.gz"
	const perf = "perf write bw --loopback --packets --iters 10 "
	for _, args := range []string{
		perf + "--trace /dev/full", perf + "--pprof /dev/full", perf + "--size 64 --report /dev/full", perf + "--capture /dev/full",
		"demo --size 8 --time 1ms --capture /dev/full",
		"trace " + lossy + " --ladder " + link("ladder.svg"), "trace " + lossy + " --ladder " + link("ladder.html"),
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			code, _, stderr := runCommand(t, args)
			if code != cli.ExitFailed || !strings.Contains(stderr, "no space left on device") {
				t.Errorf("exit code %d, stderr %q", code, stderr)
			}
		})
	}
	for _, args := range []string{
		"demo --size 8 --time 1ms --json", perf + "--json", "devinfo", "devinfo --json", "trace " + lossy, "trace " + lossy + " --json",
		"--help", "--version",
	} {
		t.Run("stdout of "+args, func(t *testing.T) {
			t.Parallel()
			var errs clitest.Output
			code := runCommandLine(t.Context(), strings.Fields(args), &cli.Env{Stdout: full{}, Stderr: &errs})
			if code != cli.ExitFailed || !strings.Contains(errs.String(), "no space left on device") {
				t.Errorf("exit code %d, stderr %q", code, errs.String())
			}
		})
	}
	// Counters are printed to stderr.
	if code := runCommandLine(t.Context(), strings.Fields(perf+"--counters"),
		&cli.Env{Stdout: new(clitest.Output), Stderr: full{}}); code != cli.ExitFailed {
		t.Errorf("--counters: exit code %d", code)
	}
	if err := dropin.AppendCounters("/dev/full"); err == nil {
		t.Error("counters of a program: no error")
	}
}
