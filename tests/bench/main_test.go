package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestCompare uses a repository whose last commit doubles the allocations of its benchmark. It
// needs git, and benchstat, which the go command fetches and compiles.
func TestCompare(t *testing.T) {
	gate.System(t)
	t.Chdir(t.TempDir())
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git("init", "-q")
	write("go.mod", "module x\n\ngo 1.26\n")
	for _, n := range []int{1000, 2000} {
		write("x_test.go", fmt.Sprintf("package x\n\nimport \"testing\"\n\nvar sink []byte\n\n"+
			"func BenchmarkIt(b *testing.B) {\n\tfor b.Loop() {\n\t\tsink = make([]byte, %d)\n\t}\n}\n", n*1024))
		git("add", ".")
		git("commit", "-q", "-m", "x")
	}
	profiles := t.TempDir()
	var stdout, stderr bytes.Buffer
	o := &options{bench: "It", pkg: ".", time: "3x", count: 6, pprof: profiles}
	if err := compare(t.Context(), o, nil, &stdout, &stderr); err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	// A few bytes of the runtime may be included.
	doubled := regexp.MustCompile(`\+(99\.9|100\.0)\d%`)
	if out := stdout.String(); !strings.Contains(out, "base") || !strings.Contains(out, "head") || !doubled.MatchString(out) {
		t.Errorf("stdout:\n%s", out)
	}
	for _, side := range []string{"base", "head"} {
		if _, err := os.Stat(filepath.Join(profiles, side+".cpu.pprof")); err != nil {
			t.Error(err)
		}
	}
	if out, err := exec.Command("git", "worktree", "list").Output(); err != nil || bytes.Count(out, []byte("\n")) != 1 {
		t.Errorf("worktrees are left: %s, %v", out, err)
	}
	if err := compare(t.Context(), o, []string{"no-such-commit"}, &stdout, &stderr); err == nil {
		t.Error("a base that is not a commit is accepted")
	}
}

func TestArguments(t *testing.T) {
	if err := compare(t.Context(), new(options), []string{"a", "b", "c"}, io.Discard, io.Discard); err == nil {
		t.Error("three commits are taken")
	}
}
