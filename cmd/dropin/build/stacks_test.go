package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestHandlerStack: one number changes in the runtime of this version of Go. Of another text,
// nothing is guessed.
func TestHandlerStack(t *testing.T) {
	goroot, err := goRoot(".", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	proc, err := os.ReadFile(filepath.Join(goroot, "src", "runtime", "proc.go"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := withHandlerStack(proc)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(string(proc), "gp := malg(4096)", "gp := malg(98304)", 1); string(got) != want || want == string(proc) {
		t.Error("another place has changed")
	}
	if _, err := withHandlerStack([]byte("package runtime\n\nfunc oneNewExtraM() {\n\tgp := newg()\n}\n")); err == nil {
		t.Error("a runtime without the place was accepted")
	}
}

// TestDownloadedToolchain: go build accepts the overlay where Go is in the module cache, as a
// downloaded toolchain is.
func TestDownloadedToolchain(t *testing.T) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	downloaded := filepath.Join(cache, "toolchain")
	if err := os.Symlink(strings.TrimSpace(string(out)), downloaded); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOROOT", downloaded)
	t.Setenv("GOMODCACHE", cache)
	dir := t.TempDir()
	goroot, err := goRoot(".", dir)
	if err != nil {
		t.Fatal(err)
	}
	stacks, err := overlay(goroot, dir)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(goroot, "bin", "go"), "list", "-overlay", stacks, "runtime")
	cmd.Env = append(os.Environ(), "GOROOT="+goroot)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
